"""JSON Schema of gate files, for completion and checks in editors."""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from typing import Any, get_type_hints

from service.gate.file import ARRAYS, UNLINKED, GateFile


def gate_json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12), with compile's options as they are in this release."""
    schema = GateFile.model_json_schema(by_alias=True)
    options = _options_schema()
    for part in (schema, *(schema["$defs"][name] for name in ("ModelEntry", "HardwareEntry"))):
        said = part["properties"]["options"].get("description")
        part["properties"]["options"] = {"$ref": "#/$defs/Options", "description": said}
    schema["$defs"]["Options"] = options
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Tilewright gate file"
    return schema


def _options_schema() -> dict[str, Any]:
    from worker.compiler.descriptors import AUTO, strategies
    from worker.compiler.heuristics import Heuristic
    from worker.compiler.options import CompileOptions

    hints = get_type_hints(CompileOptions)
    own: dict[str, dict[str, Any]] = {
        "strategy": {"type": "string", "examples": [AUTO, *strategies()]},
        "strategy_options": {"type": "object", "additionalProperties": {"type": "object"}},
        "quantization": _quantization_schema(),
        "symbols": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
        "without": {"type": "array", "items": {"enum": [str(name) for name in Heuristic]}},
    }
    found: dict[str, Any] = {}
    for field in fields(CompileOptions):
        if field.name not in (*ARRAYS, *UNLINKED):
            found[field.name] = own.get(field.name) or _of_type(hints[field.name])
    return {
        "type": "object",
        "description": "Options of `tilewright compile`, by their names in reports.",
        "additionalProperties": False,
        "properties": found,
    }


def _quantization_schema() -> dict[str, Any]:
    from worker.compiler.quantization import Correction, Ranges

    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "ranges": {"enum": [str(name) for name in Ranges]},
            "percentile": {"type": "number", "exclusiveMinimum": 50, "maximum": 100},
            "corrections": {"type": "array", "items": {"enum": [str(c) for c in Correction]}},
            "keep_float": {"type": "array", "items": {"type": "string"}},
            "min_sqnr": {"type": ["number", "null"]},
        },
    }


def _of_type(hint: Any) -> dict[str, Any]:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {"enum": [str(member) for member in hint]}
    if hint is bool:
        return {"type": "boolean"}
    if hint is int:
        return {"type": "integer", "minimum": 0}
    return {"type": ["number", "null"], "exclusiveMinimum": 0}
