"""The shipped hardware presets and op groups: data files next to this module."""

from __future__ import annotations

from copy import deepcopy
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

from worker.compiler.errors import Finding, SpecError
from worker.compiler.machine.parse import parse_document


@cache
def preset_names() -> tuple[str, ...]:
    """Names of all presets, sorted."""
    folder = resources.files("worker.compiler.machine") / "presets"
    return tuple(
        sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))
    )


def preset_document(name: str) -> dict[str, Any]:
    """Give the document of a preset as written: tags, notes and `inherits` included.

    Raises:
        SpecError: TW-SPEC-003 with the nearest names.
    """
    if name not in preset_names():
        near = get_close_matches(name, preset_names(), n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        message = f"there is no hardware preset {name!r}{hint}"
        raise SpecError(
            "TW-SPEC-003", message, pointer="/inherits", actual=name,
            findings=(
                Finding("TW-SPEC-003", message, "/inherits", None, list(preset_names()), name),
            ),
        )  # fmt: skip
    return deepcopy(_read(name))


def preset_rows() -> list[dict[str, Any]]:
    """Name, description and document of every preset, in the order of names."""
    documents = {name: preset_document(name) for name in preset_names()}
    return [
        {"name": name, "description": str(found.get("description") or ""), "document": found}
        for name, found in documents.items()
    ]


@cache
def _read(name: str) -> dict[str, Any]:
    path = resources.files("worker.compiler.machine") / "presets" / f"{name}.yaml"
    return parse_document(path.read_text(encoding="utf-8"))


@cache
def op_groups() -> dict[str, tuple[str, ...]]:
    """Named lists of ONNX op types; a group may include other groups as `+name`."""
    path = resources.files("worker.compiler.machine") / "op_groups.yaml"
    raw = parse_document(path.read_text(encoding="utf-8"))["groups"]

    def members(name: str) -> list[str]:
        found: list[str] = []
        for item in raw[name]:
            found.extend(members(item[1:]) if item.startswith("+") else [item])
        return found

    return {name: tuple(dict.fromkeys(members(name))) for name in raw}


@cache
def known_ops() -> frozenset[str]:
    """Every op type of the ai.onnx domain, so that a misspelt one is caught."""
    path = resources.files("worker.compiler.machine") / "op_groups.yaml"
    return frozenset(parse_document(path.read_text(encoding="utf-8"))["known_ops"])
