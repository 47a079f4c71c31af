"""Quantities of an ONNX node that capability lists put limits on.

The names users write in `capabilities.ops[].limits` (machine/lint/terms.py, LIMIT_NAMES).  Of a
window with one or three spatial axes, `_h` is the first and `_w` the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import TypeAlias

import onnx_ir

from worker.compiler.frontend.model_summary import node_macs
from worker.compiler.frontend.work import static_shape
from worker.compiler.partition.attributes import attribute_value

_WEIGHT_INPUT = {
    "Conv": 1, "ConvTranspose": 1, "ConvInteger": 1, "QLinearConv": 3, "Gemm": 1, "MatMul": 1,
    "MatMulInteger": 1, "QLinearMatMul": 3,
}  # fmt: skip
"""Input position of the weights of operators that have some."""
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "ConvInteger", "QLinearConv"})
_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})
_GLOBAL_POOLS = frozenset({"GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"})

Measure: TypeAlias = "Callable[[onnx_ir.Node, int], int | None]"


def quantity(node: onnx_ir.Node, name: str, opset: int) -> int | None:
    """The quantity `name` of a node, or None where it has none or its shapes are not static.

    Cost: constant.
    """
    return _MEASURES[name](node, opset)


def _dims(node: onnx_ir.Node, k: int = 0) -> tuple[int, ...] | None:
    return static_shape(node.inputs[k]) if k < len(node.inputs) else None


def _input_dim(axis: int) -> Measure:
    """An axis of the first input; negative ones count from the end, after batch and channels."""

    def measure(node: onnx_ir.Node, opset: int) -> int | None:
        dims = _dims(node)
        least = axis + 1 if axis >= 0 else 2 - axis
        return None if dims is None or len(dims) < least else dims[axis]

    return measure


def _rank(node: onnx_ir.Node, opset: int) -> int | None:
    dims = _dims(node)
    return None if dims is None else len(dims)


def _elements(node: onnx_ir.Node, opset: int) -> int | None:
    """Of the first result."""
    dims = static_shape(node.outputs[0]) if node.outputs else None
    return None if dims is None else prod(dims)


def _weight_elements(node: onnx_ir.Node, opset: int) -> int | None:
    k = _WEIGHT_INPUT.get(node.op_type)
    dims = None if k is None else _dims(node, k)
    return None if dims is None else prod(dims)


def _macs(node: onnx_ir.Node, opset: int) -> int | None:
    return node_macs(node) or None


def _kernel(node: onnx_ir.Node, opset: int) -> tuple[int, ...] | None:
    """Of a convolution its weights' window, which an attribute may only repeat."""
    if node.op_type in _CONVOLUTIONS:
        weights = _dims(node, _WEIGHT_INPUT[node.op_type])
        if weights is not None:
            return weights[2:]
    if node.op_type in _GLOBAL_POOLS:
        dims = _dims(node)
        return None if dims is None else dims[2:]
    return _list(node, "kernel_shape", opset)


def _list(node: onnx_ir.Node, name: str, opset: int) -> tuple[int, ...] | None:
    if node.op_type not in _CONVOLUTIONS and node.op_type not in _POOLS:
        return None
    value = attribute_value(node, name, opset)
    if not isinstance(value, tuple):
        return None
    return tuple(e for e in value if isinstance(e, int))


def _window(end: int) -> Measure:
    def measure(node: onnx_ir.Node, opset: int) -> int | None:
        kernel = _kernel(node, opset)
        return kernel[end] if kernel else None

    return measure


def _kernel_size(node: onnx_ir.Node, opset: int) -> int | None:
    kernel = _kernel(node, opset)
    return prod(kernel) if kernel else None


def _of_list(name: str, end: int) -> Measure:
    def measure(node: onnx_ir.Node, opset: int) -> int | None:
        values = _list(node, name, opset)
        return values[end] if values else None

    return measure


def _pad(end: int) -> Measure:
    """The larger of the two sides of an axis."""

    def measure(node: onnx_ir.Node, opset: int) -> int | None:
        pads = _list(node, "pads", opset)
        if not pads:
            return None
        half = len(pads) // 2
        return max(pads[:half][end], pads[half:][end])

    return measure


def _group(node: onnx_ir.Node, opset: int) -> int | None:
    if node.op_type not in _CONVOLUTIONS:
        return None
    value = attribute_value(node, "group", opset)
    return value if isinstance(value, int) else None


def _out_channels(node: onnx_ir.Node, opset: int) -> int | None:
    dims = static_shape(node.outputs[0]) if node.op_type in _CONVOLUTIONS else None
    return None if dims is None or len(dims) < 2 else dims[1]


def _depthwise(node: onnx_ir.Node, opset: int) -> int | None:
    """1 when every channel is its own group, else 0."""
    group = _group(node, opset)
    if group is None:
        return None
    return int(group > 1 and group == _input_dim(1)(node, opset))


_MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "batch": _input_dim(0),
        "depthwise": _depthwise,
        "dilation_h": _of_list("dilations", 0),
        "dilation_w": _of_list("dilations", -1),
        "elements": _elements,
        "group": _group,
        "height": _input_dim(-2),
        "in_channels": _input_dim(1),
        "kernel_h": _window(0),
        "kernel_size": _kernel_size,
        "kernel_w": _window(-1),
        "macs": _macs,
        "out_channels": _out_channels,
        "pad_h": _pad(0),
        "pad_w": _pad(-1),
        "rank": _rank,
        "stride_h": _of_list("strides", 0),
        "stride_w": _of_list("strides", -1),
        "weight_elements": _weight_elements,
        "width": _input_dim(-1),
    }
)
