"""How much arithmetic and memory traffic a host part does: the inputs of its roofline."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx_ir

from worker.compiler.partition.limits import shape_of


def node_flops(node: onnx_ir.Node) -> int:
    """Floating-point operations of one node (2 per MAC); 0 when shapes are unknown.

    Matrix-like operators by their contraction; LSTM/GRU/RNN by their gate products; anything else
    counts one operation per output element.
    """
    out = shape_of(node.outputs[0]) if node.outputs else None
    if node.op_type in ("LSTM", "GRU", "RNN"):
        data, weight = shape_of(node.inputs[0]), shape_of(node.inputs[1])
        recurrent = shape_of(node.inputs[2])
        if data is None or weight is None or recurrent is None:
            return 0
        return 2 * data[0] * data[1] * (prod(weight) + prod(recurrent))
    if out is None:
        return 0
    if node.op_type in ("Conv", "ConvInteger"):
        weight = shape_of(node.inputs[1])
        return 2 * prod(out) * prod(weight[1:]) if weight is not None else 0
    if node.op_type == "ConvTranspose":
        data, weight = shape_of(node.inputs[0]), shape_of(node.inputs[1])
        return 0 if data is None or weight is None else 2 * prod(data) * prod(weight[1:])
    if node.op_type in ("MatMul", "MatMulInteger"):
        data = shape_of(node.inputs[0])
        return 2 * prod(out) * data[-1] if data else 0
    if node.op_type == "Gemm":
        data = shape_of(node.inputs[0])
        if data is None:
            return 0
        transposed = node.attributes.get("transA")
        is_transposed = transposed is not None and transposed.as_int() == 1
        return 2 * prod(out) * data[0 if is_transposed else 1]
    return prod(out)


def host_flops(nodes: Sequence[onnx_ir.Node]) -> tuple[int, int]:
    """(flops, bytes read and written) of a host part, counting each node's statically known
    operands once; data-dependent shapes count as nothing."""
    flops = 0
    memory_bytes = 0
    for node in nodes:
        flops += node_flops(node)
        for value in (*node.inputs, *node.outputs):
            shape = shape_of(value)
            if value is not None and shape is not None and value.dtype is not None:
                memory_bytes += prod(shape) * max(1, value.dtype.bitwidth // 8)
    return flops, memory_bytes
