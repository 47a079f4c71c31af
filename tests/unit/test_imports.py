"""What starts fast stays fast: heavy packages are not imported by what does without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from compared_runs import NODES, layers, write

from migrations import HEAD
from migrations.runner import config
from service.cli.demo import EXAMPLE

TESTS = Path(__file__).parents[1]
COMPILER = {"numpy", "scipy", "numba", "onnx", "onnx_ir", "onnxruntime", "sympy"}
SERVER = {"fastapi", "starlette", "uvicorn", "celery", "kombu", "alembic", "httpx"}
STORE = {"sqlalchemy"}


def loaded(code: str, data_dir: Path, **settings: str) -> set[str]:
    """Top-level packages in a fresh process that has run `code`."""
    given = {"data_dir": str(data_dir), **settings}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")}
    environment |= {f"TILEWRIGHT_{name.upper()}": value for name, value in given.items()}
    tail = "import json, sys; print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{tail}"],
        env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return set(json.loads(done.stdout.splitlines()[-1]))


def verb(*words: str) -> str:
    return f"from service.cli.main import app; app({list(words)!r}, standalone_mode=False)"


def test_the_command_line_itself_is_light(tmp_path: Path) -> None:
    found = loaded("import service.cli.main", tmp_path)
    assert {"typer", "msgspec"} <= found
    assert not found & (COMPILER | SERVER | STORE | {"pydantic", "yaml", "rich"})


@pytest.mark.parametrize("words", [("hardware", "ls"), ("hardware", "ls", "--json")])
def test_listing_hardware_opens_no_server(words: tuple[str, ...], tmp_path: Path) -> None:
    assert not loaded(verb(*words), tmp_path) & (COMPILER | SERVER | STORE)


def test_comparing_folders_opens_no_server_and_no_compiler(tmp_path: Path) -> None:
    for name in ("base", "head"):
        write(tmp_path / name, NODES, layers())
    words = (str(tmp_path / "base"), str(tmp_path / "head"), "--html", str(tmp_path / "p.html"))
    found = loaded(verb("diff", *words), tmp_path)
    assert not found & (COMPILER | SERVER | STORE | {"yaml"})


def test_a_compiles_own_process_leaves_the_compiler_to_its_child(tmp_path: Path) -> None:
    order = verb(
        "compile", str(EXAMPLE), "--hardware", "kapla-16x16", "--json", "-o", str(tmp_path / "out")
    )
    settings = {
        "runner": "service_payloads:quick",
        "child_python_path": json.dumps([str(TESTS)]),
    }
    loaded(order, tmp_path / "data", **settings)  # makes the store
    found = loaded(order, tmp_path / "data", **settings)
    assert found >= STORE
    assert not found & (COMPILER | SERVER)


def test_the_child_imports_what_every_model_needs(tmp_path: Path) -> None:
    found = loaded("import worker.children.sandbox_child, worker.job.job", tmp_path)
    assert {"numpy", "onnx"} <= found
    assert not found & (SERVER | STORE | {"scipy", "numba", "onnxruntime"})


def test_the_newest_revision_is_named_right() -> None:
    from alembic.script import ScriptDirectory

    assert ScriptDirectory.from_config(config()).get_current_head() == HEAD
