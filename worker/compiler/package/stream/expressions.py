"""Index expressions and scalar bodies as lines: one operation each, on earlier lines."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from worker.compiler.ir.affine import Affine, FloorDiv, Lookup, Mod, Var
from worker.compiler.ir.bits import held_type, load, store
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.scalar import Apply, Cast, Const, Index, Read, Scalar, Select
from worker.compiler.ir.scalar_type import YIELDS_BOOL, promoted
from worker.compiler.package.stream.records import ELEMENT_TYPES, FUNCTIONS, Op

Line = tuple[int, int, int, int, int, int, int]
"""A record of `lines`."""


def number_bits(value: float | int, dtype: DType) -> int:
    """A constant as a field holds it: an integer, of a float the bits of its f64."""
    if not dtype.is_float:
        bits = int(value) & ((1 << 64) - 1)
        return bits - (1 << 64) if bits >> 63 else bits
    number = float(value)
    if dtype is not DType.F64:
        with np.errstate(over="ignore"):
            number = float(load(store(np.asarray(number, held_type(dtype)), dtype), dtype))
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


@dataclass(slots=True)
class Expressions:
    """The expressions of one unit, each once."""

    rows: list[tuple[int, int]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    _known: dict[tuple[Line, ...], int] = field(default_factory=dict)

    def affine(self, expr: Affine, names: Mapping[str, tuple[Op, int]]) -> int:
        """Number of an index expression; `names`: what its variables are."""
        made = _Lines()
        made.affine(expr, names)
        return self._add(made)

    def body(
        self, body: Scalar, read_types: Sequence[DType], names: Mapping[str, tuple[Op, int]]
    ) -> int:
        """Number of a scalar body."""
        made = _Lines()
        made.scalar(body, tuple(read_types), lambda expr: self.affine(expr, names), {})
        return self._add(made)

    def _add(self, made: _Lines) -> int:
        key = tuple(made.lines)
        if key not in self._known:
            self._known[key] = len(self.rows)
            self.rows.append((len(self.lines), len(key)))
            self.lines += key
        return self._known[key]


class _Lines:
    """The lines of one expression."""

    def __init__(self) -> None:
        self.lines: dict[Line, int] = {}
        self.last = -1

    def line(
        self, op: int, dtype: DType, a: int = 0, b: int = 0, c: int = 0, value: int = 0
    ) -> int:
        """Number of a line, which is the expression's value if nothing follows."""
        key = int(op), ELEMENT_TYPES.index(dtype), 0, a, b, c, value
        self.last = self.lines.setdefault(key, len(self.lines))
        return self.last

    def affine(self, expr: Affine, names: Mapping[str, tuple[Op, int]]) -> int:
        total = None
        for atom, coeff in expr.terms:
            match atom:
                case Var(name):
                    op, number = names[name]
                    part = self.line(op, DType.I64, value=number)
                case FloorDiv(arg, divisor):
                    part = self.line(Op.QUOTIENT, DType.I64, self.affine(arg, names), value=divisor)
                case Mod(arg, divisor):
                    part = self.line(Op.REST, DType.I64, self.affine(arg, names), value=divisor)
                case Lookup(slot):
                    part = self.line(Op.LOOKUP, DType.I64, value=slot)
            if coeff != 1:
                part = self.line(Op.SCALE, DType.I64, part, value=coeff)
            total = part if total is None else self.line(Op.SUM, DType.I64, total, part)
        if total is None or expr.const:
            constant = self.line(Op.CONSTANT, DType.I64, value=expr.const)
            total = constant if total is None else self.line(Op.SUM, DType.I64, total, constant)
        return total

    def scalar(
        self, node: Scalar, reads: tuple[DType, ...], index: object, done: dict[Scalar, int]
    ) -> int:
        """Line of a body; equal parts are computed once, operands stand in front."""
        if node in done:
            return done[node]
        assert callable(index)
        match node:
            case Read(slot):
                found = self.line(Op.READ, promoted(reads[slot]), value=slot)
            case Const(value, dtype):
                found = self.line(Op.LITERAL, dtype, value=number_bits(value, dtype))
            case Index(affine):
                found = self.line(Op.INDEX, DType.I64, value=index(affine))
            case Cast(dtype, arg):
                found = self.scalar(arg, reads, index, done)
                if self.type_of(found) is not dtype:
                    found = self.line(Op.CAST, dtype, found)
            case Select(cond, a, b):
                where, yes, no = (self.scalar(e, reads, index, done) for e in (cond, a, b))
                found = self.line(Op.SELECT, self.type_of(yes), where, yes, no)
            case Apply(fn, args):
                parts = [self.scalar(e, reads, index, done) for e in args]
                kind = DType.BOOL if fn in YIELDS_BOOL else self.type_of(parts[0])
                op = int(Op.APPLY) + FUNCTIONS.index(fn)
                found = parts[0]
                if len(parts) == 1:
                    found = self.line(op, kind, found)
                for part in parts[1:]:
                    found = self.line(op, kind, found, part)
        done[node] = found
        return found

    def type_of(self, number: int) -> DType:
        """Of a line's result."""
        return ELEMENT_TYPES[list(self.lines)[number][1]]
