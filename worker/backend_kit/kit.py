"""Write the files of a new backend."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from worker.backend_kit.vendor_header import vendor_header
from worker.compiler.codegen.runtime_header import HEADER_NAME
from worker.compiler.errors import InputError
from worker.compiler.machine.presets import preset_names

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,47}")
_MARK = "@NAME@"
_MODULE_MARK = "@MODULE@"


def kit_files(name: str) -> dict[str, str]:
    """Text of every file of a backend, by file name.

    Raises:
        InputError: TW-CLI-001, the name is no name or is a preset's.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            "TW-CLI-001",
            f"{name!r} cannot name a backend: a letter, then letters, digits, _ or -, at most 48",
            limit="[A-Za-z][A-Za-z0-9_-]*",
            actual=name,
        )
    if name in preset_names():
        raise InputError(
            "TW-CLI-001",
            f"{name} is the name of a shipped preset; choose another",
            actual=name,
        )
    module = name.replace("-", "_")
    return {
        f"{name}.yaml": _template("spec.yaml", name, module),
        HEADER_NAME: vendor_header(name),
        f"test_{module}.py": _template("test_backend.py.tmpl", name, module),
        "README.md": _template("README.md.tmpl", name, module),
    }


def write_kit(name: str, directory: Path) -> tuple[Path, ...]:
    """Write a backend's files into `directory`, which is made; all of them or none.

    Raises:
        InputError: TW-CLI-001, a bad name, or one of the files is there already.
    """
    texts = kit_files(name)
    targets = {directory / file: text for file, text in texts.items()}
    present = [path for path in targets if path.exists()]
    if present:
        raise InputError(
            "TW-CLI-001",
            f"{present[0]} is there already; nothing was written",
            actual=", ".join(path.name for path in present),
        )
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in targets.items():
        with path.open("x", encoding="utf-8") as out:  # somebody else's file is never replaced
            out.write(text)
    return tuple(targets)


def _template(file: str, name: str, module: str) -> str:
    path = resources.files("worker.backend_kit") / "templates" / file
    text = path.read_text(encoding="utf-8")
    return text.replace(_MARK, name).replace(_MODULE_MARK, module)
