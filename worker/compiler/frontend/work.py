"""How much arithmetic one ONNX node does, from its static shapes."""

from __future__ import annotations

from math import prod

import onnx_ir


def static_shape(value: onnx_ir.Value | None) -> tuple[int, ...] | None:
    """Dimensions when all are known, else None."""
    if value is None or value.shape is None:
        return None
    dims = tuple(d for d in value.shape if isinstance(d, int))
    return dims if len(dims) == len(value.shape) else None


def node_macs(node: onnx_ir.Node) -> int:
    """Multiply-accumulates of a matrix-like node; 0 for anything else or unknown shapes."""
    shapes = [static_shape(v) for v in node.inputs]
    out = static_shape(node.outputs[0]) if node.outputs else None
    if node.op_type in ("LSTM", "GRU", "RNN"):
        if len(shapes) < 3 or shapes[0] is None or shapes[1] is None or shapes[2] is None:
            return 0
        return shapes[0][0] * shapes[0][1] * (prod(shapes[1]) + prod(shapes[2]))
    if out is None or len(shapes) < 2 or shapes[0] is None or shapes[1] is None:
        return 0
    match node.op_type:
        case "Conv" | "ConvInteger":
            return prod(out) * prod(shapes[1][1:])
        case "ConvTranspose":
            return prod(shapes[0]) * prod(shapes[1][1:])
        case "MatMul" | "MatMulInteger":
            return prod(out) * (shapes[0][-1] if shapes[0] else 1)
        case "Gemm":
            transposed = node.attributes.get("transA")
            is_transposed = transposed is not None and transposed.as_int() == 1
            return prod(out) * shapes[0][0 if is_transposed else 1]
        case _:
            return 0


def node_flops(node: onnx_ir.Node) -> int:
    """Operations: two per MAC, otherwise one per output element (0 when unknown)."""
    macs = node_macs(node)
    out = static_shape(node.outputs[0]) if node.outputs else None
    return 2 * macs if macs else prod(out) if out is not None else 0
