"""ScatterElements, ScatterND, TensorScatter: places written that are data.

An operator of the algebra writes at affine places, so every element of the result asks which update
is its own: a reduction over the updates that compares indices with the element's coordinates.  Of
updates with one place the last one counts, as when they are written in order.
Cost: elements of the data's scattered dimensions times updates; hence the limit.  Where the indices
are constants nothing is compared (`scatter_known`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

import numpy as np

from worker.compiler.frontend.ops.body import call as apply
from worker.compiler.frontend.ops.body import less, lit, select, sub
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.gather import coordinate_tables, valid_indices
from worker.compiler.frontend.ops.nest import Nest
from worker.compiler.frontend.ops.reduce import normal_axis
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch
from worker.compiler.frontend.ops.scatter_known import (
    COMBINE,
    known_places,
    place_known,
    updates_of_places,
)
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Cast, Fn, Index, Scalar
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.rejection import ReasonCode

MAX_COMPARISONS = 1 << 30
"""Pairs of a place and an update that one operator may compare."""

_REDUCTIONS = {
    "none": None, "add": Reduce.ADD, "mul": Reduce.MUL, "max": Reduce.MAX, "min": Reduce.MIN,
}  # fmt: skip


def _reduction(call: Call, dtype: DType) -> Reduce | None:
    reduce = _REDUCTIONS[call.attrs.choice("reduction", "none", tuple(_REDUCTIONS))]
    if reduce is not None and dtype is DType.BOOL:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"{call.node.op_type} adds up bool")
    return reduce


def require_comparisons(call: Call, count: int) -> None:
    """Refuse an operator that would compare more pairs than a device should be asked to."""
    if count > MAX_COMPARISONS:
        raise Refusal(
            ReasonCode.SIZE_LIMIT,
            f"{call.node.op_type} compares {count} pairs of places; the limit is {MAX_COMPARISONS}",
        )


def scatter_elements(call: Call) -> None:
    """ScatterElements (Scatter before opset 11): one update per index, along one axis."""
    x, shape = call.tensor(0), call.shape(1)
    axis = normal_axis(call.attrs.integer("axis", 0), len(x.shape))
    if (
        len(shape) != len(x.shape)
        or call.shape(2) != shape
        or any(shape[d] > x.shape[d] for d in range(len(shape)) if d != axis)
    ):
        raise shape_mismatch(
            f"{call.node.op_type} of {call.shape(2)} by indices of {shape} into {x.shape}"
        )
    if call.dtype(2) is not x.dtype:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"updates of {call.dtype(2)} for {x.dtype}")
    reduce = _reduction(call, x.dtype)
    updates = call.tensor(2)

    def spot(index: Sequence[Affine], r: Affine) -> list[Affine]:
        return [r if d == axis else e for d, e in enumerate(index)]

    def update(nest: Nest, index: Sequence[Affine], r: Affine) -> Scalar:
        return nest.read(updates, spot(index, r), 0)

    if call.is_constant(1):
        where = np.indices(shape)
        rows = where[axis].reshape(-1).copy()
        where[axis] = known_places(call, x.shape[axis : axis + 1])
        places = np.asarray(np.ravel_multi_index(tuple(where), x.shape)).reshape(-1)
        table = updates_of_places(places, rows, prod(x.shape), is_last=reduce is None)
        if table is not None:
            require_comparisons(call, table.size)
            out = call.output(0, x.shape, x.dtype)
            place_known(call, out, x, x.shape, table, update, reduce)
            return
    require_comparisons(call, prod(x.shape) * shape[axis])
    out = call.output(0, x.shape, x.dtype)
    indices = valid_indices(call, 1, x.shape[axis])

    def is_mine(nest: Nest, index: Sequence[Affine], r: Affine) -> Scalar:
        # where the indices are shorter than the data, no index is there: -1 is no coordinate
        found = nest.read(indices, spot(index, r), -1)
        return apply(Fn.EQ, _wide(found, indices.dtype), Index(index[axis]))

    _place(call, out, x, shape[axis], is_mine, update, reduce)


def scatter_nd(call: Call) -> None:
    """ScatterND: the last dimension of the indices addresses the leading dimensions of the data."""
    x, shape = call.tensor(0), call.shape(1)
    depth = shape[-1] if shape else 0
    if not 1 <= depth <= len(x.shape) or call.shape(2) != (*shape[:-1], *x.shape[depth:]):
        raise shape_mismatch(f"ScatterND of {call.shape(2)} by indices of {shape} into {x.shape}")
    if call.dtype(2) is not x.dtype:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"updates of {call.dtype(2)} for {x.dtype}")
    reduce = _reduction(call, x.dtype)
    lead = shape[:-1]
    updates = call.tensor(2)

    def update(nest: Nest, index: Sequence[Affine], r: Affine) -> Scalar:
        return nest.read(updates, (*_digits(r, lead), *index[depth:]))

    if call.is_constant(1):
        scattered = x.shape[:depth]
        found = known_places(call, scattered).reshape(-1, depth)
        places = np.asarray(np.ravel_multi_index(tuple(found.T), scattered))
        rows = np.arange(len(places))
        known = updates_of_places(places, rows, prod(scattered), is_last=reduce is None)
        if known is not None:
            require_comparisons(call, known.shape[1] * prod(x.shape))
            out = call.output(0, x.shape, x.dtype)
            place_known(call, out, x, scattered, known, update, reduce)
            return
    wide = 1 if reduce is None else prod(x.shape[depth:])
    require_comparisons(call, prod(x.shape[:depth]) * prod(lead) * depth * wide)
    out = call.output(0, x.shape, x.dtype)
    tables = coordinate_tables(call, x.shape[:depth])

    def is_mine(nest: Nest, index: Sequence[Affine], r: Affine) -> Scalar:
        row = _digits(r, lead)
        found: Scalar | None = None
        for j, table in enumerate(tables):
            at = _wide(nest.read(table, (*row, Affine.of(j))), table.dtype)
            same = apply(Fn.EQ, at, Index(index[j]))
            found = same if found is None else apply(Fn.AND, found, same)
        assert found is not None
        return found

    _place(call, out, x, prod(lead), is_mine, update, reduce, depth)


def _digits(flat: Affine, shape: tuple[int, ...]) -> list[Affine]:
    """Coordinates in `shape` of a row-major position."""
    found: list[Affine] = []
    stride = prod(shape)
    for k, extent in enumerate(shape):
        stride //= extent
        digit = flat.floordiv(stride)
        found.append(digit if k == 0 else digit.mod(extent))
    return found


def _wide(value: Scalar, dtype: DType) -> Scalar:
    return value if dtype is DType.I64 else Cast(DType.I64, value)


_Of: TypeAlias = "Callable[[Nest, Sequence[Affine], Affine], Scalar]"
"""Something of update r at the element at `index`: (nest, index, r)."""


def _place(
    call: Call, out: Tensor, x: Tensor, extent: int, is_mine: _Of, update: _Of,
    reduce: Reduce | None, depth: int | None = None,
) -> None:  # fmt: skip
    """out = x with the updates put in (the last of several) or combined with it.

    `is_mine(nest, index, r)` says whether update r goes to the element at `index`; it looks at the
    first `depth` coordinates only.
    """
    if reduce is not None:
        kind = promoted(x.dtype)
        total = call.temp("updates", x.shape, kind)
        neutral = lit(reduce.identity(kind), kind)
        nest = call.nest()
        index = nest.axes("i", x.shape)
        r = _candidate(nest, extent)
        mine = select(is_mine(nest, index, r), update(nest, index, r), neutral)
        nest.write(total, index, mine, reduce)
        nest = call.nest()
        index = nest.axes("i", x.shape)
        both = apply(COMBINE[reduce], nest.read(x, index), nest.read(total, index))
        nest.write(out, index, both)
        return
    scattered = x.shape if depth is None else x.shape[:depth]
    last = call.temp("last", scattered, DType.I64)
    nest = call.nest()
    index = nest.axes("i", scattered)
    r = _candidate(nest, extent)
    nest.write(
        last, index, select(is_mine(nest, index, r), Index(r), lit(0, DType.I64)), Reduce.MAX
    )
    nest = call.nest()
    index = nest.axes("i", x.shape)
    # the last one that matched, or update 0, which may match or not: ask again
    place = nest.lookup(last, index[: len(scattered)])
    is_hit = is_mine(nest, index, place)
    nest.write(out, index, select(is_hit, update(nest, index, place), nest.read(x, index)))


def _candidate(nest: Nest, extent: int) -> Affine:
    (r,) = nest.reduce_axes("r", (extent,))
    return r


def tensor_scatter(call: Call) -> None:
    """TensorScatter: per batch, a run of the sequence axis starts at `write_indices`."""
    x, shape = call.tensor(0), call.shape(1)
    axis = normal_axis(call.attrs.integer("axis", -2), len(x.shape))
    mode = call.attrs.choice("mode", "linear", ("linear", "circular"))
    if (
        axis == 0
        or len(shape) != len(x.shape)
        or shape[axis] > x.shape[axis]
        or any(n != x.shape[d] for d, n in enumerate(shape) if d != axis)
    ):
        raise shape_mismatch(f"TensorScatter of {shape} into {x.shape} along axis {axis}")
    if call.has_input(2) and call.shape(2) != (x.shape[0],):
        raise shape_mismatch(f"TensorScatter of {x.shape} with write indices {call.shape(2)}")
    updates, extent, length = call.tensor(1), x.shape[axis], shape[axis]
    out = call.output(0, x.shape, x.dtype)
    zero, end = lit(0, DType.I64), lit(length, DType.I64)

    def away(nest: Nest, b: Affine, s: Affine) -> Scalar:
        """Position s as the update counts it; it has it from 0 to `length` - 1."""
        start: Scalar = zero
        if call.has_input(2):
            start = _wide(nest.read(call.tensor(2), (b,)), call.dtype(2))
        steps = sub(Index(s), start)
        return apply(Fn.FLOORMOD, steps, lit(extent, DType.I64)) if mode == "circular" else steps

    place = call.temp("place", (x.shape[0], extent), DType.I64)
    nest = call.nest()
    index = nest.axes("i", place.shape)
    steps = away(nest, *index)
    is_hit = apply(Fn.AND, apply(Fn.GE, steps, zero), less(steps, end))
    nest.write(place, index, select(is_hit, steps, zero))
    nest = call.nest()
    index = nest.axes("i", x.shape)
    spot = (index[0], index[axis])
    at = nest.lookup(place, spot)
    # a position without an update was given place 0, which is not where it is
    is_hit = apply(Fn.EQ, nest.read(place, spot), away(nest, *spot))
    update = nest.read(updates, [at if d == axis else e for d, e in enumerate(index)])
    nest.write(out, index, select(is_hit, update, nest.read(x, index)))


EXPRESSIONS: dict[str, Expression] = {
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
}
