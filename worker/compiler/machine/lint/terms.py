"""Are the conditions of an operator's row well formed?  Names, relations, and what they compare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from worker.compiler.machine.lint.attributes import attribute_defects, attribute_types
from worker.compiler.machine.lint.view import Defect, SpecReader, one_of
from worker.compiler.machine.rule import (
    BYTES_OF_LEVEL,
    Relation,
    attribute_name,
    operand_name,
)

LIMIT_NAMES = (
    "batch", "depthwise", "dilation_h", "dilation_w", "elements", "group", "height", "in_channels",
    "kernel_h", "kernel_size", "kernel_w", "macs", "out_channels", "pad_h", "pad_w", "rank",
    "stride_h", "stride_w", "weight_elements", "width",
)  # fmt: skip
"""Quantities of a node that `limits` may bound (partition/quantities.py measures them)."""
_RELATIONS = tuple(str(relation) for relation in Relation)
_NUMBERS = ("INT", "FLOAT")
_LEAST, _MOST = 1e-15, 1e15
"""Of a number of a comparison: a product of eight of them, or its inverse, is still a number, and
no chip counts further."""


def limits_are_ranges(view: SpecReader, row: str) -> Iterator[Defect]:
    """Of the row or clause at the pointer `row`."""
    for name in view.keys(f"{row}/limits"):
        if name not in LIMIT_NAMES:
            yield Defect(
                f"{row}/limits/{name}", f"{name!r} is not a quantity that can be limited"
                + one_of(name, list(LIMIT_NAMES)), f"one of {', '.join(LIMIT_NAMES)}", name,
            )  # fmt: skip
        low = view.number(f"{row}/limits/{name}/min")
        high = view.number(f"{row}/limits/{name}/max")
        if low is not None and high is not None and low > high:
            yield Defect(
                f"{row}/limits/{name}/max", f"the maximum {high:g} is below the minimum {low:g}",
                f">= {low:g}", high,
            )  # fmt: skip


def condition_defects(view: SpecReader, row: str, op_type: str) -> Iterator[Defect]:
    """What is wrong with the conditions of the row or clause at the pointer `row`."""
    for at in view.items(f"{row}/conditions"):
        if not isinstance(view.raw(at), dict):
            continue
        clauses = list(view.items(f"{at}/any_of"))
        is_alternatives = view.raw(f"{at}/any_of") is not None
        compares = view.raw(f"{at}/compare") is not None
        if is_alternatives == compares:
            yield Defect(
                at, "a condition has either any_of or compare", "any_of: [...], or compare: NAME "
                f"with one of {', '.join(_RELATIONS)}", None,
            )  # fmt: skip
        elif is_alternatives:
            yield from _alternatives(view, at, clauses, op_type)
        else:
            yield from _comparison(view, at, op_type)


def _alternatives(view: SpecReader, at: str, clauses: list[str], op_type: str) -> Iterator[Defect]:
    for name in _RELATIONS:
        if view.raw(f"{at}/{name}") is not None:
            yield Defect(f"{at}/{name}", f"{name} goes with compare", "nothing beside any_of", None)
    if len(clauses) < 2:
        yield Defect(
            f"{at}/any_of", "any_of is a choice between clauses", "two clauses or more",
            len(clauses),
        )  # fmt: skip
    for clause in clauses:
        given = view.raw(clause)
        if isinstance(given, dict) and not any(given.values()):
            yield Defect(
                clause, "an alternative that demands nothing always holds, and so does any_of",
                "limits, attributes, constant_inputs or conditions", None,
            )  # fmt: skip
        yield from limits_are_ranges(view, clause)
        yield from attribute_defects(view, f"{clause}/attributes", (op_type,))
        yield from condition_defects(view, clause, op_type)


def _comparison(view: SpecReader, at: str, op_type: str) -> Iterator[Defect]:
    given = [name for name in _RELATIONS if view.raw(f"{at}/{name}") is not None]
    if len(given) != 1:
        yield Defect(
            at, f"a comparison has one relation, this one {len(given)}",
            f"one of {', '.join(_RELATIONS)}", ", ".join(given) or None,
        )  # fmt: skip
        return
    sides = (f"{at}/compare", f"{at}/{given[0]}")
    found = [defect for side in sides for defect in _side(view, side, op_type)]
    yield from found
    names = [text for side in sides for _, text in factors(view, side) if isinstance(text, str)]
    if not found and not any(is_measured(view, text) for text in names):
        yield Defect(
            at, "neither side depends on the node", "a quantity of the node on one side", None
        )


def factors(view: SpecReader, side: str) -> Iterator[tuple[str, object]]:
    """(pointer, number or name) of the factors of a side."""
    if isinstance(view.raw(side), list):
        for item in view.items(side):
            yield item, view.raw(item)
    else:
        yield side, view.raw(side)


def level_bytes(view: SpecReader, text: str) -> float | None:
    """What one instance of the level of `LEVEL.bytes` holds beside its reserve; None: no such."""
    name = text.removesuffix(BYTES_OF_LEVEL)
    level = view.names("/levels").get(name)
    if level is None or name == text:
        return None
    capacity = view.number(f"{level}/capacity_bytes")
    reserve = view.number(f"{level}/reserve_fraction") or 0.0
    return None if capacity is None else float(int(capacity * (1.0 - reserve)))


def is_number(item: object) -> TypeGuard[int | float]:
    """Whether a factor is a number that may be computed with."""
    return isinstance(item, int | float) and not isinstance(item, bool) and _LEAST <= item <= _MOST


def is_measured(view: SpecReader, text: str) -> bool:
    """Whether the factor is a quantity of the node, and none of the machine."""
    return level_bytes(view, text) is None


def _side(view: SpecReader, side: str, op_type: str) -> Iterator[Defect]:
    for at, item in factors(view, side):
        if isinstance(item, int | float) and not is_number(item):
            yield Defect(
                at, "a number of a comparison is positive, and no vast one",
                f">= {_LEAST:g} and <= {_MOST:g}", item,
            )  # fmt: skip
        elif isinstance(item, str):
            yield from _name(view, at, item, op_type)


def _name(view: SpecReader, at: str, text: str, op_type: str) -> Iterator[Defect]:
    attribute = attribute_name(text)
    if attribute is not None:
        yield from _attribute(at, text, attribute.name, attribute.element, op_type)
        return
    if text in LIMIT_NAMES or operand_name(text) is not None:
        return
    if not is_measured(view, text):
        return
    levels = [f"{name}{BYTES_OF_LEVEL}" for name in view.names("/levels")]
    known = [*LIMIT_NAMES, *levels]
    yield Defect(
        at, f"{text!r} is nothing that can be compared" + one_of(text, known),
        f"one of {', '.join(known)}, or input0.rank, .elements, .bytes, .dim0 of any input or "
        "output, or attribute.NAME", text,
    )  # fmt: skip


def _attribute(
    at: str, text: str, name: str, element: int | None, op_type: str
) -> Iterator[Defect]:
    types = attribute_types(op_type)
    if not types:  # an unknown operator is a finding of its own
        return
    kind = types.get(name)
    if kind is None:
        names = list(types)
        yield Defect(
            at, f"{op_type} has no attribute {name!r}" + one_of(name, names),
            f"one of {', '.join(names)}", text,
        )  # fmt: skip
    elif kind.rstrip("S") not in _NUMBERS:
        yield Defect(at, f"{name} of {op_type} is no number", "an attribute of numbers", text)
    elif kind.endswith("S") and element is None:
        yield Defect(
            at, f"{name} of {op_type} is a list", f"an element of it, such as {text}.0", text
        )
    elif not kind.endswith("S") and element is not None:
        yield Defect(at, f"{name} of {op_type} is one number", f"attribute.{name}", text)
