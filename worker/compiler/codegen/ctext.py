"""C text: types, literals, comments, index expressions, and an indenting writer.

No identifier in generated C comes from a user's name; names reach the text only through `comment`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from worker.compiler.ir.affine import Affine, FloorDiv, Interval, Lookup, Mod, Var
from worker.compiler.ir.bits import held_type, load, store
from worker.compiler.ir.dtype import DType

VALUE_TYPE: dict[DType, str] = {
    DType.F64: "double", DType.F32: "float", DType.F16: "float", DType.BF16: "float",
    DType.I64: "int64_t", DType.I32: "int32_t", DType.I16: "int16_t", DType.I8: "int8_t",
    DType.U64: "uint64_t", DType.U32: "uint32_t", DType.U16: "uint16_t", DType.U8: "uint8_t",
    DType.BOOL: "uint8_t", DType.I4: "int8_t", DType.U4: "uint8_t", DType.I2: "int8_t",
    DType.U2: "uint8_t", **{dtype: "float" for dtype in DType if dtype.is_narrow_float},
}  # fmt: skip
"""C type in which a value of the dtype is held while computing."""

STORAGE_TYPE: dict[DType, str] = {
    **VALUE_TYPE,
    DType.F16: "uint16_t",
    DType.BF16: "uint16_t",
    **{dtype: "uint8_t" for dtype in DType if dtype.is_narrow_float},
}
"""C type of an element in memory."""

_SAFE = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _.,:;=+-<>()[]|%#@/"
)


def comment(text: str) -> str:
    """A one-line C comment.  Whatever could end it, continue it or start a trigraph becomes `_`."""
    kept = "".join(c if c in _SAFE else "_" for c in text)
    return f"/* {kept.replace('//', '/ /')[:160]} */"


def literal(value: float | int, dtype: DType) -> str:
    """An expression of type `VALUE_TYPE[dtype]` with exactly this value.

    Floats are rounded to the dtype first and printed as hexadecimal literals, so nothing is lost.
    """
    if dtype is DType.BOOL:
        return "(uint8_t)1" if value else "(uint8_t)0"
    if not dtype.is_float:
        return _integer(int(value), dtype)
    number = float(value)
    if dtype is not DType.F64:
        with np.errstate(over="ignore"):
            rounded = load(store(np.asarray(number, held_type(dtype)), dtype), dtype)
        number = float(rounded)
    if math.isinf(number):
        text = "INFINITY" if number > 0 else "-INFINITY"
        return f"({VALUE_TYPE[dtype]}){text}"
    suffix = "" if dtype is DType.F64 else "f"
    text = f"{number.hex()}{suffix}"
    return f"({text})" if text.startswith("-") else text


def _integer(value: int, dtype: DType) -> str:
    bits = dtype.bits
    value &= (1 << bits) - 1
    if dtype.is_signed and value >= 1 << (bits - 1):
        value -= 1 << bits
    name = VALUE_TYPE[dtype]
    if dtype is DType.I64 and value == -(1 << 63):
        return "INT64_MIN"
    suffix = "u" if value >= 1 << 63 else ""
    return f"({name}){value}{suffix}" if value >= 0 else f"({name})({value})"


def bounds(expr: Affine, ranges: Mapping[str, Interval]) -> Interval | None:
    """Inclusive bounds, or None when a variable or a looked-up index has no known range."""
    if expr.has_lookup or any(v not in ranges for v in expr.variables()):
        return None
    low, high, _ = expr.bounds(ranges)
    return low, high


def index_text(
    expr: Affine, ranges: Mapping[str, Interval], lookups: Mapping[int, str] | None = None
) -> str:
    """An int64 C expression for `expr`, whose variables are C identifiers.

    `//` and `%` become plain C operators where the argument is known not to be negative.
    """
    parts: list[str] = []
    for atom, coeff in expr.terms:
        match atom:
            case Var(name):
                text = name
            case FloorDiv(arg, divisor):
                text = _divided("/", "tw_floordiv", arg, divisor, ranges, lookups)
            case Mod(arg, divisor):
                text = _divided("%", "tw_mod", arg, divisor, ranges, lookups)
            case Lookup(slot):
                text = (lookups or {})[slot]
        parts.append(text if coeff == 1 else f"{coeff} * {text}")
    if expr.const or not parts:
        parts.append(str(expr.const))
    joined = " + ".join(parts).replace("+ -", "- ")
    return joined if len(parts) == 1 and " " not in joined else f"({joined})"


def _divided(
    operator: str,
    function: str,
    arg: Affine,
    divisor: int,
    ranges: Mapping[str, Interval],
    lookups: Mapping[int, str] | None,
) -> str:
    inner = index_text(arg, ranges, lookups)
    known = bounds(arg, ranges)
    if known is None or known[0] < 0:
        return f"{function}({inner}, {divisor})"
    if known[1] < 1 << 32:  # 32-bit division is several times faster and vectorises
        return f"(int64_t)((uint32_t){inner} {operator} {divisor}u)"
    return f"({inner} {operator} {divisor})"


class Writer:
    """Lines of C with their depth of nesting."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, str]] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        """Append one line."""
        self._lines.append((self._depth, text))

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent what is written inside `head { ... }`."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    @contextmanager
    def loop(self, name: str, count: str) -> Iterator[None]:
        """`name` runs over 0 .. count-1."""
        with self.block(f"for (int64_t {name} = 0; {name} < {count}; ++{name})"):
            yield

    def fresh(self, prefix: str) -> str:
        """A new identifier."""
        self._names += 1
        return f"{prefix}{self._names}"

    @property
    def num_lines(self) -> int:
        """Lines written so far."""
        return len(self._lines)

    def cut(self, start: int) -> list[str]:
        """Take out the lines from number `start` on, indented as the body of a function."""
        taken = self._lines[start:]
        del self._lines[start:]
        return [_indented(depth - self._depth + 1, text) for depth, text in taken]

    def text(self) -> str:
        """Everything written so far."""
        return "\n".join(_indented(depth, text) for depth, text in self._lines) + "\n"


def _indented(depth: int, text: str) -> str:
    return "    " * depth + text
