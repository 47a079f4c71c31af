"""Gather, GatherElements, GatherND: indices that are data."""

from __future__ import annotations

import numpy as np

from worker.compiler.frontend.ops.body import add, less, lit, select
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.index_table import fit
from worker.compiler.frontend.ops.pointwise import pointwise
from worker.compiler.frontend.ops.reduce import normal_axis
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Tensor
from worker.compiler.rejection import ReasonCode

_FIT_LIMIT = 1 << 12
"""Constant index vectors up to this length are tried as affine maps."""


def gather(call: Call) -> None:
    """Gather rows along an axis; constant affine indices become plain strided reads."""
    x = call.tensor(0)
    rank = len(x.shape)
    axis = normal_axis(call.attrs.integer("axis", 0), rank)
    shape = call.shape(1)
    out = call.output(0, (*x.shape[:axis], *shape, *x.shape[axis + 1 :]), x.dtype)
    nest = call.nest()
    index = nest.axes("i", out.shape)
    picked = index[axis : axis + len(shape)]
    place = _known_place(call, x.shape[axis], picked)
    if place is None:
        table = valid_indices(call, 1, x.shape[axis])
        place = nest.lookup(table, picked)
    where = (*index[:axis], place, *index[axis + len(shape) :])
    nest.write(out, index, nest.read(x, where))


def _known_place(call: Call, extent: int, picked: tuple[Affine, ...]) -> Affine | None:
    """The gathered position as an affine map, when the indices are a short known ramp."""
    if not call.is_constant(1):
        return None
    table = [v + extent if v < 0 else v for v in call.integers(1)]
    _check_range(call, table, extent)
    if len(picked) > 1 or len(table) > _FIT_LIMIT or not table:
        return None
    return fit(table, picked[0] if picked else Affine())


def _check_range(call: Call, table: list[int], extent: int) -> None:
    wrong = next((v for v in table if not 0 <= v < extent), None)
    if wrong is not None:
        raise shape_mismatch(f"{call.node.op_type} at index {wrong} of {extent}")


def valid_indices(call: Call, k: int, extent: int) -> Tensor:
    """Input k with negative indices counted from the end of a dimension of `extent`."""
    if call.dtype(k) not in (DType.I32, DType.I64):
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"indices of type {call.dtype(k)}")
    if call.is_constant(k):
        values = call.array(k)
        wrapped = np.where(values < 0, values + extent, values)
        _check_range(call, [int(v) for v in wrapped.reshape(-1)], extent)
        if not np.any(values < 0):
            return call.tensor(k)
        return call.constant("indices", values.shape, call.dtype(k), lambda: wrapped)
    given = call.tensor(k)
    zero, end = lit(0, given.dtype), lit(extent, given.dtype)
    return pointwise(
        call,
        call.temp("indices", given.shape, given.dtype),
        [given],
        lambda v: select(less(v[0], zero), add(v[0], end), v[0]),
    )


def gather_elements(call: Call) -> None:
    """GatherElements: one index per output element."""
    x, shape = call.tensor(0), call.shape(1)
    axis = normal_axis(call.attrs.integer("axis", 0), len(x.shape))
    if len(shape) != len(x.shape) or any(
        shape[d] > x.shape[d] for d in range(len(shape)) if d != axis
    ):
        raise shape_mismatch(f"GatherElements of {x.shape} by indices of {shape}")
    out = call.output(0, shape, x.dtype)
    table = valid_indices(call, 1, x.shape[axis])
    nest = call.nest()
    index = nest.axes("i", shape)
    place = nest.lookup(table, index)
    where = [place if d == axis else e for d, e in enumerate(index)]
    nest.write(out, index, nest.read(x, where))


def gather_nd(call: Call) -> None:
    """GatherND: the last dimension of the indices addresses the leading dimensions of the data."""
    x, shape = call.tensor(0), call.shape(1)
    batch = call.attrs.integer("batch_dims", 0)
    if not shape or batch < 0 or batch + shape[-1] > len(x.shape) or batch >= len(shape):
        raise shape_mismatch(f"GatherND of {x.shape} by indices of {shape}, batch_dims {batch}")
    depth = shape[-1]
    out = call.output(0, (*shape[:-1], *x.shape[batch + depth :]), x.dtype)
    extents = x.shape[batch : batch + depth]
    tables = coordinate_tables(call, extents)
    nest = call.nest()
    index = nest.axes("i", out.shape)
    lead = index[: len(shape) - 1]
    places = [nest.lookup(table, (*lead, Affine.of(j))) for j, table in enumerate(tables)]
    where = (*index[:batch], *places, *index[len(shape) - 1 :])
    nest.write(out, index, nest.read(x, where))


def coordinate_tables(call: Call, extents: tuple[int, ...]) -> list[Tensor]:
    """Per coordinate, the index tensor with that coordinate made non-negative."""
    if len(set(extents)) == 1 or not call.is_constant(1):
        per_extent = {n: valid_indices(call, 1, n) for n in dict.fromkeys(extents)}
        return [per_extent[n] for n in extents]
    values = call.array(1)
    wrapped = np.where(values < 0, values + np.asarray(extents, values.dtype), values)
    for j, n in enumerate(extents):
        _check_range(call, [int(v) for v in wrapped[..., j].reshape(-1)], n)
    table = call.constant("indices", values.shape, call.dtype(1), lambda: wrapped)
    return [table] * len(extents)


EXPRESSIONS: dict[str, Expression] = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
}
