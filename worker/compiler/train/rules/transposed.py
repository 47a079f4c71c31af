"""ConvTranspose: it is a convolution run backwards, so its gradient is one run forwards."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir

from worker.compiler.train.emit import dims
from worker.compiler.train.rules.convolution import weight_gradient
from worker.compiler.train.rules.phases import Axis
from worker.compiler.train.rules.site import Derivative, NoRule, Site


def _conv_transpose(site: Site) -> Mapping[int, onnx_ir.Value]:
    """Weights are (C, M / groups, ...); the forward convolution would read Y and make X."""
    emit, x, weight, dy = site.emit, site.x(), site.x(1), site.grad
    kernel, count = dims(weight)[2:], len(dims(weight)) - 2
    if site.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or site.integers("output_shape"):
        raise NoRule("only explicit pads have a rule; export with pads")
    strides = site.integers("strides") or (1,) * count
    dilations = site.integers("dilations") or (1,) * count
    before = (site.integers("pads") or (0,) * 2 * count)[:count]
    axes = tuple(map(Axis, dims(dy)[2:], dims(x)[2:], kernel, strides, dilations, before))
    groups = site.integer("group", 1)

    def of(index: int) -> onnx_ir.Value:
        if index == 0:
            after = [
                (a.kernel - 1) * a.dilation + (a.outputs - 1) * a.stride + 1 - a.extent - a.before
                for a in axes
            ]
            read = emit.pad(dy, [0] * (2 + count), (0, 0, *(min(n, 0) for n in after)))
            return emit.op(
                "Conv", read, weight, group=groups, strides=list(strides),
                dilations=list(dilations), kernel_shape=list(kernel),
                pads=[*before, *(max(n, 0) for n in after)],
            )  # fmt: skip
        if index == 1:
            return weight_gradient(emit, dy, x, axes, groups)
        return emit.total(dy, [d for d in range(len(dims(dy))) if d != 1], keep=False)

    return site.like(of)


RULES = {"ConvTranspose": Derivative(_conv_transpose)}
