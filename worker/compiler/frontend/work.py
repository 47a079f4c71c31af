"""Static shapes of values, and operations of nodes that run on the host."""

from __future__ import annotations

from math import prod

import onnx_ir

from worker.compiler.frontend.model_summary import einsum_steps, node_macs

_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_COUNTED = {"LRN": "size", "TfIdfVectorizer": "max_skip_count"}
"""Attributes that say how often a kernel looks at each element."""


def static_shape(value: onnx_ir.Value | None) -> tuple[int, ...] | None:
    """Dimensions when all are known, else None."""
    if value is None or value.shape is None:
        return None
    dims = tuple(d for d in value.shape if isinstance(d, int))
    return dims if len(dims) == len(value.shape) else None


def node_steps(node: onnx_ir.Node) -> int:
    """Multiply-accumulates of a node, or elements that it looks at: those of an Einsum of one
    operand, and where an attribute says how many; 0 when unknown.
    """
    if node.op_type == "Einsum":
        return einsum_steps(node)
    if node.op_type in _COUNTED:
        times, read = node.attributes.get(_COUNTED[node.op_type]), static_shape(node.inputs[0])
        return 0 if times is None or read is None else prod(read) * (1 + abs(times.as_int()))
    return _window_steps(node) if node.op_type in _POOLS else node_macs(node)


def _window_steps(node: onnx_ir.Node) -> int:
    """A whole window for each element that is made, padding included: kernels differ in what they
    step over."""
    window, made = node.attributes.get("kernel_shape"), static_shape(node.outputs[0])
    return prod(made) * prod(map(abs, window.as_ints())) if window and made is not None else 0


def node_flops(node: onnx_ir.Node) -> int:
    """Operations: two per MAC, otherwise one per output element (0 when unknown)."""
    macs = node_macs(node)
    out = static_shape(node.outputs[0]) if node.outputs else None
    return 2 * macs if macs else prod(out) if out is not None else 0
