"""Which operator bodies a fused output stage runs in one pass, and how many elements a cycle.

Units behind an array (NVDLA's SDP, the output unit of Ethos-U, a TPU's activation unit) take an
element a lane through a fixed chain: operands are scaled, combined, biased, rescaled, limited,
rounded and saturated, each at most once.  Their rates are elements per cycle, however many of these
an element needs.  An operator is such a pass when its body, read from its root, is

    value    := a read of data, an element for each point
              | value * p, value / p                      REQUANTISE, before the rounding
              | value + c, value - c                      REQUANTISE (before the rounding, or whole)
              | value + b, value - b                      BIAS, before the rounding
              | value + value, value - value              ADD where both were multiplied by the same
                                                          constants, else ADD_SCALED: of different
                                                          reads, before any limit
              | value * value                             MULTIPLY, likewise of different reads
              | max(value, c), min(value, c)              ACTIVATION, one of each
              | select(value < 0, value * p, value)       ACTIVATION, one: another slope on one side
              | round(value), floor, ceil, trunc          REQUANTISE, one rounding
              | cast(value)                               REQUANTISE; at the root to integers: the
                                                          rounding, unless done, and saturation

    p, b, c  := parameters: of constants (c), or reads of one value per channel as well (p, b)

or a sum, minimum or maximum over axes of one read less a constant (POOL), or any function of one
element of at most 8 bits that gives one (LOOKUP).  A change of format on the write is REQUANTISE.
What scales an operand of its own can also leave it, so ADD may run as ADD_SCALED.
All else, and a mere copy, is no pass.

A read is data when it varies with every axis that has more than one position; it is a parameter
when it varies along one dimension of its tensor, and with fewer axes than the result does or in a
tensor of lower rank (a result of one row has as many elements as channels).  Which dimension holds
the channels is not known here: a value per row counts as well.

Whether a pass follows a contraction makes no difference to its rate (decision 0043).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import nan

from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Access, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import (
    Apply,
    Cast,
    Const,
    Fn,
    Index,
    Read,
    Scalar,
    Select,
    children,
    slots_read,
)
from worker.compiler.ir.scalar_type import scalar_type
from worker.compiler.machine.machine import Engine, StageOperation

_ROUNDING = (Fn.ROUND, Fn.FLOOR, Fn.CEIL, Fn.TRUNC)
_COMPARISONS = (Fn.LT, Fn.LE, Fn.GT, Fn.GE)
_LOOKUP_BITS = 8
_BIAS, _REQUANTISE, _ACTIVATION = (
    StageOperation.BIAS, StageOperation.REQUANTISE, StageOperation.ACTIVATION,
)  # fmt: skip


def stage_rate(op: TensorOp, engine: Engine, tensors: Mapping[str, Tensor]) -> float:
    """Points of `op` per cycle in the output stage of `engine`; 0: it is no pass of that stage.

    The slowest of the operations that it needs, in the narrowest format among its data and its
    result.  Others of its formats are that one's accumulator, or have a rate as well.
    """
    stage = engine.output_stage
    if not stage:
        return 0.0
    types = tuple(tensors[access.tensor].dtype for access in (*op.reads, op.write))
    data, passes = stage_passes(op, types)
    formats = (types[-1], *(types[slot] for slot in data))
    narrow = min(formats, key=lambda dtype: dtype.bits)

    def speed(needed: frozenset[StageOperation]) -> float:
        return min(_rate(stage.get(name, {}), narrow, formats) for name in needed)

    return max(map(speed, passes), default=0.0)


def _rate(rates: Mapping[DType, float], narrow: DType, formats: tuple[DType, ...]) -> float:
    fits = all(dtype is narrow.accumulator or dtype in rates for dtype in formats)
    return rates.get(narrow, 0.0) if fits else 0.0


Passes = tuple[frozenset[StageOperation], ...]


@lru_cache(maxsize=4096)
def stage_passes(op: TensorOp, types: tuple[DType, ...]) -> tuple[tuple[int, ...], Passes]:
    """(slots of data, ways to run `op` as one pass by the operations that each needs).

    `types` of the reads and the write.  Cost: linear in the body.
    """
    if op.has_lookup:
        return (), ()
    busy = frozenset(axis.name for axis in op.domain if axis.extent > 1)
    slots = slots_read(op.body)
    data = tuple(k for k in slots if busy <= _axes(op.reads[k]))
    result = busy & _axes(op.write)
    parameters = frozenset(k for k in slots if _is_parameter(op.reads[k], op.write, result))
    data = tuple(k for k in data if k not in parameters)
    if not data or len(data) + len(parameters) < len(slots):
        return (), ()
    try:
        value = _Walk(types[:-1], frozenset(data)).root(op.body)
    except _OutsideError:
        value = None
    if op.reduce is not None:
        is_pool = bool(op.reduce_axes) and op.reduce is not Reduce.MUL and not parameters
        is_plain = value is not None and value.needs <= {_REQUANTISE} and not value.is_rounded
        return data, (frozenset({StageOperation.POOL}),) if is_pool and is_plain else ()
    found: list[frozenset[StageOperation]] = []
    if value is not None:
        needs = value.needs | ({_REQUANTISE} if types[-1] is not types[data[0]] else set())
        found += [needs] if needs else []
        if StageOperation.ADD in needs:
            found.append(needs - {StageOperation.ADD} | {StageOperation.ADD_SCALED})
    if _is_table(op.body, slots, types):
        found.append(frozenset({StageOperation.LOOKUP}))
    return data, tuple(found)


def _axes(access: Access) -> frozenset[str]:
    return frozenset(name for expr in access.index for name in expr.variables())


def _is_parameter(access: Access, write: Access, result: frozenset[str]) -> bool:
    varying = sum(bool(expr.variables()) for expr in access.index)
    is_less = len(_axes(access) & result) < len(result) or len(access.index) < len(write.index)
    return varying <= 1 and is_less


def _is_table(body: Scalar, slots: tuple[int, ...], types: tuple[DType, ...]) -> bool:
    """Whether the result is a function of one narrow element, and of nothing else."""
    if isinstance(body, Read) or len(slots) != 1 or _has_index(body):
        return False
    ends = (types[slots[0]], types[-1])
    return all(dtype.bits <= _LOOKUP_BITS and dtype is not DType.BOOL for dtype in ends)


def _has_index(expr: Scalar) -> bool:
    return isinstance(expr, Index) or any(_has_index(child) for child in children(expr))


class _OutsideError(Exception):
    """The body does what no stage does in one pass."""


@dataclass(frozen=True, slots=True)
class _Value:
    """What has been done to the elements so far."""

    slots: frozenset[int] = frozenset()
    """Reads of data that it depends on; none: a parameter."""
    needs: frozenset[StageOperation] = frozenset()
    is_constant: bool = False
    """Of a parameter: the same for all elements."""
    factor: float = 1.0
    """What it was multiplied by; NaN, which equals nothing: not by literals alone."""
    is_rounded: bool = False
    num_biases: int = 0
    num_joins: int = 0
    num_lows: int = 0
    num_highs: int = 0
    num_slopes: int = 0

    @property
    def is_limited(self) -> bool:
        return self.num_lows + self.num_highs + self.num_slopes > 0

    def doing(self, operation: StageOperation) -> _Value:
        return replace(self, needs=self.needs | {operation})

    def checked(self) -> _Value:
        """Raises where something is done twice."""
        done = (
            self.num_biases, self.num_joins, self.num_lows, self.num_highs, self.num_slopes,
        )  # fmt: skip
        if max(done) > 1:
            raise _OutsideError
        return self


@dataclass(frozen=True, slots=True)
class _Walk:
    """Reads a body from its leaves."""

    types: tuple[DType, ...]
    data: frozenset[int]

    def root(self, body: Scalar) -> _Value:
        if isinstance(body, Cast) and not body.dtype.is_float:
            return self._to_integer(self.value(body.arg), body.arg)
        return self._data(self.value(body))

    def value(self, expr: Scalar) -> _Value:
        match expr:
            case Read(slot):
                return _Value(frozenset({slot}) if slot in self.data else frozenset())
            case Const():
                return _Value(is_constant=True)
            case Cast(dtype, arg):
                return self._cast(dtype, arg)
            case Select(cond, above, below):
                return self._select(cond, above, below)
            case Apply(fn, args):
                return self._apply(fn, args).checked()
            case _:
                raise _OutsideError

    def _data(self, value: _Value) -> _Value:
        if not value.slots:
            raise _OutsideError
        return value

    def _cast(self, dtype: DType, arg: Scalar) -> _Value:
        value = self.value(arg)
        if not value.slots:
            return value
        if not dtype.is_float:
            is_wider = dtype.bits >= DType.I32.bits and not self._type(arg).is_float
            if not is_wider:
                raise _OutsideError  # saturates or rounds in the middle
        return value.doing(_REQUANTISE)

    def _to_integer(self, value: _Value, arg: Scalar) -> _Value:
        self._data(value)
        return replace(value.doing(_REQUANTISE), is_rounded=True)

    def _type(self, expr: Scalar) -> DType:
        return scalar_type(expr, self.types)

    def _apply(self, fn: Fn, args: tuple[Scalar, ...]) -> _Value:
        values = [self.value(arg) for arg in args]
        if not any(value.slots for value in values):
            return _Value(is_constant=all(value.is_constant for value in values))
        if fn in _ROUNDING:
            return replace(values[0].doing(_REQUANTISE), is_rounded=True)
        if len(args) != 2 or fn not in (Fn.ADD, Fn.SUB, Fn.MUL, Fn.DIV, Fn.MAX, Fn.MIN):
            raise _OutsideError
        left, right = values
        if left.slots and right.slots:
            return self._join(fn, left, right)
        is_left = bool(left.slots)
        value, other = (left, right) if is_left else (right, left)
        if fn in (Fn.SUB, Fn.DIV) and not is_left:
            raise _OutsideError
        return self._by_parameter(fn, value, other, args[is_left])

    def _by_parameter(self, fn: Fn, value: _Value, other: _Value, parameter: Scalar) -> _Value:
        match fn:
            case Fn.MAX | Fn.MIN if other.is_constant:
                lows, highs = fn is Fn.MAX, fn is Fn.MIN
                return replace(
                    value.doing(_ACTIVATION), num_lows=value.num_lows + lows,
                    num_highs=value.num_highs + highs,
                )  # fmt: skip
            case Fn.ADD | Fn.SUB if other.is_constant:
                if value.is_rounded and not _is_whole(parameter):
                    raise _OutsideError
                return value.doing(_REQUANTISE)
            case Fn.ADD | Fn.SUB if not value.is_rounded:
                return replace(value.doing(_BIAS), num_biases=value.num_biases + 1)
            case Fn.MUL | Fn.DIV if not value.is_rounded:
                if fn is Fn.DIV and not self._type(parameter).is_float:
                    raise _OutsideError  # rounds
                literal = _literal(parameter)
                if fn is Fn.DIV:
                    literal = 1 / literal if literal else nan
                return replace(value.doing(_REQUANTISE), factor=value.factor * literal)
            case _:
                raise _OutsideError

    def _join(self, fn: Fn, left: _Value, right: _Value) -> _Value:
        is_raw = not any(v.is_rounded or v.is_limited or v.num_joins for v in (left, right))
        added = StageOperation.ADD if left.factor == right.factor else StageOperation.ADD_SCALED
        kinds = {Fn.ADD: added, Fn.SUB: added, Fn.MUL: StageOperation.MULTIPLY}
        if fn not in kinds or not is_raw or left.slots & right.slots:
            raise _OutsideError
        return _Value(
            left.slots | right.slots, left.needs | right.needs | {kinds[fn]},
            num_biases=max(left.num_biases, right.num_biases), num_joins=1,
        )  # fmt: skip

    def _select(self, cond: Scalar, *branches: Scalar) -> _Value:
        if not isinstance(cond, Apply) or cond.fn not in _COMPARISONS or not _is_zero(cond.args[1]):
            raise _OutsideError
        base = cond.args[0]
        value = self._data(self.value(base))
        if value.is_rounded or value.is_limited or base not in branches:
            raise _OutsideError
        for branch in branches:
            if branch != base and not self._is_multiple(branch, base):
                raise _OutsideError
        return replace(value.doing(_ACTIVATION), num_slopes=1)

    def _is_multiple(self, branch: Scalar, base: Scalar) -> bool:
        if not isinstance(branch, Apply) or branch.fn is not Fn.MUL or base not in branch.args:
            return False
        factor = branch.args[branch.args[0] == base]
        return not self.value(factor).slots


def _is_zero(expr: Scalar) -> bool:
    return _literal(expr) == 0


def _is_whole(expr: Scalar) -> bool:
    """Whether a parameter is a literal without a fraction."""
    return _literal(expr).is_integer()


def _literal(expr: Scalar) -> float:
    """The number of a literal, whatever type it is in; NaN: it is none."""
    while isinstance(expr, Cast):
        expr = expr.arg
    return float(expr.value) if isinstance(expr, Const) else nan
