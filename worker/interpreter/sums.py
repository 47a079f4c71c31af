"""Reductions in the order that a stream says."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce
from worker.compiler.isa.sums import OrderKind
from worker.interpreter.values import REDUCING, Array, apply, fused, held


@dataclass(frozen=True, slots=True)
class Order:
    """How a leaf reduces."""

    kind: OrderKind
    sizes: tuple[int, ...]
    """Of its groups, as they are at this iteration."""
    width: int
    run: int
    around: int


def combine(reduce: Reduce, dtype: DType, total: Array, values: Array) -> Array:
    """One step, element by element."""
    return apply(REDUCING[reduce], dtype, total, values)


def identity(reduce: Reduce, dtype: DType) -> Array:
    """What changes nothing."""
    return np.array(reduce.identity(dtype), dtype=held(dtype))


def in_sequence(reduce: Reduce, dtype: DType, total: Array, values: Array) -> Array:
    """`values` [..., n] into `total` [...], one after another."""
    if not values.shape[-1]:
        return total
    if reduce is Reduce.ADD and dtype in (DType.F32, DType.F64, DType.I32, DType.I64):
        total = np.broadcast_to(total, values.shape[:-1])
        both = np.concatenate([total[..., None], values], axis=-1)
        with np.errstate(all="ignore"):
            return np.asarray(np.add.accumulate(both, axis=-1)[..., -1])
    for k in range(values.shape[-1]):
        total = combine(reduce, dtype, total, values[..., k])
    return total


def reduced(reduce: Reduce, dtype: DType, old: Array, values: Array, order: Order) -> Array:
    """`values` [..., all that is reduced, in the order's sequence] into `old` [...]."""
    if order.kind is not OrderKind.LANES:
        return in_sequence(reduce, dtype, old, values)
    shape = values.shape[:-1]
    passes, inner = values.reshape(*shape, -1, order.sizes[-1]), order.sizes[-1]
    if not order.run:
        return _by_lanes(reduce, dtype, old, passes, order.width)
    outside = prod(order.sizes[: order.around])
    total = old
    for number in range(outside):
        within = passes.reshape(*shape, outside, -1, inner)[..., number, :, :]
        for begin in range(0, inner, order.run):
            part = within[..., begin : begin + order.run]
            start = np.broadcast_to(identity(reduce, dtype), shape)
            run = _by_lanes(reduce, dtype, start, part, order.width)
            total = combine(reduce, dtype, total, run)
    return total


def _by_lanes(reduce: Reduce, dtype: DType, into: Array, passes: Array, width: int) -> Array:
    """`passes` [..., passes, elements] by `width` running values; what is left of each pass goes
    into the total at once, the running values at the end."""
    shape, (many, count) = passes.shape[:-2], passes.shape[-2:]
    whole = count // width * width
    blocks = passes[..., :whole].reshape(*shape, many * (whole // width), width)
    start = np.broadcast_to(identity(reduce, dtype), (*shape, width))
    lanes = in_sequence(reduce, dtype, start, np.moveaxis(blocks, -2, -1))
    rest = passes[..., whole:].reshape(*shape, many * (count - whole))
    total = in_sequence(reduce, dtype, into, rest)
    return in_sequence(reduce, dtype, total, lanes)


def of_products(
    dtype: DType, old: Array, left: Array, right: Array, width: int, is_fused: bool
) -> Array:
    """Sum of left * right, both [..., n], into `old`; floats with one rounding if `is_fused`."""
    count = max(left.shape[-1], right.shape[-1])

    def at(side: Array, k: int) -> Array:
        return side[..., k if side.shape[-1] > 1 else 0]

    shape = np.broadcast_shapes(left.shape[:-1], right.shape[:-1])
    total = np.zeros(shape, dtype=held(dtype))
    with np.errstate(all="ignore"):
        for begin in range(0, count, width):
            part = np.zeros(shape, dtype=held(dtype))
            for k in range(begin, min(begin + width, count)):
                a, b = at(left, k), at(right, k)
                if dtype.is_float and is_fused:
                    part = fused(*np.broadcast_arrays(a, b, part))
                else:
                    part = a * b + part
            total = total + part
    return combine(Reduce.ADD, dtype, old, total)
