"""Normalisation over neighbouring channels, which ONNX Runtime has in float32 only.

    y = x / (bias + alpha / size * sum of squares over the channel's window) ^ beta

Its kernel slides the window: it adds the square that enters and takes away the one that leaves.
Where these are large, so are the roundings that stay.  Here the sum is a product with a band of
ones.
Source: the definition of LRN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from worker.verification.float64_nodes import Emitter, attribute

MOST_CHANNELS = 4096
"""More would make a band of over 128 MB."""
_DEFAULTS = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}


def emit_lrn(emit: Emitter, node: onnx.NodeProto, data_shape: Sequence[int | None] | None) -> bool:
    """Write the node in float64 under its own output name; False when it cannot be said so.

    Shape: `data_shape` [n, c, ...], all known.
    """
    sizes = attribute(node, "size")
    if data_shape is None or None in data_shape or len(data_shape) < 2 or not sizes:
        return False
    dims = [int(size) for size in data_shape if size is not None]
    if not 0 < dims[1] <= MOST_CHANNELS:
        return False
    given = {a.name: np.float32(a.f) for a in node.attribute if a.name in _DEFAULTS}
    alpha, beta, bias = (float(given.get(n, np.float32(v))) for n, v in _DEFAULTS.items())
    distance = np.arange(dims[1])[None, :] - np.arange(dims[1])[:, None]
    window = (distance >= -((sizes[0] - 1) // 2)) & (distance <= sizes[0] // 2)
    squares = emit.node("Mul", [node.input[0], node.input[0]])
    flat = emit.constant(np.array([*dims[:2], -1], np.int64))
    band = emit.constant(window.astype(np.float64))
    sums = emit.node("MatMul", [band, emit.node("Reshape", [squares, flat])])
    sums = emit.node("Reshape", [sums, emit.constant(np.array(dims, np.int64))])
    scaled = emit.node("Mul", [sums, emit.constant(np.array([alpha / sizes[0]]))])
    base = emit.node("Add", [scaled, emit.constant(np.array([bias]))])
    power = emit.node("Pow", [base, emit.constant(np.array([beta]))])
    emit.node("Div", [node.input[0], power], output=node.output[0])
    return True
