"""Patterns over ONNX nodes as values: what a target runs as one composite (BYOC section 3.1.1).

A pattern describes a value by the node that defines it, backwards from the root: the root's inputs
are patterns again, down to wildcards.  The language is that of the paper (`is_op`, `wildcard`,
`optional`), with what its users needed next: constants, attribute and type predicates,
alternatives, commutative operands, dominated paths and limits on uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from worker.compiler.ir.dtype import DType

AttributeValue: TypeAlias = "int | float | str | tuple[int, ...]"


@dataclass(frozen=True, slots=True)
class AttributeRule:
    """What one attribute of a node may be.  An absent attribute counts with its ONNX default."""

    name: str
    allowed: tuple[AttributeValue, ...] = ()
    """One of these; empty: anything inside the bounds."""
    minimum: float | None = None
    """Inclusive, for every element of a list attribute."""
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class ValueRule:
    """What a tensor must be like."""

    constant: bool | None = None
    """True: an initializer; False: computed or a model input; None: either."""
    dtypes: tuple[DType, ...] = ()
    """Empty: any."""
    rank: tuple[int, int] | None = None
    """Inclusive bounds."""
    shape: tuple[tuple[int, int] | None, ...] | None = None
    """Inclusive bounds per dimension (None: any); None: any shape."""
    uses: tuple[int, int] | None = None
    """Inclusive bounds of how many node inputs and graph outputs read the value."""


@dataclass(frozen=True, slots=True)
class AnyValue:
    """Wildcard: a value from outside the composite."""

    value: ValueRule = ValueRule()
    bind: str | None = None


@dataclass(frozen=True, slots=True)
class OpMatch:
    """A value defined by one node of the composite: its first output.

    Two places of a pattern may stand at one node.
    """

    op_types: tuple[str, ...]
    inputs: tuple[Pattern, ...] = ()
    """By position; a listed input must be there, those beyond the list are unconstrained."""
    attributes: tuple[AttributeRule, ...] = ()
    commutative: bool = False
    """The first two inputs may match in either order."""
    optional: bool = False
    """The node may be absent: then its input `through` stands in its place and under its `bind`."""
    through: int = 0
    value: ValueRule = ValueRule()
    """Of the node's first output."""
    bind: str | None = None


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The first of several patterns with which the whole match succeeds."""

    options: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class SameValue:
    """The very value bound elsewhere in the pattern under this name."""

    bind: str


@dataclass(frozen=True, slots=True)
class PathTo:
    """Zero or more nodes of `op_types`, each dominated by the next, up to `end`; longest first.

    Every node on the way has a single data operand, any others being constants, and no value on the
    way escapes: all of them join the composite (TVM's `dominates`, for a single route).
    """

    op_types: tuple[str, ...]
    end: Pattern
    max_nodes: int = 8


Pattern: TypeAlias = "AnyValue | OpMatch | Alternatives | SameValue | PathTo"


@dataclass(frozen=True, slots=True)
class PatternRule:
    """One row of a target's pattern table."""

    name: str
    root: Pattern
    priority: int = 0
    """Higher first; ties in table order."""
    intrinsic: str | None = None
    """Instruction of an engine that runs the composite; None: a composite of its own name."""
    description: str = ""
    pointer: str = ""
    """Where the row stands in the user's document."""


def op_types(pattern: Pattern) -> frozenset[str]:
    """Every op type that a pattern names."""
    match pattern:
        case OpMatch(op_types=names, inputs=inputs):
            return frozenset(names).union(*map(op_types, inputs))
        case Alternatives(options=options):
            return frozenset[str]().union(*map(op_types, options))
        case PathTo(op_types=names, end=end):
            return frozenset(names) | op_types(end)
        case _:
            return frozenset()
