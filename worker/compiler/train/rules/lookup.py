"""Lookups, and writes to looked-up places: gradients of elements read several times are summed in
the order of reads.

ScatterElements with `add` does that: the algebra sums over the indices in their order, and so do
runtimes, so that two runs give the same bits; and it is no product, unlike a one-hot matrix.
ScatterND's sums are in parallel in ONNX Runtime, so rows are counted through and go this way, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import onnx_ir

from worker.compiler.train.emit import Emitter, dims
from worker.compiler.train.rules.site import Derivative, NoRule, Site


def _scatter(
    site: Site, shape: Sequence[int], axis: int, where: onnx_ir.Value, updates: onnx_ir.Value
) -> onnx_ir.Value:
    zeros = site.emit.expand(site.emit.real(0, updates), shape)
    return site.emit.op("ScatterElements", zeros, where, updates, axis=axis, reduction="add")


def _gather(site: Site) -> Mapping[int, onnx_ir.Value]:
    shape, axis, emit = site.shape(), site.axis(0), site.emit
    count = prod(site.shape(1))
    taken = (*shape[:axis], count, *shape[axis + 1 :])
    updates = emit.reshape(site.grad, taken)
    line = emit.reshape(site.x(1), [count if d == axis else 1 for d in range(len(shape))])
    return {0: _scatter(site, shape, axis, emit.expand(line, taken), updates)}


def _gather_elements(site: Site) -> Mapping[int, onnx_ir.Value]:
    """Where the indices are shorter along other axes, the rest is not read."""
    shape = site.shape()
    assert len(dims(site.grad)) == len(shape)
    return {0: _scatter(site, shape, site.axis(0), site.x(1), site.grad)}


def _gather_nd(site: Site) -> Mapping[int, onnx_ir.Value]:
    """Index tuples as numbers of rows, in a matrix of rows that are read whole."""
    emit, shape, where = site.emit, site.shape(), site.shape(1)
    lead, depth = site.integer("batch_dims", 0), where[-1]
    batch = prod(shape[:lead])
    sought, row = shape[lead : lead + depth], prod(shape[lead + depth :])
    rows = _row_numbers(emit, site.x(1), sought)
    rows = emit.reshape(rows, (batch, prod(where[lead:-1])))
    if batch > 1:
        offsets = np.arange(batch, dtype=np.int64)[:, None] * prod(sought)
        rows = emit.op("Add", rows, emit.constant(offsets))
    count = prod(dims(rows))
    taken = emit.expand(emit.reshape(rows, (count, 1)), (count, row))
    updates = emit.reshape(site.grad, (count, row))
    made = _scatter(site, (batch * prod(sought), row), 0, taken, updates)
    return {0: emit.reshape(made, shape)}


def _row_numbers(emit: Emitter, tuples: onnx_ir.Value, extents: Sequence[int]) -> onnx_ir.Value:
    """Row-major numbers of index tuples [..., depth]; those below zero count from the end."""
    wrapped = emit.op("Mod", emit.op("Add", tuples, emit.ints(*extents)), emit.ints(*extents))
    strides = [prod(extents[k + 1 :]) for k in range(len(extents))]
    return emit.total(emit.op("Mul", wrapped, emit.ints(*strides)), [-1], keep=False)


def _top(site: Site) -> Mapping[int, onnx_ir.Value]:
    where = site.node.outputs[1]
    return {0: _scatter(site, site.shape(), site.axis(-1), where, site.grad)}


def _how(site: Site) -> str:
    how = site.text("reduction", "none")
    if how not in ("none", "add"):
        raise NoRule(f"reduction {how!r} has no rule; none and add have")
    return how


def _scatter_elements(site: Site) -> Mapping[int, onnx_ir.Value]:
    """Of an element that is overwritten nothing flows back, of one that is added to all does."""
    emit, how, axis = site.emit, _how(site), site.axis(0)

    def of(index: int) -> onnx_ir.Value:
        if index == 2:
            ends = list(site.shape(1))
            ends[axis] = site.shape()[axis]
            reached = emit.slice(site.grad, [0] * len(ends), ends)
            return emit.op("GatherElements", reached, site.x(1), axis=axis)
        if how == "add":
            return site.grad
        nothing = emit.zeros(site.x(2))
        return emit.op("ScatterElements", site.grad, site.x(1), nothing, axis=axis)

    return site.like(of)


def _scatter_nd(site: Site) -> Mapping[int, onnx_ir.Value]:
    """As `_scatter_elements`, row by row."""
    emit, how = site.emit, _how(site)

    def of(index: int) -> onnx_ir.Value:
        if index == 2:
            return emit.op("GatherND", site.grad, site.x(1))
        if how == "add":
            return site.grad
        return emit.op("ScatterND", site.grad, site.x(1), emit.zeros(site.x(2)))

    return site.like(of)


_FIRST = frozenset({0})
_DATA_AND_UPDATES = frozenset({0, 2})
RULES = {
    "Gather": Derivative(_gather, _FIRST),
    "GatherElements": Derivative(_gather_elements, _FIRST),
    "GatherND": Derivative(_gather_nd, _FIRST),
    "ScatterElements": Derivative(_scatter_elements, _DATA_AND_UPDATES),
    "ScatterND": Derivative(_scatter_nd, _DATA_AND_UPDATES),
    "TopK": Derivative(_top, _FIRST),
}
