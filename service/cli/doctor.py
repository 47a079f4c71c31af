"""`doctor`: what this machine has, what it lacks, and what that costs."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from service.cli.connection import DataDirOption, ServerOption, load_settings
from service.cli.exits import Exit
from service.cli.output import JsonFlag, print_json, print_text

COMPILERS = ("cc", "gcc", "clang")
MODULES = ("onnx", "onnx_ir", "onnxruntime", "numba", "sqlalchemy", "celery")
FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: `ok`, `fixed`, `warning` (something is missing, the rest works) or `error`."""

    name: str
    level: str
    detail: str


def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what can be mended without harm; say what was done.")
    ] = False,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Check Python, libraries, the C compiler, the data directory and the server."""
    checks = [
        _python(), *_modules(), _compiler(), *_storage(data_dir), *_isolation(data_dir),
        _traces(data_dir),
    ]  # fmt: skip
    if all(check.level != "error" for check in checks):
        checks += _store(data_dir, fix=fix)
    if server:
        checks.append(_server(server))
    healthy = all(check.level != "error" for check in checks)
    if as_json:
        print_json({"healthy": healthy, "checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            print_text(f"{check.level:<8} {check.name:<16} {check.detail}")
    if not healthy:
        raise typer.Exit(Exit.SERVICE)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", "ok", version)


def _modules() -> list[Check]:
    return [
        Check(f"module {name}", "error", "not installed; reinstall tilewright")
        for name in MODULES
        if find_spec(name) is None
    ]


def _compiler() -> Check:
    for name in COMPILERS:
        found = shutil.which(name)
        if found:
            return Check("c compiler", "ok", found)
    return Check(
        "c compiler",
        "warning",
        "none found: everything but verification and `run` works; install gcc or clang",
    )


def _storage(data_dir: Path | None) -> list[Check]:
    settings = load_settings(data_dir)
    folder = settings.data_dir
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(nearest, os.W_OK):
        return [Check("data directory", "error", f"{folder} cannot be written")]
    free = shutil.disk_usage(nearest).free
    level = "ok" if free >= FREE_BYTES else "warning"
    checks = [Check("data directory", level, f"{folder}, {free >> 20} MiB free")]
    if (folder / "tilewright.db").is_file():
        from service.store.session import current_revision

        checks.append(Check("database", "ok", f"schema {current_revision(settings.database_url)}"))
    return checks


def _isolation(data_dir: Path | None) -> list[Check]:
    """The tier that payloads get here, what it keeps and what it does not."""
    from worker.compiler.errors import CompilerError
    from worker.sandbox.isolation import HOLDS, LACKS, Tier, isolation

    try:
        found = isolation(load_settings(data_dir).isolation)
    except CompilerError as error:
        return [Check("isolation", "error", error.message)]
    best = found.tier is Tier.BUBBLEWRAP
    words = "bubblewrap, tried here" if best else f"limits only: {found.reason}"
    return [
        Check("isolation", "ok" if best else "warning", f"{found.tier}, {words}"),
        *(Check("isolation holds", "ok", text) for text in HOLDS[found.tier]),
        *(Check("isolation lacks", "ok" if best else "warning", t) for t in LACKS[found.tier]),
    ]


def _traces(data_dir: Path | None) -> Check:
    from service.tracing import standing

    found = standing(load_settings(data_dir))
    return Check("traces", "ok" if found in {"on", "off"} else "warning", found)


def _store(data_dir: Path | None, *, fix: bool) -> list[Check]:
    """What is not as it should be in the store, and what was done about it."""
    from service.cli.mending import Refused, look

    checks = []
    for ailment in look(load_settings(data_dir)):
        if not fix:
            hint = "; --fix mends it" if ailment.level == "warning" else ""
            checks.append(Check(ailment.name, ailment.level, f"{ailment.found}{hint}"))
            continue
        try:
            done = ailment.mend()
        except Refused as why:
            checks.append(Check(ailment.name, why.level, f"{ailment.found}; not mended: {why}"))
        else:
            checks.append(Check(ailment.name, "fixed", f"{ailment.found}; {done}"))
    return checks


def _server(url: str) -> Check:
    from service.client import ApiError, Client

    try:
        with Client(url, timeout_s=10) as client:
            version = client.get("/v1/version")["version"]
            client.get("/v1/readyz")
    except ApiError as error:
        return Check("server", "error", error.detail)
    return Check("server", "ok", f"{url} runs {version} and is ready")
