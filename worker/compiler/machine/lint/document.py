"""All that is wrong with a hardware document, at once, each finding with its JSON pointer.

Two sources: the schema (types, missing and unknown fields, ranges of single numbers; TW-SPEC-001)
and the rules of lint_rules.py and lint_patterns.py (contradictions between fields; TW-SPEC-002).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from math import log
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from worker.compiler.errors import Detail, Finding, SpecError
from worker.compiler.machine.inherit import Resolved, escape, resolve
from worker.compiler.machine.lint.operators import OPERATOR_RULES
from worker.compiler.machine.lint.patterns import PATTERN_RULES
from worker.compiler.machine.lint.rules import RULES
from worker.compiler.machine.lint.view import SpecReader
from worker.compiler.machine.parse import values_of
from worker.compiler.machine.presets import preset_document, preset_names
from worker.compiler.machine.spec import HardwareSpec


def lint_document(document: Mapping[str, object]) -> tuple[Finding, ...]:
    """List every defect of a document; empty means that `load_machine` accepts it.

    Never raises for bad content: an unknown base preset is a finding too.
    """
    if not isinstance(document, Mapping):
        return (Finding("TW-SPEC-001", "a hardware document must be a mapping", "", None,
                        "mapping", type(document).__name__),)  # fmt: skip
    try:
        for _ in values_of(document):
            pass  # what follows goes down by recursion
        resolved = resolve(document, preset_document)
    except SpecError as error:
        return error.findings or (Finding(error.code, error.message, "", None, error.limit),)
    return (*_schema_findings(resolved), *_rule_findings(resolved))


def _schema_findings(resolved: Resolved) -> Iterator[Finding]:
    try:
        HardwareSpec.model_validate(resolved.document)
    except ValidationError as error:
        view = SpecReader(resolved.document)
        for details in error.errors(include_url=False, include_context=True):
            yield _schema_finding(details, resolved, view)


def _schema_finding(details: ErrorDetails, resolved: Resolved, view: SpecReader) -> Finding:
    loc = [escape(part) for part in details["loc"] if part != "[key]"]
    if loc and loc[-1] == "value" and not isinstance(view.raw("/" + "/".join(loc[:-1])), dict):
        loc.pop()  # the user wrote the number plainly
    pointer = "".join(f"/{part}" for part in loc)
    field = loc[-1] if loc else "the document"
    context = details.get("ctx", {})
    allowed: Detail = None
    actual: Detail = _shown(details["input"])
    match details["type"]:
        case "out_of_range":
            allowed = str(context["allowed"])
            value = float(context["actual"])
            actual = value if abs(value) < float("inf") else str(value)  # NaN stays out of JSON
            actual = str(value) if value != value else actual
            message = f"{field} is {value:g}; it must be {allowed}{_nearest(pointer, value)}"
        case "missing":
            message = f"{field} is missing{_nearest(pointer, None)}"
            allowed, actual = "present", None
        case "extra_forbidden":
            names = _fields_at(loc[:-1])
            near = get_close_matches(field, names, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            message = f"{field!r} is not a field here{hint}"
            allowed, actual = ", ".join(names), field
        case "float_type" | "float_parsing":
            message = f"{field} must be a number{_nearest(pointer, None)}"
            allowed = "number, or {value, tag, note}"
        case _:
            message = f"{field}: {details['msg']}"
            allowed = str(context.get("expected", details["msg"]))
    message += _inherited_note(pointer, resolved)
    return Finding("TW-SPEC-001", message, resolved.user_pointer(pointer), None, allowed, actual)


def _rule_findings(resolved: Resolved) -> Iterator[Finding]:
    view = SpecReader(resolved.document)
    for rule in (*RULES, *PATTERN_RULES, *OPERATOR_RULES):
        for defect in rule(view):
            hint = ""
            if isinstance(defect.actual, float):
                hint = _nearest(defect.pointer, defect.actual)
            yield Finding(
                "TW-SPEC-002",
                defect.message + hint + _inherited_note(defect.pointer, resolved),
                resolved.user_pointer(defect.pointer),
                None,
                defect.allowed,
                _shown(defect.actual),
            )


def _inherited_note(pointer: str, resolved: Resolved) -> str:
    """Say so when a finding is at a place the user did not write."""
    return f" (inherited from {resolved.base})" if resolved.is_inherited(pointer) else ""


def _shown(value: object) -> Detail:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) < float("inf") else str(value)
    try:
        text = str(value)
    except (RecursionError, ValueError):  # nested without end, or an integer of 4 300 digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _pattern(pointer: str) -> str:
    return re.sub(r"/\d+(?=/|$)", "/*", pointer)


def _nearest(pointer: str, actual: float | None) -> str:
    """Name the preset whose value of the same field is nearest, on a logarithmic scale."""
    rows = _preset_values().get(_pattern(pointer))
    if not rows:
        return ""
    if actual is None:
        ordered = sorted(rows)
        value, name = ordered[len(ordered) // 2]
        return f" (for example {value:g}, as in {name})"
    target = actual if 0 < actual < float("inf") else 0.0
    positive = [row for row in rows if row[0] > 0] or list(rows)
    if target > 0:
        value, name = min(positive, key=lambda r: (abs(log(r[0] or 1e-9) - log(target)), r[1]))
    else:
        value, name = min(positive)
    return f" (nearest preset value: {value:g} in {name})"


@cache
def _preset_values() -> Mapping[str, tuple[tuple[float, str], ...]]:
    found: dict[str, list[tuple[float, str]]] = {}

    def walk(value: object, at: str, name: str) -> None:
        if isinstance(value, dict) and "value" in value:
            value = value["value"]
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{at}/{escape(key)}", name)
        elif isinstance(value, list):
            for item in value:
                walk(item, f"{at}/*", name)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.setdefault(at, []).append((float(value), name))

    for name in preset_names():
        walk(resolve(preset_document(name), preset_document).document, "", name)
    return {key: tuple(rows) for key, rows in found.items()}


def _fields_at(loc: list[str]) -> list[str]:
    """Names of the fields allowed at a place, read off the JSON schema of the spec."""
    schema: Any = _schema()
    node: Any = schema
    for part in loc:
        node = _step(_deref(node, schema), part)
    properties = _deref(node, schema).get("properties", {})
    return sorted(properties)


def _step(node: Any, part: str) -> Any:
    if "properties" in node and part in node["properties"]:
        return node["properties"][part]
    if "items" in node:
        return node["items"]
    return node.get("additionalProperties") or {}


def _deref(node: Any, schema: Any) -> Any:
    if "$ref" in node:
        return _deref(schema["$defs"][node["$ref"].rpartition("/")[2]], schema)
    for option in node.get("anyOf", ()):
        resolved = _deref(option, schema)
        if "properties" in resolved or "items" in resolved:
            return resolved
    return node


@cache
def _schema() -> Any:
    return HardwareSpec.model_json_schema()
