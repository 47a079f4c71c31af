"""Convolution as slices and matrix products, which ONNX Runtime has in float64.

    y[n, g, m, p] = sum over offsets k of  w[g, m, :, k] @ x[n, g, :, p * stride + k * dilation]

Source: the definition of Conv; one product per kernel offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np
import onnx

from worker.verification.float64_nodes import Emitter, attribute

_END = np.iinfo(np.int64).max
MAX_OFFSETS = 128
"""Kernels with more elements would make a longer model than it is worth."""
FIRST_OPSET = 11
"""From here on Pad and Slice take what they are told as inputs."""


def emit_conv(
    emit: Emitter,
    node: onnx.NodeProto,
    data_shape: Sequence[int | None] | None,
    weight_shape: Sequence[int | None] | None,
) -> bool:
    """Write the node in float64 under its own output name; False when it cannot be said so.

    Shapes: `data_shape` [n, c, ...] may have unknown sizes unless padding depends on them;
    `weight_shape` [m, c / group, ...].
    """
    if weight_shape is None or any(size is None for size in weight_shape):
        return False
    weights = [int(size) for size in weight_shape if size is not None]
    if len(weights) < 3 or 0 in weights:
        return False
    kernel = weights[2:]
    rank = len(kernel)
    strides = attribute(node, "strides") or [1] * rank
    dilations = attribute(node, "dilations") or [1] * rank
    pads = _pads(node, data_shape, kernel, strides, dilations)
    (group,) = attribute(node, "group") or [1]
    if pads is None or prod(kernel) > MAX_OFFSETS or weights[0] % group:
        return False
    axes = emit.constant(np.arange(2, 2 + rank, dtype=np.int64))
    data = node.input[0]
    if any(pads):
        edges = [0, 0, *pads[:rank], 0, 0, *pads[rank:]]
        data = emit.node("Pad", [data, emit.constant(np.array(edges, np.int64))])
    taken = emit.constant(np.array([0, group, weights[1], -1], np.int64))
    shape = emit.constant(np.array([group, weights[0] // group, weights[1]], np.int64))
    steps = emit.constant(np.array(strides, np.int64))
    total = first = ""
    for offset in product(*map(range, kernel)):
        starts = [k * d for k, d in zip(offset, dilations, strict=True)]
        left = [(size - 1 - k) * d for size, k, d in zip(kernel, offset, dilations, strict=True)]
        ends = [-n if n else _END for n in left]
        window = emit.node(
            "Slice",
            [data, emit.constant(np.array(starts, np.int64)),
             emit.constant(np.array(ends, np.int64)), axes, steps],
        )  # fmt: skip
        first = first or window
        at = np.array(offset, np.int64)
        tap = emit.node("Slice", [node.input[1], emit.constant(at), emit.constant(at + 1), axes])
        part = emit.node(
            "MatMul", [emit.node("Reshape", [tap, shape]), emit.node("Reshape", [window, taken])]
        )
        total = emit.node("Add", [total, part]) if total else part
    sizes = emit.node(
        "Slice",
        [emit.node("Shape", [first]), emit.constant(np.array([2], np.int64)),
         emit.constant(np.array([_END], np.int64))],
    )  # fmt: skip
    head = emit.constant(np.array([0, weights[0]], np.int64))
    whole = emit.node("Concat", [head, sizes], axis=0)
    if len(node.input) < 3 or not node.input[2]:
        emit.node("Reshape", [total, whole], output=node.output[0])
        return True
    plain = emit.node("Reshape", [total, whole])
    column = emit.constant(np.array([weights[0], *[1] * rank], np.int64))
    bias = emit.node("Reshape", [node.input[2], column])
    emit.node("Add", [plain, bias], output=node.output[0])
    return True


def _pads(
    node: onnx.NodeProto,
    data_shape: Sequence[int | None] | None,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int] | None:
    """Begins, then ends; None where they depend on a size that is not known."""
    how = next((a.s.decode() for a in node.attribute if a.name == "auto_pad"), "NOTSET")
    if how == "VALID":
        return [0] * (2 * len(kernel))
    if how in ("", "NOTSET"):
        return attribute(node, "pads") or [0] * (2 * len(kernel))
    begins, ends = [], []
    for axis, (size, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        extent = None if data_shape is None else data_shape[2 + axis]
        if extent is None:
            return None
        reach = (-(-extent // stride) - 1) * stride + (size - 1) * dilation + 1
        missing = max(reach - extent, 0)
        small, large = missing // 2, missing - missing // 2
        begins.append(small if how == "SAME_UPPER" else large)
        ends.append(large if how == "SAME_UPPER" else small)
    return begins + ends
