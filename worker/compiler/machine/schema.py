"""JSON schema of what users write: a full document, or edits laid over a preset."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from worker.compiler.machine.spec import HardwareSpec

_NAMED_ITEMS = ("LevelSpec", "EngineSpec", "LinkSpec", "IntrinsicSpec", "OpSpec", "PatternSpec")


def spec_json_schema() -> dict[str, Any]:
    """Export the schema (draft 2020-12) for editors and for checks outside this service.

    A document either is complete, or has `inherits` and needs only what it changes: then every
    field is optional but the name of each list item, which may be deleted (`remove`) or put in
    place (`after`).
    """
    full = HardwareSpec.model_json_schema()
    parts: dict[str, Any] = full.pop("$defs")
    edits = {f"{name}Edit": _edit(name, deepcopy(part)) for name, part in parts.items()}
    patch = _edit("HardwareSpec", deepcopy(full))
    patch["properties"]["inherits"] = {"type": "string", "description": "Name of a preset."}
    patch["required"] = ["inherits"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tilewright hardware document",
        "if": {"type": "object", "required": ["inherits"]},
        "then": {"$ref": "#/$defs/HardwareEdit"},
        "else": {"$ref": "#/$defs/Hardware"},
        "$defs": {**parts, **edits, "Hardware": full, "HardwareEdit": patch},
    }


def _edit(name: str, part: dict[str, Any]) -> dict[str, Any]:
    """Turn the schema of a complete part into that of an edit of it."""
    _redirect(part)
    part.pop("required", None)
    if name == "LimitSpec":
        part["required"] = ["min", "max"]
    if name in _NAMED_ITEMS:
        part["required"] = ["op_type" if name == "OpSpec" else "name"]
        part["properties"]["remove"] = {"const": True}
        part["properties"]["after"] = {"type": "string"}
    return part


def _redirect(node: Any) -> None:
    if isinstance(node, dict):
        if "$ref" in node:
            node["$ref"] += "Edit"
        node.pop("minItems", None)  # a list of edits may be short
        for value in node.values():
            _redirect(value)
    elif isinstance(node, list):
        for value in node:
            _redirect(value)
