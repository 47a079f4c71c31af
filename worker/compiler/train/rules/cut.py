"""Slice, Pad, Trilu: what was cut off gets zeros, what is repeated around a tensor adds up."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir

from worker.compiler.train.emit import dims
from worker.compiler.train.rules.phases import spread
from worker.compiler.train.rules.resample import gathered_back
from worker.compiler.train.rules.site import Derivative, NoRule, Site


def _pad(site: Site) -> Mapping[int, onnx_ir.Value]:
    mode, shape = site.text("mode", "constant"), site.shape()
    given = [int(n) for n in site.constant(1).reshape(-1)]
    rank = len(shape)
    axes = [int(a) % rank for a in site.constant(3)] if site.has(3) else list(range(rank))
    before = dict(zip(axes, given, strict=False))
    first = [-before.get(d, 0) for d in range(rank)]
    last = [n - have - b for n, have, b in zip(shape, dims(site.y), first, strict=True)]
    if mode == "constant":
        return {0: site.emit.pad(site.grad, first, last)}
    grad = site.grad
    for d, (extent, start) in enumerate(zip(shape, first, strict=True)):
        read = [_repeated(mode, o + start, extent) for o in range(dims(site.y)[d])]
        if read != list(range(extent)):
            grad = gathered_back(site.emit, grad, d, extent, [{o: 1.0} for o in read])
    return {0: grad}


def _repeated(mode: str, place: int, extent: int) -> int:
    """Which element a place around the tensor repeats."""
    if mode == "edge":
        return min(max(place, 0), extent - 1)
    if mode == "wrap":
        return place % extent
    turn = max(2 * (extent - 1), 1)
    return min(place % turn, turn - place % turn) if extent > 1 else 0


def _trilu(site: Site) -> Mapping[int, onnx_ir.Value]:
    operands = [site.x(1)] if site.has(1) else []
    upper = site.integer("upper", 1)
    return {0: site.emit.op("Trilu", site.grad, *operands, upper=upper)}


def _slice(site: Site) -> Mapping[int, onnx_ir.Value]:
    """Backward steps are turned round; steps larger than one are spread with zeros between."""
    shape, emit, grad = site.shape(), site.emit, site.grad
    rank = len(shape)
    starts, ends = (site.constant(k).reshape(-1).tolist() for k in (1, 2))
    axes = site.constant(3).reshape(-1).tolist() if site.has(3) else list(range(len(starts)))
    steps = site.constant(4).reshape(-1).tolist() if site.has(4) else [1] * len(starts)
    before, after, by = [0] * rank, [0] * rank, [1] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        d = axis % rank
        read = range(shape[d])[start:end:step]
        if not read:
            raise NoRule("it reads nothing")
        if step < 0:
            grad = turned(site, grad, d)
            read = read[::-1]
        by[d] = read.step
        before[d], after[d] = read[0], shape[d] - 1 - read[-1]
    return {0: emit.pad(spread(emit, grad, by), before, after)}


def turned(site: Site, value: onnx_ir.Value, axis: int) -> onnx_ir.Value:
    """`value` back to front along one axis."""
    emit, extent = site.emit, dims(value)[axis]
    return emit.op(
        "Slice", value, emit.ints(extent - 1), emit.ints(-extent - 1), emit.ints(axis),
        emit.ints(-1),
    )  # fmt: skip


RULES = {
    "Pad": Derivative(_pad, frozenset({0})),
    "Slice": Derivative(_slice, frozenset({0})),
    "Trilu": Derivative(_trilu, frozenset({0})),
}
