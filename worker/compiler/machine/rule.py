"""What an operator's row may demand beside ranges and values: comparisons, and one of several.

A comparison sets a product of quantities of the node, of its operands and of the machine against
another: `kernel_h` at most `height`, `group` equal to `in_channels`, `weight_elements` at most half
of `SRAM.bytes`, `out_channels` a multiple of 16.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from worker.compiler.machine.pattern import AttributeRule

_OPERAND = re.compile(r"^(input|output)(\d{1,2})\.(rank|elements|bytes|dim(-?\d{1,2}))$")
_ATTRIBUTE = re.compile(r"^attribute\.([A-Za-z_][A-Za-z0-9_]*)(?:\.(-?\d{1,2}))?$")
BYTES_OF_LEVEL = ".bytes"
"""Behind the name of a memory level: what one instance of it holds beside its reserve."""


class Relation(StrEnum):
    """How the left side of a comparison stands to the right one."""

    AT_MOST = "at_most"
    AT_LEAST = "at_least"
    EQUALS = "equals"
    MULTIPLE_OF = "multiple_of"


@dataclass(frozen=True, slots=True)
class OperandName:
    """`input1.dim0`: a figure of one input or output."""

    is_input: bool
    position: int
    figure: str
    """`rank`, `elements`, `bytes` (as stored: of a quantised operand its integers) or `dim`."""
    axis: int = 0
    """Of `dim`; negative ones count from the end."""


@dataclass(frozen=True, slots=True)
class AttributeName:
    """`attribute.axis`, `attribute.pads.0`: a number among the attributes."""

    name: str
    element: int | None = None
    """Of a list attribute; negative ones count from the end."""


def operand_name(text: str) -> OperandName | None:
    """Read a factor as a figure of an operand; None: it is none."""
    found = _OPERAND.match(text)
    if found is None:
        return None
    side, position, figure, axis = found.groups()
    kind = "dim" if axis is not None else figure
    return OperandName(side == "input", int(position), kind, int(axis or 0))


def attribute_name(text: str) -> AttributeName | None:
    """Read a factor as an attribute; None: it is none."""
    found = _ATTRIBUTE.match(text)
    if found is None:
        return None
    name, element = found.groups()
    return AttributeName(name, None if element is None else int(element))


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of a side."""

    text: str
    """As the spec has it."""
    value: float | None
    """A number of the spec or of the machine; None: measured of the node."""


Term: TypeAlias = "tuple[Factor, ...]"
"""The product of some factors."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One side against another.  A node that lacks a quantity of it is not concerned."""

    left: Term
    relation: Relation
    right: Term
    pointer: str = ""
    """Where it stands in the user's document."""


@dataclass(frozen=True, slots=True)
class Clause:
    """Demands that hold together."""

    limits: tuple[tuple[str, int, int], ...] = ()
    """(derived quantity, minimum, maximum)."""
    attributes: tuple[AttributeRule, ...] = ()
    constant_inputs: tuple[int, ...] = ()
    conditions: tuple[Condition, ...] = ()
    pointer: str = ""
    """Where it stands in the user's document."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One clause at least must hold."""

    clauses: tuple[Clause, ...]
    pointer: str = ""


Condition: TypeAlias = "Comparison | AnyOf"
