"""The text of a gate file -> `GateFile`, or everything that is wrong with it, with lines."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from service.gate.file import ARRAYS, UNLINKED, GateFile
from service.gate.places import line_of
from worker.compiler.errors import Detail, Finding, InputError, OptionError, SpecError

CODE = "TW-GATE-001"
_MOST_SHOWN = 80


def read_gate(text: str, name: str) -> GateFile:
    """Read a gate file; `name` is what messages call it.

    Raises:
        InputError: TW-GATE-001, with a finding (pointer, line, allowed, actual) for every defect.
    """
    from worker.compiler.machine import parse_document

    try:
        document = parse_document(text, what="gate file")
    except SpecError as error:
        raise refused([Finding(CODE, error.message, "")], name, text) from error
    try:
        gate = GateFile.model_validate(document)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise refused([_finding(entry) for entry in found], name, text) from error
    findings = _option_findings(gate)
    if findings:
        raise refused(findings, name, text)
    return gate


def refused(findings: list[Finding], name: str, text: str) -> InputError:
    """The refusal of a gate file for these findings, which get their lines."""
    placed = [
        Finding(
            f.code, f"{name}:{line_of(text, f.pointer or '')}: {f.message}", f.pointer, None,
            f.allowed, f.actual,
        )
        for f in findings
    ]  # fmt: skip
    first = placed[0]
    more = f" (and {len(placed) - 1} more)" if len(placed) > 1 else ""
    return InputError(
        CODE, first.message + more, pointer=first.pointer, limit=first.allowed,
        actual=first.actual, findings=tuple(placed),
    )  # fmt: skip


def _option_findings(gate: GateFile) -> list[Finding]:
    """Options by compile's own parser, each place where they may stand."""
    from worker.compiler.options import CompileOptions

    found: list[Finding] = []
    places: list[tuple[str, dict[str, Any]]] = [("/options", gate.options)]
    places += [(f"/hardware/{k}/options", e.options) for k, e in enumerate(gate.hardware)]
    places += [(f"/models/{k}/options", e.options) for k, e in enumerate(gate.models)]
    places += [
        (f"/models/{k}", {"symbols": e.symbols}) for k, e in enumerate(gate.models) if e.symbols
    ]
    for at, options in places:
        files = [name for name in ARRAYS if name in options]
        for name in files:
            message = f"{name} is a file: write it beside the model's path"
            found.append(Finding(CODE, message, f"{at}/{name}"))
        libraries = [name for name in UNLINKED if name in options]
        for name in libraries:
            message = "a kernel library changes no figure, so a gate links none: leave it out"
            found.append(Finding(CODE, message, f"{at}/{name}"))
        left_out = (*files, *libraries)
        try:
            CompileOptions.from_json({k: v for k, v in options.items() if k not in left_out})
        except OptionError as error:
            found += [
                Finding(CODE, f.message, (f.pointer or "").replace("/options", at, 1), None,
                        f.allowed, f.actual)
                for f in error.findings or (Finding(CODE, error.message, error.place.pointer),)
            ]  # fmt: skip
    for k, entry in enumerate(gate.models):
        if entry.symbols and "symbols" in entry.options:
            message = "symbols are given twice: leave options.symbols out"
            found.append(Finding(CODE, message, f"/models/{k}/options/symbols"))
    return found


def _finding(details: ErrorDetails) -> Finding:
    loc = [part for part in details["loc"] if part not in ("merge-base", "file", "server")]
    pointer = "".join("/" + str(p).replace("~", "~0").replace("/", "~1") for p in loc)
    field = str(loc[-1]) if loc else "the gate file"
    actual = _shown(details["input"])
    context = details.get("ctx", {})
    match details["type"]:
        case "missing":
            return Finding(CODE, f"{field} is missing", pointer, None, "present", None)
        case "extra_forbidden":
            near = get_close_matches(field, _all_fields(), n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            message = f"{field!r} is not a field here{hint}"
            return Finding(CODE, message, pointer, None, "a field of the schema", field)
        case "value_error":
            said = str(context["error"])
            return Finding(CODE, f"{field}: {said}", pointer, None, said, actual)
        case "literal_error":
            return Finding(CODE, f"{field} must be {context['expected']}", pointer, None,
                           str(context["expected"]), actual)  # fmt: skip
        case _:
            return Finding(
                CODE, f"{field}: {details['msg']}", pointer, None, details["msg"], actual
            )


@cache
def _all_fields() -> tuple[str, ...]:
    """Every name that is a field somewhere in a gate file."""
    found: set[str] = set()
    seen: set[type[BaseModel]] = set()
    kinds: list[object] = [GateFile]
    while kinds:
        kind = kinds.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if kind not in seen:
                seen.add(kind)
                found |= {f.alias or name for name, f in kind.model_fields.items()}
                kinds += [f.annotation for f in kind.model_fields.values()]
        else:
            kinds += get_args(kind)
    return tuple(sorted(found))


def _shown(value: object) -> Detail:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else type(value).__name__
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."
