"""`tilewright gate init`: everything that a repository needs for a gate, as files to commit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from service.gate.git import NoBaseline, Repository, open_repository
from service.gate.schema import gate_json_schema
from service.gate.tree import Folder

GATE_FILE = "tilewright.yaml"
SCHEMA_FILE = ".tilewright/gate.schema.json"
PARTS = ("github", "gitlab", "pre-commit")
_FILES: dict[str, dict[str, str]] = {
    "github": {
        ".github/actions/tilewright-gate/action.yml": "action.yml",
        ".github/workflows/tilewright.yml": "workflow.yml",
    },
    "gitlab": {
        ".gitlab/tilewright-gate.yml": "gitlab.yml",
        ".gitlab-ci.yml": "gitlab-ci.yml",
    },
    "pre-commit": {".pre-commit-config.yaml": "pre-commit.yaml"},
}
_DEFAULT_BRANCH = "main"
_MOST_SPEC_BYTES = 1 << 20


def set_up(
    root: Path, parts: Sequence[str], package: str, branch: str | None, preset: str
) -> dict[str, str]:
    """Texts of the files to write, by path; nothing is written.

    Args:
        parts: of `PARTS`.
        package: what pip installs.
        branch: None: that of the repository's `origin`, else `main`.
        preset: the chip, where the repository has no specs.
    """
    tree = Folder(root)
    models = _globs(tree.names("**/*.onnx")) or ["models/*.onnx"]
    specs = [p for p in (*tree.names("**/*.yaml"), *tree.names("**/*.yml")) if _is_spec(root / p)]
    chips = [f"  - spec: {path}" for path in specs] or [f"  - preset: {preset}"]
    words = {
        "BRANCH": branch or _branch_of(root),
        "PACKAGE": package,
        "MODELS": "\n".join(f"  - path: {path}" for path in models),
        "HARDWARE": "\n".join(chips),
    }
    found = {
        GATE_FILE: _filled("tilewright.yaml", words),
        SCHEMA_FILE: json.dumps(gate_json_schema(), indent=1) + "\n",
    }
    for part in parts:
        for path, template in _FILES[part].items():
            found[path] = _filled(template, words)
    return found


def _filled(template: str, words: dict[str, str]) -> str:
    text = (files("service.gate") / "templates" / f"{template}.tmpl").read_text(encoding="utf-8")
    for name, word in words.items():
        text = text.replace(f"@{name}@", word)
    return text


def _globs(paths: Sequence[str]) -> list[str]:
    """A glob for every folder of models."""
    found = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        found.append(f"{folder}/*.onnx" if folder else name)
    return list(dict.fromkeys(found))


def _is_spec(path: Path) -> bool:
    """Whether a file is a hardware spec, or is meant to be one."""
    from worker.compiler.errors import SpecError
    from worker.compiler.machine import parse_document

    if path.stat().st_size > _MOST_SPEC_BYTES:
        return False
    try:
        document: dict[str, Any] = parse_document(path.read_text("utf-8", errors="replace"))
    except SpecError:
        return False
    return "name" in document and bool({"levels", "inherits"} & set(document))


def _branch_of(root: Path) -> str:
    try:
        repository: Repository = open_repository(root)
        said = repository.ask("symbolic-ref", "--short", "refs/remotes/origin/HEAD").decode()
    except NoBaseline:
        return _DEFAULT_BRANCH
    return said.strip().partition("/")[2] or _DEFAULT_BRANCH
