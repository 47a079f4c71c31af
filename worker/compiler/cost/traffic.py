"""Bytes a schedule moves, and the bytes that no schedule can avoid."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import OpaqueOp, Tensor
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import coordinates, span_range
from worker.compiler.schedule.nodes import Compute, LoopKind, Move, Schedule
from worker.compiler.schedule.walk import Leaf, compute_scope, reach_memory, walk


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
        if isinstance(op, OpaqueOp):
            if tensor.name in op.reads:
                return tensor.size_bytes
            continue
        for access in op.reads:
            if access.tensor != tensor.name:
                continue
            if not any(e.has_lookup for e in access.index):
                return tensor.size_bytes
            gathered += op.num_points * tensor.dtype.size_bytes
    return min(gathered, tensor.size_bytes)


def traffic_bytes(schedule: Schedule, machine: Machine) -> Mapping[tuple[str, str], int]:
    """Bytes moved per (source, destination) pair of levels, clipped to the tensors, exactly.

    Computes on operands at home count one element per point, as lowering stages them.
    Cost: iterations of the loops that a box depends on.
    """
    moved: dict[tuple[str, str], int] = {}
    for leaf in walk(schedule).leaves:
        if isinstance(leaf.node, Move):
            pair = (leaf.node.src, leaf.node.dst)
            moved[pair] = moved.get(pair, 0) + _move_bytes(schedule, leaf, leaf.node)
        else:
            for pair, size in _staged_bytes(schedule, leaf, leaf.node, machine):
                moved[pair] = moved.get(pair, 0) + size
    return moved


def _move_bytes(schedule: Schedule, leaf: Leaf, move: Move) -> int:
    tensor = schedule.graph.tensors[move.tensor]
    coords = coordinates(leaf.frames)
    total: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = np.ones((), dtype=np.int64)
    for span, size in zip(move.box, tensor.shape, strict=True):
        low, high = span_range(span, coords)
        inside = np.minimum(high, size - 1) - np.maximum(low, 0) + 1
        total = total * np.maximum(inside, 0)
    repeats = prod(f.trip for f in leaf.frames) // total.size
    return int(total.sum()) * repeats * tensor.dtype.size_bytes


def _staged_bytes(
    schedule: Schedule, leaf: Leaf, compute: Compute, machine: Machine
) -> tuple[tuple[tuple[str, str], int], ...]:
    op = schedule.graph.tensor_op(compute.op)
    reach, home = reach_memory(compute.engine, machine), machine.home.name
    points = _points(leaf, compute, tuple(a.extent for a in op.domain))
    found: list[tuple[tuple[str, str], int]] = []
    for access in op.reads:
        if compute_scope(leaf, access.tensor, reach) is None:
            size = schedule.graph.tensors[access.tensor].dtype.size_bytes
            found.append(((home, reach), points * size))
    if compute_scope(leaf, op.write.tensor, reach) is None:
        size = schedule.graph.tensors[op.write.tensor].dtype.size_bytes
        found.append(((reach, home), points * size))
    return tuple(found)


def _points(leaf: Leaf, compute: Compute, extents: tuple[int, ...]) -> int:
    coords = coordinates(leaf.frames)
    total: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = np.ones((), dtype=np.int64)
    for span, size in zip(compute.box, extents, strict=True):
        low, high = span_range(span, coords)
        total = total * np.maximum(np.minimum(high, size - 1) - np.maximum(low, 0) + 1, 0)
    return int(total.sum()) * (prod(f.trip for f in leaf.frames) // total.size)


def busy_cores(schedule: Schedule) -> int:
    """Cores that at least one leaf of the schedule runs on."""
    most = 1
    for leaf in walk(schedule).leaves:
        most = max(most, prod(f.trip for f in leaf.frames if f.kind is LoopKind.CORES))
    return most
