"""Resize: every element gets back what was made of it, as often and with the weights it was read.

Nearest neighbours by whole factors are a sum of copies; other maps take, tap by tap, the outputs
that read each element.  No products of matrices: those would be work that forward has not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir

from worker.compiler.frontend.ops.resample import (
    Resample,
    cubic_filter,
    exact_scale,
    filter_taps,
    linear_filter,
    resampled,
)
from worker.compiler.train.emit import Emitter, dims
from worker.compiler.train.rules.site import Derivative, NoRule, Site

MAX_TAPS = 256
"""Each is a node or three: as many as there are steps of a recurrence."""
_Reads = Sequence[Mapping[int, float]]
"""Of each output along an axis: the elements that it is made of, with their weights."""


def gathered_back(
    emit: Emitter, grad: onnx_ir.Value, axis: int, size: int, reads: _Reads
) -> onnx_ir.Value:
    """Of each of `size` elements along `axis`: the weighted sum of the outputs that it is in.

    Raises:
        NoRule: one is in more than `MAX_TAPS`.
    """
    readers: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    for output, row in enumerate(reads):
        for source, weight in row.items():
            if weight != 0:
                readers[source].append((output, weight))
    kind, rank = grad.dtype, len(dims(grad))
    assert kind is not None
    most = max(map(len, readers))
    if most > MAX_TAPS:
        raise NoRule(f"an element is read {most} times along axis {axis}; the limit is {MAX_TAPS}")
    total: onnx_ir.Value | None = None
    for tap in range(most):
        taken = [held[tap] if tap < len(held) else (0, 0.0) for held in readers]
        part = emit.op("Gather", grad, emit.ints(*(o for o, _ in taken)), axis=axis)
        weights = np.array([w for _, w in taken], kind.numpy())
        if (weights != 1).any():
            line = weights.reshape([size if d == axis else 1 for d in range(rank)])
            part = emit.op("Mul", part, emit.constant(line))
        total = part if total is None else emit.op("Add", total, part)
    assert total is not None
    return total


def _resize(site: Site) -> Mapping[int, onnx_ir.Value]:
    emit, grad = site.emit, site.grad
    along = _dimensions(site)
    reads = [_reads(site, d) for d in along]
    if all(_is_repeated(d, rows) for d, rows in zip(along, reads, strict=True)):
        split = [n for d in along for n in (d.size, d.out // d.size)]
        apart = emit.reshape(grad, split)
        summed = emit.total(apart, range(1, len(split), 2), keep=False)
        return {0: emit.reshape(summed, site.shape())}
    for axis, (d, rows) in enumerate(zip(along, reads, strict=True)):
        if rows != [{o: 1.0} for o in range(d.size)]:
            grad = gathered_back(emit, grad, axis, d.size, rows)
    return {0: grad}


def _dimensions(site: Site) -> list[Resample]:
    transform = site.text("coordinate_transformation_mode", "half_pixel")
    if transform == "tf_crop_and_resize":
        raise NoRule(f"{transform!r} has no rule")
    shape = site.shape()
    given = site.integers("axes")
    axes = range(len(shape)) if given is None else [a % len(shape) for a in given]
    scales = None
    if site.has(2) and site.shape(2) != (0,):
        scales = [exact_scale(float(v)) for v in site.constant(2).reshape(-1)]
    sizes = [dims(site.y)[a] for a in axes]
    if scales is None:
        sizes = [int(n) for n in site.constant(3).reshape(-1)]
    policy = site.text("keep_aspect_ratio_policy", "stretch")
    found = resampled(shape, axes, scales, sizes, transform, policy)
    if transform == "align_corners" and scales and any(d.scale * d.size != d.out for d in found):
        raise NoRule("corners are aligned by a scale that makes no whole number of elements")
    return found


def _reads(site: Site, d: Resample) -> list[dict[int, float]]:
    mode = site.text("mode", "nearest")
    if mode == "nearest":
        rounding = site.text("nearest_mode", "round_prefer_floor")
        return [{source: 1.0} for source in d.nearest(rounding)]
    if d.out == d.size and d.scale == 1:
        return [{o: 1.0} for o in range(d.size)]
    a = site.number("cubic_coeff_a", -0.75)
    kernel, half = (linear_filter, 1) if mode == "linear" else (cubic_filter(a), 2)
    taps = filter_taps(
        d, kernel, half, antialias=bool(site.integer("antialias", 0)),
        exclude_outside=bool(site.integer("exclude_outside", 0)),
    )  # fmt: skip
    return [
        {start + t: w for t, w in enumerate(row) if w != 0}
        for start, row in zip(taps.start, taps.weight, strict=True)
    ]


def _is_repeated(d: Resample, reads: _Reads) -> bool:
    """Whether each element is read by as many outputs, one after the other."""
    times = d.out // d.size
    return d.out == times * d.size and reads == [{o // times: 1.0} for o in range(d.out)]


RULES = {"Resize": Derivative(_resize, frozenset({0}))}
