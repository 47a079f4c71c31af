"""Pools: what a window made of several elements goes back to them, phase by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

import numpy as np
import onnx_ir

from worker.compiler.train.emit import Emitter, dims
from worker.compiler.train.rules.geometry import window_axes
from worker.compiler.train.rules.phases import Axis, Phase, run_backwards
from worker.compiler.train.rules.site import Derivative, Site


def _kernel(site: Site) -> tuple[int, ...]:
    found = site.integers("kernel_shape")
    assert found is not None
    return found


def _shifted(
    emit: Emitter, value: onnx_ir.Value, chosen: Sequence[Phase], taps: Sequence[int]
) -> onnx_ir.Value:
    """The outputs that read the elements of a phase through one tap of each axis, zeros outside."""
    front, back = [0, 0], [0, 0]
    for phase, tap in zip(chosen, taps, strict=True):
        # The window's first tap is the last of the phase's.
        ahead = (len(phase.taps) - 1 - phase.taps.index(tap)) * phase.reach
        front.append(phase.before - ahead)
        back.append(phase.after - (len(phase.taps) - 1) * phase.reach + ahead)
    return emit.pad(value, front, back)


def _max_pool(site: Site) -> Mapping[int, onnx_ir.Value]:
    """To the first element of a window, in the order of its taps, that has the maximum.

    Each tap compares once with the result; nothing is addressed by data.
    """
    site.only_first()
    emit, x, y = site.emit, site.x(), site.y
    kernel = _kernel(site)
    axes = window_axes(site, kernel)
    lowest = float(np.finfo(np.float32).min)
    ends = [
        (a.kernel - 1) * a.dilation + (a.outputs - 1) * a.stride + 1 - a.extent - a.before
        for a in axes
    ]
    padded = _surround(emit, x, [a.before for a in axes], ends, lowest)
    zero = emit.real(0, y)
    shares: dict[tuple[int, ...], onnx_ir.Value] = {}
    taken: onnx_ir.Value | None = None
    order = list(product(*map(range, kernel)))
    for taps in order:
        starts = [tap * a.dilation for tap, a in zip(taps, axes, strict=True)]
        stops = [s + (a.outputs - 1) * a.stride + 1 for s, a in zip(starts, axes, strict=True)]
        whole = dims(padded)[:2]
        read = emit.slice(
            padded, (0, 0, *starts), (*whole, *stops), [1, 1, *(a.stride for a in axes)]
        )
        here = emit.op("Equal", read, y)
        first = here if taken is None else emit.op("And", here, emit.op("Not", taken))
        if taps != order[-1]:
            taken = here if taken is None else emit.op("Or", taken, here)
        shares[taps] = emit.op("Where", first, site.grad, zero)

    def dense(chosen: Sequence[Phase]) -> onnx_ir.Value:
        parts = [
            _shifted(emit, shares[taps], chosen, taps)
            for taps in product(*(phase.taps for phase in chosen))
        ]
        return _summed(emit, parts)

    return {0: run_backwards(emit, axes, site.shape(), y, dense)}


def _surround(
    emit: Emitter, x: onnx_ir.Value, before: Sequence[int], after: Sequence[int], value: float
) -> onnx_ir.Value:
    cut = emit.pad(x, (0, 0, *(min(n, 0) for n in before)), (0, 0, *(min(n, 0) for n in after)))
    put = (0, 0, *(max(n, 0) for n in before), 0, 0, *(max(n, 0) for n in after))
    return emit.op("Pad", cut, emit.ints(*put), emit.real(value, x)) if any(put) else cut


def _summed(emit: Emitter, parts: Sequence[onnx_ir.Value]) -> onnx_ir.Value:
    total = parts[0]
    for part in parts[1:]:
        total = emit.op("Add", total, part)
    return total


def _average_pool(site: Site) -> Mapping[int, onnx_ir.Value]:
    """Each output over its count; then the windows of each phase are sums."""
    emit = site.emit
    kernel = _kernel(site)
    axes = window_axes(site, kernel)
    assert site.grad.dtype is not None
    over = emit.constant((1 / _counts(site, axes)).astype(site.grad.dtype.numpy()))
    scaled = emit.op("Mul", site.grad, over)

    def dense(chosen: Sequence[Phase]) -> onnx_ir.Value:
        parts = [
            _shifted(emit, scaled, chosen, taps)
            for taps in product(*(phase.taps for phase in chosen))
        ]
        return _summed(emit, parts)

    return {0: run_backwards(emit, axes, site.shape(), site.grad, dense)}


def _counts(site: Site, axes: Sequence[Axis]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Elements that each output is the mean of: (1, 1, outputs...).

    Padding counts where the attribute says so; what lies beyond it (`ceil_mode`) never does.
    """
    has_pads = bool(site.integer("count_include_pad", 0))
    pads = site.integers("pads") or (0,) * 2 * len(axes)
    total = np.ones((1, 1))
    for d, axis in enumerate(axes):
        low, high = 0, axis.extent
        if has_pads:
            low, high = -axis.before, axis.extent + pads[len(axes) + d]
        reads = [
            [o * axis.stride + k * axis.dilation - axis.before for k in range(axis.kernel)]
            for o in range(axis.outputs)
        ]
        line = np.array([sum(low <= h < high for h in row) for row in reads], np.float64)
        total = total[..., None] * line
    return total


def _global_average(site: Site) -> Mapping[int, onnx_ir.Value]:
    emit, shape = site.emit, site.shape()
    over = emit.op("Mul", site.grad, emit.real(1 / prod(shape[2:]), site.grad))
    return {0: emit.expand(over, shape)}


def _global_max(site: Site) -> Mapping[int, onnx_ir.Value]:
    """In equal parts to all elements that have the maximum."""
    emit, shape = site.emit, site.shape()
    here = emit.op("Equal", site.x(), site.y)
    mine = emit.op("Cast", here, to=int(site.grad.dtype or 1))
    count = emit.total(mine, range(2, len(shape)))
    return {0: emit.op("Mul", mine, emit.op("Div", site.grad, count))}


RULES = {
    "MaxPool": Derivative(_max_pool),
    "AveragePool": Derivative(_average_pool),
    "GlobalAveragePool": Derivative(_global_average),
    "GlobalMaxPool": Derivative(_global_max),
}
