"""How much arithmetic and memory traffic a host part does: the inputs of its roofline."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx_ir

from worker.compiler.frontend.tensor_checks import bits_of
from worker.compiler.frontend.work import node_flops, static_shape


def host_flops(nodes: Sequence[onnx_ir.Node]) -> tuple[int, int]:
    """(flops, bytes read and written) of a host part, counting each node's statically known
    operands once; data-dependent shapes count as nothing."""
    flops = 0
    memory_bytes = 0
    for node in nodes:
        flops += node_flops(node)
        for value in (*node.inputs, *node.outputs):
            shape = static_shape(value)
            if value is not None and shape is not None and value.dtype is not None:
                memory_bytes += prod(shape) * max(1, (bits_of(int(value.dtype)) or 0) // 8)
    return flops, memory_bytes
