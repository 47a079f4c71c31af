"""The bytes that no schedule can avoid."""

from __future__ import annotations

from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Tensor


def compulsory_bytes(graph: Graph) -> tuple[int, int]:
    """(read, written) bytes that must cross the home level once: operands used and results.

    Intermediates of a unit need not leave the chip; tensors gathered through a lookup count once
    per point, since a table is not read whole.
    """
    read = 0
    for name in (*graph.inputs, *graph.constants):
        read += _needed_bytes(graph, graph.tensors[name])
    return read, sum(graph.tensors[name].size_bytes for name in graph.outputs)


def _needed_bytes(graph: Graph, tensor: Tensor) -> int:
    gathered = 0
    for op in graph.ops:
        for access in op.reads:
            if access.tensor != tensor.name:
                continue
            if not any(e.has_lookup for e in access.index):
                return tensor.size_bytes
            gathered += op.num_points * tensor.dtype.size_bytes
    return min(gathered, tensor.size_bytes)
