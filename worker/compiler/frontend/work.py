"""Static shapes of values, and operations of nodes that run on the host."""

from __future__ import annotations

from math import prod

import onnx_ir

from worker.compiler.frontend.model_summary import node_macs


def static_shape(value: onnx_ir.Value | None) -> tuple[int, ...] | None:
    """Dimensions when all are known, else None."""
    if value is None or value.shape is None:
        return None
    dims = tuple(d for d in value.shape if isinstance(d, int))
    return dims if len(dims) == len(value.shape) else None


def node_flops(node: onnx_ir.Node) -> int:
    """Operations: two per MAC, otherwise one per output element (0 when unknown)."""
    macs = node_macs(node)
    out = static_shape(node.outputs[0]) if node.outputs else None
    return 2 * macs if macs else prod(out) if out is not None else 0
