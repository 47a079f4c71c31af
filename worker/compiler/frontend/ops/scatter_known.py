"""Scatters whose indices are constants: every place knows its updates.

What exporters write for an assignment to a slice, and the edges of a fixed mesh.  Each element
gathers the updates of its place from a table, as many as the busiest place has, in their order; so
the cost grows with the result and not with places times updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.frontend.ops.body import call as apply
from worker.compiler.frontend.ops.body import lit, select
from worker.compiler.frontend.ops.call import Call
from worker.compiler.frontend.ops.nest import Nest
from worker.compiler.frontend.ops.refusal import shape_mismatch
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Fn, Scalar
from worker.compiler.ir.scalar_type import promoted

MAX_TABLE_ELEMS = 1 << 24
"""Of the table of updates by place, which is a constant of the kernel."""
COMBINE = {Reduce.ADD: Fn.ADD, Reduce.MUL: Fn.MUL, Reduce.MAX: Fn.MAX, Reduce.MIN: Fn.MIN}

Update: TypeAlias = "Callable[[Nest, Sequence[Affine], Affine], Scalar]"
"""Update r at the element at `index`: (nest, index, r)."""


def known_places(call: Call, extents: Sequence[int]) -> npt.NDArray[np.int64]:
    """Constant indices (input 1), the last dimension of which has a coordinate per extent.

    Raises:
        Refusal: an index outside its extent.
    """
    values = call.array(1).astype(np.int64)
    ends = np.asarray(extents, np.int64)
    wrapped: npt.NDArray[np.int64] = np.where(values < 0, values + ends, values)
    outside = (wrapped < 0) | (wrapped >= ends)
    if outside.any():
        raise shape_mismatch(f"{call.node.op_type} at index {values[outside][0]} of {extents}")
    return wrapped


def updates_of_places(
    places: npt.NDArray[np.int64], updates: npt.NDArray[np.int64], count: int, *, is_last: bool
) -> npt.NDArray[np.int32] | None:
    """Updates by place, -1 where a place has no more.  Shapes: [count, most updates of a place].

    `places` and `updates` are parallel: an update and where it goes.  `is_last`: only the last one
    of a place counts.  None when the table would be too large.
    """
    if is_last:
        if count > MAX_TABLE_ELEMS:
            return None
        table = np.full((count, 1), -1, np.int32)
        table[places, 0] = updates  # numpy assigns in order: the last one stays
        return table
    number = np.bincount(places, minlength=count)
    most = int(number.max(initial=0))
    if count * max(most, 1) > MAX_TABLE_ELEMS:
        return None
    order = np.argsort(places, kind="stable")
    first = np.cumsum(number) - number
    slot = np.arange(len(places)) - first[places[order]]
    table = np.full((count, max(most, 1)), -1, np.int32)
    table[places[order], slot] = updates[order]
    return table


def place_known(
    call: Call,
    out: Tensor,
    x: Tensor,
    scattered: tuple[int, ...],
    table: npt.NDArray[np.int32],
    update: Update,
    reduce: Reduce | None,
) -> None:
    """out = x with the updates of `table` put in, or combined with it.

    The rows of `table` are the row-major places of x's leading dimensions `scattered`.
    """
    most = table.shape[1]
    shape = (*scattered, most)
    chosen = call.constant("chosen", shape, DType.I32, lambda: _of(np.maximum(table, 0), shape))
    is_there = call.constant("there", shape, DType.BOOL, lambda: _of(table >= 0, shape))
    kind = promoted(x.dtype)

    def picked(nest: Nest, index: Sequence[Affine], k: Affine, otherwise: Scalar) -> Scalar:
        spot = (*index[: len(scattered)], k)
        place = nest.lookup(chosen, spot)
        return select(nest.read(is_there, spot), update(nest, index, place), otherwise)

    if most == 1:
        nest = call.nest()
        index = nest.axes("i", x.shape)
        here = nest.read(x, index)
        if reduce is None:
            value = picked(nest, index, Affine.of(0), here)
        else:
            neutral = lit(reduce.identity(kind), kind)
            value = apply(COMBINE[reduce], here, picked(nest, index, Affine.of(0), neutral))
        nest.write(out, index, value)
        return
    assert reduce is not None
    total = call.temp("updates", x.shape, kind)
    nest = call.nest()
    index = nest.axes("i", x.shape)
    (k,) = nest.reduce_axes("r", (most,))
    nest.write(total, index, picked(nest, index, k, lit(reduce.identity(kind), kind)), reduce)
    nest = call.nest()
    index = nest.axes("i", x.shape)
    nest.write(out, index, apply(COMBINE[reduce], nest.read(x, index), nest.read(total, index)))


def _of(values: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    assert values.size == prod(shape)
    return values.reshape(shape)
