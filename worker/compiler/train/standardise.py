"""Normalisations of the forward pass, as training computes them.

BatchNormalization takes the statistics of the batch, whatever the model was exported for, and
updates its running ones; all are written with reductions, which any target may have.  The gradient
of "minus mean, over deviation" is one closed rule, which needs the result and the inverse deviation
only:  dx = (dy - mean(dy) - y mean(dy y)) / deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import onnx_ir

from worker.compiler.train.emit import Emitter, dims, replace
from worker.compiler.train.rules.site import Rule, Site


@dataclass(slots=True)
class Standardised:
    """What was rewritten."""

    closed: dict[onnx_ir.Node, tuple[onnx_ir.Value, Rule]] = field(default_factory=dict)
    """Last node of a standardisation -> what was standardised, and the rule from one to other."""
    running: dict[onnx_ir.Value, onnx_ir.Value] = field(default_factory=dict)
    """A running statistic -> its next value."""


def standardise(emit: Emitter, statistics: Sequence[onnx_ir.Value]) -> Standardised:
    """Rewrite the normalisations of the main graph; `statistics` are inputs to be kept up to date.

    The new nodes lie behind the others; sort afterwards.
    """
    done = Standardised()
    for node in list(emit.graph):
        if node.domain != "" or node.op_type not in _KINDS:
            continue
        emit.begin(f"{node.name}")
        site = Site(node, emit, (), frozenset())
        made = _KINDS[node.op_type](site, done, statistics)
        replace(emit.graph, node, [made, *[None] * (len(node.outputs) - 1)])
    return done


def _standard(
    site: Site, done: Standardised, axes: Sequence[int], epsilon: float, x: onnx_ir.Value
) -> tuple[onnx_ir.Value, onnx_ir.Value, onnx_ir.Value]:
    """(result, mean, variance) of `x` along `axes`, which are kept as extents of 1."""
    emit = site.emit
    mean = emit.op("ReduceMean", x, emit.ints(*axes), keepdims=1)
    centred = emit.op("Sub", x, mean)
    squared = emit.op("Mul", centred, centred)
    variance = emit.op("ReduceMean", squared, emit.ints(*axes), keepdims=1)
    deviation = emit.op("Sqrt", emit.op("Add", variance, emit.real(epsilon, x)))
    inverse = emit.op("Reciprocal", deviation)
    result = emit.op("Mul", centred, inverse)
    last = result.producer()
    assert last is not None

    def rule(back: Site) -> Mapping[int, onnx_ir.Value]:
        dy, make = back.grad, back.emit
        mean_dy = make.op("ReduceMean", dy, make.ints(*axes), keepdims=1)
        along = make.op("Mul", dy, result)
        mean_along = make.op("ReduceMean", along, make.ints(*axes), keepdims=1)
        inner = make.op("Sub", make.op("Sub", dy, mean_dy), make.op("Mul", result, mean_along))
        return {0: make.op("Mul", inner, inverse)}

    done.closed[last] = (x, rule)
    return result, mean, variance


def _scaled(
    site: Site, x: onnx_ir.Value, scale: onnx_ir.Value, bias: onnx_ir.Value | None
) -> onnx_ir.Value:
    made = site.emit.op("Mul", x, scale)
    return made if bias is None else site.emit.op("Add", made, bias)


def _channels(site: Site, index: int) -> onnx_ir.Value:
    """A value per channel, to be repeated over samples and places."""
    shape = site.shape()
    return site.emit.reshape(site.x(index), (shape[1], *[1] * (len(shape) - 2)))


def _batch(site: Site, done: Standardised, statistics: Sequence[onnx_ir.Value]) -> onnx_ir.Value:
    shape, emit = site.shape(), site.emit
    axes = [d for d in range(len(shape)) if d != 1]
    epsilon = site.number("epsilon", 1e-5)
    result, *found = _standard(site, done, axes, epsilon, site.x())
    made = _scaled(site, result, _channels(site, 1), _channels(site, 2))
    keep = site.number("momentum", 0.9)
    for index, value in zip((3, 4), found, strict=True):
        old = site.x(index)
        if old not in statistics:
            continue
        before = done.running.get(old, old)
        kept = emit.op("Mul", before, emit.real(keep, old))
        new = emit.op("Mul", emit.reshape(value, dims(old)), emit.real(1 - keep, old))
        done.running[old] = emit.op("Add", kept, new)
    for index, output in enumerate(site.node.outputs[1:]):
        if index < 2 and output.uses():
            source = site.x(3 + index)
            output.replace_all_uses_with(done.running.get(source, source))
    return made


def _layer(site: Site, done: Standardised, _: Sequence[onnx_ir.Value]) -> onnx_ir.Value:
    rank = len(site.shape())
    axes = list(range(site.axis(-1), rank))
    result, *_found = _standard(site, done, axes, site.number("epsilon", 1e-5), site.x())
    return _scaled(site, result, site.x(1), site.x(2) if site.has(2) else None)


def _instance(site: Site, done: Standardised, _: Sequence[onnx_ir.Value]) -> onnx_ir.Value:
    axes = list(range(2, len(site.shape())))
    result, *_found = _standard(site, done, axes, site.number("epsilon", 1e-5), site.x())
    return _scaled(site, result, _channels(site, 1), _channels(site, 2))


def _group(site: Site, done: Standardised, _: Sequence[onnx_ir.Value]) -> onnx_ir.Value:
    """Scale and bias are one a channel, as from opset 21."""
    shape, emit = site.shape(), site.emit
    groups = site.integer("num_groups", 1)
    flat = (shape[0], groups, shape[1] // groups * prod(shape[2:]))
    x = emit.reshape(site.x(), flat)
    result, *_found = _standard(site, done, [2], site.number("epsilon", 1e-5), x)
    return _scaled(site, emit.reshape(result, shape), _channels(site, 1), _channels(site, 2))


_KINDS = {
    "BatchNormalization": _batch,
    "LayerNormalization": _layer,
    "InstanceNormalization": _instance,
    "GroupNormalization": _group,
}
