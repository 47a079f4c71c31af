"""Gather and its like: gradients of elements read several times are summed in the order of reads.

ScatterElements with `add` does that: the algebra sums over the indices in their order, and so do
runtimes, so that two runs give the same bits; and it is no product, unlike a one-hot matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import onnx_ir

from worker.compiler.train.emit import dims
from worker.compiler.train.rules.site import Derivative, Site


def _scatter(
    site: Site, shape: tuple[int, ...], axis: int, where: onnx_ir.Value, updates: onnx_ir.Value
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


_FIRST = frozenset({0})
RULES = {
    "Gather": Derivative(_gather, _FIRST),
    "GatherElements": Derivative(_gather_elements, _FIRST),
}
