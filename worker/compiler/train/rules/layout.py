"""Operators that only move elements to other places, each moved back."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir

from worker.compiler.train.emit import FLOATS, dims
from worker.compiler.train.rules.site import Derivative, NoRule, Site


def _reshape(site: Site) -> Mapping[int, onnx_ir.Value]:
    return {0: site.emit.reshape(site.grad, site.shape())}


def _identity(site: Site) -> Mapping[int, onnx_ir.Value]:
    return {0: site.grad}


def _cast(site: Site) -> Mapping[int, onnx_ir.Value]:
    source = site.x().dtype
    if source not in FLOATS:
        raise NoRule(f"it casts from {source}, which is not trained in")
    if site.grad.dtype == source:
        return {0: site.grad}
    return {0: site.emit.op("Cast", site.grad, to=int(source))}


def _transpose(site: Site) -> Mapping[int, onnx_ir.Value]:
    rank = len(site.shape())
    order = site.integers("perm") or tuple(reversed(range(rank)))
    back = sorted(range(rank), key=lambda d: order[d])
    return {0: site.emit.transpose(site.grad, back)}


def _expand(site: Site) -> Mapping[int, onnx_ir.Value]:
    return {0: site.emit.unbroadcast(site.grad, site.shape())}


def _tile(site: Site) -> Mapping[int, onnx_ir.Value]:
    shape, emit = site.shape(), site.emit
    split: list[int] = []
    for extent, whole in zip(shape, dims(site.y), strict=True):
        split += [whole // extent, extent]
    summed = emit.total(emit.reshape(site.grad, split), range(0, len(split), 2), keep=False)
    return {0: emit.reshape(summed, shape)}


def _concat(site: Site) -> Mapping[int, onnx_ir.Value]:
    axis, whole = site.axis(0), dims(site.y)
    sizes = [site.shape(k)[axis] for k in range(len(site.node.inputs))]

    def of(index: int) -> onnx_ir.Value:
        starts, ends = [0] * len(whole), list(whole)
        starts[axis] = sum(sizes[:index])
        ends[axis] = starts[axis] + sizes[index]
        return site.emit.slice(site.grad, starts, ends)

    return site.like(of)


def _split(site: Site) -> Mapping[int, onnx_ir.Value]:
    parts = [
        site.emit.zeros(value) if grad is None else grad
        for value, grad in zip(site.node.outputs, site.grads, strict=True)
    ]
    return {0: site.emit.op("Concat", *parts, axis=site.axis(0)) if parts[1:] else parts[0]}


def _depth_to_space(site: Site) -> Mapping[int, onnx_ir.Value]:
    size = site.integer("blocksize", 1)
    if site.text("mode", "DCR") == "DCR":
        return {0: site.emit.op("SpaceToDepth", site.grad, blocksize=size)}
    n, depth, height, width = site.shape()
    apart = site.emit.reshape(site.grad, (n, depth // size**2, height, size, width, size))
    turned = site.emit.transpose(apart, (0, 1, 3, 5, 2, 4))
    return {0: site.emit.reshape(turned, site.shape())}


def _space_to_depth(site: Site) -> Mapping[int, onnx_ir.Value]:
    return {0: site.emit.op("DepthToSpace", site.grad, blocksize=site.integer("blocksize", 1))}


_FIRST = frozenset({0})
RULES = {
    "Reshape": Derivative(_reshape, _FIRST),
    "Flatten": Derivative(_reshape),
    "Squeeze": Derivative(_reshape, _FIRST),
    "Unsqueeze": Derivative(_reshape, _FIRST),
    "Identity": Derivative(_identity),
    "Cast": Derivative(_cast),
    "CastLike": Derivative(_cast, _FIRST),
    "Transpose": Derivative(_transpose),
    "Expand": Derivative(_expand, _FIRST),
    "Tile": Derivative(_tile, _FIRST),
    "Concat": Derivative(_concat),
    "Split": Derivative(_split, _FIRST),
    "DepthToSpace": Derivative(_depth_to_space),
    "SpaceToDepth": Derivative(_space_to_depth),
}
