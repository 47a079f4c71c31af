"""Conv: the input's gradient phase by phase, the weights' as a convolution over the batch.

Both walk as many multiply-accumulates as the forward pass, where outputs times stride is the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir

from worker.compiler.train.emit import Emitter, dims
from worker.compiler.train.rules.geometry import window_axes
from worker.compiler.train.rules.phases import Axis, Phase, run_backwards
from worker.compiler.train.rules.site import Derivative, Site


def _conv(site: Site) -> Mapping[int, onnx_ir.Value]:
    weight = site.x(1)
    axes = window_axes(site, dims(weight)[2:])
    groups = site.integer("group", 1)

    def of(index: int) -> onnx_ir.Value:
        if index == 0:
            return backwards(site.emit, site.grad, weight, axes, site.shape(), groups)
        if index == 1:
            return weight_gradient(site.emit, site.x(), site.grad, axes, groups)
        reduced = [d for d in range(len(dims(site.grad))) if d != 1]
        return site.emit.total(site.grad, reduced, keep=False)

    return site.like(of)


def backwards(
    emit: Emitter,
    dy: onnx_ir.Value,
    weight: onnx_ir.Value,
    axes: Sequence[Axis],
    shape: Sequence[int],
    groups: int,
) -> onnx_ir.Value:
    """What `weight` (M, C / groups, ...) read of a tensor of `shape` (N, C, ...), given `dy`."""
    filters, share = dims(weight)[:2]
    kernel = dims(weight)[2:]
    each = filters // groups
    apart = emit.reshape(weight, (groups, each, share, *kernel))
    rest = range(3, 3 + len(kernel))
    swapped = emit.reshape(emit.transpose(apart, (0, 2, 1, *rest)), (groups * share, each, *kernel))

    def dense(chosen: Sequence[Phase]) -> onnx_ir.Value:
        read = dy
        trims = [min(p.before, 0) for p in chosen], [min(p.after, 0) for p in chosen]
        if any(trims[0]) or any(trims[1]):
            read = emit.pad(dy, (0, 0, *trims[0]), (0, 0, *trims[1]))
        pads = [max(p.before, 0) for p in chosen] + [max(p.after, 0) for p in chosen]
        return emit.op(
            "Conv", read, _taps(emit, swapped, chosen), group=groups, pads=pads,
            dilations=[p.reach for p in chosen], kernel_shape=[len(p.taps) for p in chosen],
            strides=[1] * len(chosen),
        )  # fmt: skip

    return run_backwards(emit, axes, shape, dy, dense)


def _taps(emit: Emitter, weight: onnx_ir.Value, chosen: Sequence[Phase]) -> onnx_ir.Value:
    """The taps of a phase, last one first."""
    cuts = [
        (p.taps[-1], p.taps[0] - p.taps.step, 2 + d, -p.taps.step)
        for d, p in enumerate(chosen)
        if dims(weight)[2 + d] > 1
    ]
    if not cuts:
        return weight
    starts, ends, axes, steps = zip(*cuts, strict=True)
    # An end before the front counts from behind: far enough before, it means the front.
    ends = tuple(e if e >= 0 else -(1 << 20) for e in ends)
    parameters = (emit.ints(*starts), emit.ints(*ends), emit.ints(*axes), emit.ints(*steps))
    return emit.op("Slice", weight, *parameters)


def weight_gradient(
    emit: Emitter,
    x: onnx_ir.Value,
    dy: onnx_ir.Value,
    axes: Sequence[Axis],
    groups: int,
) -> onnx_ir.Value:
    """Gradient (M, C / groups, ...) of the weights that made (N, M, ...) of `x` (N, C, ...).

    Samples are channels and the gradient is the weight: strides and dilations change places.
    """
    batch, channels, *extents = dims(x)
    filters = dims(dy)[1]
    share = channels // groups
    rest = range(3, 3 + len(extents))
    apart = emit.reshape(x, (batch, groups, share, *extents))
    data = emit.reshape(emit.transpose(apart, (2, 1, 0, *rest)), (share, groups * batch, *extents))
    kernel = emit.transpose(dy, (1, 0, *range(2, 2 + len(extents))))
    before = [axis.before for axis in axes]
    after = [
        (a.kernel - 1) * a.dilation + (a.outputs - 1) * a.stride + 1 - a.extent - a.before
        for a in axes
    ]
    trims = [min(n, 0) for n in before], [min(n, 0) for n in after]
    if any(trims[0]) or any(trims[1]):  # what no window reached
        data = emit.pad(data, (0, 0, *trims[0]), (0, 0, *trims[1]))
    made = emit.op(
        "Conv", data, kernel, group=groups,
        pads=[max(n, 0) for n in (*before, *after)], kernel_shape=[a.outputs for a in axes],
        strides=[a.dilation for a in axes], dilations=[a.stride for a in axes],
    )  # fmt: skip
    assert dims(made)[:2] == (share, filters)
    return emit.transpose(made, (1, 0, *range(2, 2 + len(extents))))


RULES = {"Conv": Derivative(_conv)}
