"""Are attribute rules possible for an operator?  Shared by op rules and patterns.

An attribute must exist for the operator in some version of the ONNX standard, and the values that
a rule compares it with must be of its type: anything else is a rule that can never hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from worker.compiler.machine.lint.view import Defect, SpecReader, one_of

_NUMBERS = frozenset({"INT", "FLOAT", "INTS", "FLOATS"})
_LISTS = frozenset({"INTS", "FLOATS", "STRINGS"})
_WORDS = {
    "INT": "an integer", "FLOAT": "a number", "STRING": "text", "INTS": "integers",
    "FLOATS": "numbers", "STRINGS": "text",
}  # fmt: skip


@cache
def attribute_types(op_type: str) -> Mapping[str, str]:
    """Attributes of an op of the ai.onnx domain, all versions together: name -> `INT`, `FLOATS`...

    Empty for an unknown op.  Cost: reads the schema registry once per op type.
    """
    import onnx.defs  # here, so that the service does not load onnx to list presets

    found: dict[str, str] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.name == op_type:
            for name, attribute in schema.attributes.items():
                found[str(name)] = str(attribute.type).rpartition(".")[2]
    return MappingProxyType(dict(sorted(found.items())))


def attribute_defects(view: SpecReader, pointer: str, op_types: Sequence[str]) -> Iterator[Defect]:
    """What is wrong with the mapping of attribute rules at `pointer`, for each of `op_types`.

    Unknown op types are skipped: they are findings of their own.
    """
    for name in view.keys(pointer):
        at = f"{pointer}/{name}"
        for op_type in op_types:
            types = attribute_types(op_type)
            if name in types:
                yield from _value_defects(view, at, f"{name} of {op_type}", types[name])
            elif types or _is_known(op_type):
                names = list(types)
                yield Defect(
                    at, f"{op_type} has no attribute {name!r}" + one_of(name, names),
                    f"one of {', '.join(names)}" if names else "no attributes", name,
                )  # fmt: skip
        yield from _bound_defects(view, at, name)


@cache
def _is_known(op_type: str) -> bool:
    import onnx.defs

    return bool(onnx.defs.has(op_type))


def _value_defects(view: SpecReader, at: str, what: str, kind: str) -> Iterator[Defect]:
    if kind not in _WORDS:
        yield Defect(
            at, f"{what} holds a {kind.lower().replace('_', ' ')}, which no rule can compare",
            "an attribute of numbers or text", kind.lower(),
        )  # fmt: skip
        return
    for item in view.items(f"{at}/allowed"):
        value = view.raw(item)
        if not _fits(value, kind):
            wanted = _WORDS[kind] + (" (one for every element, or a list)" * (kind in _LISTS))
            yield Defect(item, f"{what} is {wanted}, so it never equals {value!r}", wanted, value)
    for bound in ("min", "max"):
        if kind not in _NUMBERS and view.raw(f"{at}/{bound}") is not None:
            yield Defect(
                f"{at}/{bound}", f"{what} is {_WORDS[kind]}, which has no bounds",
                "allowed values instead", view.raw(f"{at}/{bound}"),
            )  # fmt: skip


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, list):
        return kind in _LISTS and all(_fits(element, kind.rstrip("S")) for element in value)
    if isinstance(value, bool):
        return False
    match kind:
        case "INT" | "INTS":
            return isinstance(value, int)
        case "FLOAT" | "FLOATS":
            return isinstance(value, int | float)
        case _:
            return isinstance(value, str)


def _bound_defects(view: SpecReader, at: str, name: str) -> Iterator[Defect]:
    if not isinstance(view.raw(at), dict):
        return
    low, high = view.number(f"{at}/min"), view.number(f"{at}/max")
    if low is None and high is None and not view.raw(f"{at}/allowed"):
        yield Defect(
            at, f"the rule about {name} allows everything", "allowed, min or max", None
        )  # fmt: skip
    if low is not None and high is not None and low > high:
        yield Defect(
            f"{at}/max", f"the maximum {high:g} is below the minimum {low:g}", f">= {low:g}", high
        )
        return
    for item in view.items(f"{at}/allowed"):
        value = view.raw(item)
        for element in value if isinstance(value, list) else [value]:
            if isinstance(element, bool) or not isinstance(element, int | float):
                continue
            if (low is not None and element < low) or (high is not None and element > high):
                yield Defect(
                    item, f"{name} may be {element:g}, but the bounds of the same rule refuse it",
                    "a value inside min and max", element,
                )  # fmt: skip
