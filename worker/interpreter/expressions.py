"""Values of a stream's expressions, line by line."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worker.compiler.errors import MemoryFault
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.scalar import Fn
from worker.compiler.package.stream.records import ELEMENT_TYPES, FUNCTIONS, Op
from worker.compiler.package.unit_tasks import UnitTasks
from worker.interpreter.values import Array, apply, convert, held, select

Range = tuple[int, int]
_FIRST_FUNCTION = int(Op.APPLY)


@dataclass(frozen=True, slots=True)
class Line:
    """One operation."""

    op: int
    type: DType
    a: int
    b: int
    c: int
    value: int


@dataclass(slots=True)
class Point:
    """What expressions refer to; arrays broadcast with each other."""

    counters: Sequence[int]
    coordinates: Sequence[Array]
    reads: list[Array]


def constant(value: int, dtype: DType) -> Array:
    """A field's constant: an integer, of a float the bits of its f64."""
    if dtype.is_float:
        return np.array(struct.unpack("<d", struct.pack("<q", value))[0], dtype=held(dtype))
    low = value & ((1 << (8 * held(dtype).itemsize)) - 1)
    size = held(dtype).itemsize
    return np.frombuffer(low.to_bytes(size, "little"), dtype=held(dtype))[0:1].reshape(())


class Expressions:
    """All expressions of a unit."""

    def __init__(self, tasks: UnitTasks) -> None:
        lines = [
            Line(op, ELEMENT_TYPES[kind], a, b, c, value)
            for op, kind, _, a, b, c, value in tasks.tables["lines"].tolist()
        ]
        self._all = [
            lines[first : first + count] for first, count in tasks.tables["expressions"].tolist()
        ]

    def lines(self, number: int) -> Sequence[Line]:
        return self._all[number]

    def integer(self, number: int, counters: Sequence[int]) -> int:
        """An index expression of counters alone."""
        return int(self.value(number, Point(counters, (), [])))

    def value(self, number: int, point: Point) -> Array:
        """The value of an expression."""
        return self.values(number, point)[-1]

    def values(self, number: int, point: Point) -> list[Array]:
        """Of each line of an expression."""
        done: list[Array] = []
        lines = self._all[number]
        for line in lines:
            done.append(self._line(line, lines, done, point))
        return done

    def _line(self, line: Line, lines: Sequence[Line], done: list[Array], point: Point) -> Array:
        match line.op:
            case Op.CONSTANT:
                return np.array(line.value, dtype=np.int64)
            case Op.COUNTER:
                return np.array(point.counters[line.value], dtype=np.int64)
            case Op.COORDINATE:
                return point.coordinates[line.value]
            case Op.LOOKUP:
                return point.reads[line.value].astype(np.int64)
            case Op.SCALE:
                return done[line.a] * line.value
            case Op.SUM:
                return done[line.a] + done[line.b]
            case Op.QUOTIENT:
                return done[line.a] // line.value
            case Op.REST:
                return done[line.a] % line.value
            case Op.READ:
                return point.reads[line.value]
            case Op.LITERAL:
                return constant(line.value, line.type)
            case Op.INDEX:
                return self.value(line.value, point)
            case Op.CAST:
                return convert(done[line.a], lines[line.a].type, line.type)
            case Op.SELECT:
                return select(done[line.a], done[line.b], done[line.c])
        function = FUNCTIONS[line.op - _FIRST_FUNCTION]
        args = (done[line.a],) if is_unary(line) else (done[line.a], done[line.b])
        return apply(function, lines[line.a].type, *args)

    def bounds(self, number: int, ranges: Sequence[Range]) -> Range | None:
        """Inclusive bounds of an index expression over ranges of coordinates; None: it depends on
        what is read."""
        done: list[Range] = []
        for line in self._all[number]:
            match line.op:
                case Op.CONSTANT:
                    found = line.value, line.value
                case Op.COORDINATE:
                    found = ranges[line.value]
                case Op.SCALE:
                    ends = [end * line.value for end in done[line.a]]
                    found = min(ends), max(ends)
                case Op.SUM:
                    (a, b), (c, d) = done[line.a], done[line.b]
                    found = a + c, b + d
                case Op.QUOTIENT:
                    low, high = done[line.a]
                    found = low // line.value, high // line.value
                case Op.REST:
                    low, high = done[line.a]
                    found = 0, line.value - 1
                    if low // line.value == high // line.value:
                        found = low % line.value, high % line.value
                case Op.LOOKUP:
                    return None
                case _:
                    raise MemoryFault(f"expression {number} is no index")
            done.append(found)
        return done[-1]


_BINARY = frozenset(
    (
        Fn.ADD, Fn.SUB, Fn.MUL, Fn.DIV, Fn.FLOORMOD, Fn.FMOD, Fn.POW, Fn.MAX, Fn.MIN, Fn.EQ,
        Fn.NE, Fn.LT, Fn.LE, Fn.GT, Fn.GE, Fn.AND, Fn.OR, Fn.XOR, Fn.BITAND, Fn.BITOR,
        Fn.BITXOR, Fn.SHL, Fn.SHR,
    )
)  # fmt: skip


def is_unary(line: Line) -> bool:
    """Whether a function has one argument."""
    return FUNCTIONS[line.op - _FIRST_FUNCTION] not in _BINARY
