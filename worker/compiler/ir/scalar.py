"""The scalar body of an operator: what happens at one point of its domain.

Semantics are numpy's on the types given: Read yields the operand's element converted to the
operator's compute type (`compute_dtype` of the op: accumulators for small types), Apply works in
that type, Cast converts explicitly (float -> int truncates toward zero and saturates).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from worker.compiler.ir.affine import Affine
from worker.compiler.ir.dtype import DType


class Fn(StrEnum):
    """Scalar functions.  Comparisons and logic yield 0/1 of BOOL."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    """Float: IEEE. Integer: truncates toward zero, as ONNX defines."""
    FLOORMOD = "floormod"
    FMOD = "fmod"
    POW = "pow"
    MAX = "max"
    """NaN if either is NaN."""
    MIN = "min"
    NEG = "neg"
    ABS = "abs"
    SIGN = "sign"
    EXP = "exp"
    LOG = "log"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    RECIPROCAL = "reciprocal"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    SINH = "sinh"
    COSH = "cosh"
    TANH = "tanh"
    ASINH = "asinh"
    ACOSH = "acosh"
    ATANH = "atanh"
    ERF = "erf"
    SIGMOID = "sigmoid"
    FLOOR = "floor"
    CEIL = "ceil"
    ROUND = "round"
    """Half to even."""
    TRUNC = "trunc"
    ISNAN = "isnan"
    ISINF = "isinf"
    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    AND = "and"
    OR = "or"
    XOR = "xor"
    NOT = "not"
    BITAND = "bitand"
    BITOR = "bitor"
    BITXOR = "bitxor"
    BITNOT = "bitnot"
    SHL = "shl"
    SHR = "shr"


@dataclass(frozen=True, slots=True)
class Read:
    """The element that read slot `slot` delivers at this point."""

    slot: int


@dataclass(frozen=True, slots=True)
class Const:
    """A literal; float values are finite or +-inf, never NaN."""

    value: float | int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Index:
    """An integer (i64) computed from the point's coordinates."""

    expr: Affine


@dataclass(frozen=True, slots=True)
class Apply:
    """fn(args...).  All arguments have one type, which is the result's unless fn yields BOOL."""

    fn: Fn
    args: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """Conversion to `dtype`."""

    dtype: DType
    arg: Scalar


@dataclass(frozen=True, slots=True)
class Select:
    """`when_true` if cond else `when_false`."""

    cond: Scalar
    when_true: Scalar
    when_false: Scalar


Scalar: TypeAlias = "Read | Const | Index | Apply | Cast | Select"


def children(expr: Scalar) -> tuple[Scalar, ...]:
    """Direct sub-expressions, left to right."""
    match expr:
        case Apply(_, args):
            return args
        case Cast(_, arg):
            return (arg,)
        case Select(cond, a, b):
            return (cond, a, b)
        case _:
            return ()


def slots_read(expr: Scalar) -> tuple[int, ...]:
    """Read slots used, ascending, each once."""
    found: set[int] = set()
    stack: list[Scalar] = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, Read):
            found.add(node.slot)
        stack.extend(children(node))
    return tuple(sorted(found))
