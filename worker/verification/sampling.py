"""Check one kernel at sampled points against the numpy oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.bits import load
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import affine_values, evaluate_points
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Tensor, TensorOp
from worker.compiler.judge.units import Unit
from worker.compiler.package.verify_numerics import coarsest
from worker.report.node_names import node_span
from worker.report.verified_row import VerifiedRow
from worker.verification.float64_graph import float64_arrays, float64_graph
from worker.verification.measured import (
    NUM_MOVES,
    floor_of,
    judged,
    longest_sum,
    nudged,
    overflows,
    relative_distance,
)

Array = npt.NDArray[Any]
NUM_POINTS = 48
MAX_READS = 1 << 21
"""Elements the oracle reads per kernel: long reductions get fewer points."""


def sample_points(op: TensorOp, seed: int, count: int) -> npt.NDArray[np.int64]:
    """Corners of the output's axes, then a seeded draw.  Shapes: [points, PARALLEL axes]."""
    extents = [a.extent for a in op.parallel_axes]
    if not extents:
        return np.zeros((1, 0), dtype=np.int64)
    rng = np.random.default_rng(seed)
    first = np.zeros((1, len(extents)), dtype=np.int64)
    last = np.array([[e - 1 for e in extents]], dtype=np.int64)
    drawn = np.stack([rng.integers(0, e, max(count - 2, 1)) for e in extents], axis=1)
    return np.unique(np.concatenate([first, last, drawn]), axis=0)


def _reads_per_point(op: TensorOp) -> int:
    return prod(axis.extent for axis in op.reduce_axes)


def interior(
    graph: Graph,
    arrays: Mapping[str, Array],
    last: TensorOp,
    points: npt.NDArray[np.int64],
    *,
    is_in_order: bool = False,
) -> dict[str, Array]:
    """Tensors that only the kernel knows, filled where `last` needs them at `points`.

    Every other operator of a fused kernel writes each element once, by its own PARALLEL axes; the
    elements wanted name the points to evaluate.
    """
    wanted: dict[str, list[npt.NDArray[np.int64]]] = {}
    producers = {op.write.tensor: op for op in graph.ops}
    points_of: dict[str, npt.NDArray[np.int64]] = {last.name: points}
    for op in reversed(graph.ops):
        if op.name not in points_of:
            elements = wanted.get(op.write.tensor)
            if elements is None:
                continue
            points_of[op.name] = _points_writing(op, _distinct(elements))
        at = points_of[op.name]
        coords = {axis.name: at[:, k] for k, axis in enumerate(op.parallel_axes)}
        for access in op.reads:
            if access.tensor in producers and access.tensor not in arrays:
                index = np.empty((len(at), len(access.index)), dtype=np.int64)
                for dim, expr in enumerate(access.index):
                    index[:, dim] = affine_values(expr, coords)
                wanted.setdefault(access.tensor, []).append(index)
    found: dict[str, Array] = {}
    for op in graph.ops:
        if op is last or op.name not in points_of or op.write.tensor in arrays:
            continue
        known = {**arrays, **found}
        at = points_of[op.name]
        where, values = evaluate_points(op, graph.tensors, known, at, is_in_order=is_in_order)
        tensor = graph.tensors[op.write.tensor]
        whole = np.zeros(tensor.shape, dtype=tensor.dtype.numpy)
        whole[where] = values if tensor.shape else values[0]
        found[tensor.name] = whole
    return found


def _distinct(elements: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Each element once; a tensor of rank 0 has one."""
    found = np.concatenate(elements)
    return np.unique(found, axis=0) if found.shape[1] else found[:1]


def _points_writing(op: TensorOp, elements: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Points of the PARALLEL axes at which `op` writes `elements` ([n, rank])."""
    columns: dict[str, npt.NDArray[np.int64]] = {}
    for dim, expr in enumerate(op.write.index):
        # Several axes of one dimension (channels of groups) are digits of its index.
        left = elements[:, dim] - expr.const
        for name in sorted(expr.variables(), key=lambda n: -expr.coeff(n)):
            columns[name] = left // expr.coeff(name)
            left = left - columns[name] * expr.coeff(name)
    zeros = np.zeros(len(elements), dtype=np.int64)
    axes = [columns.get(axis.name, zeros) for axis in op.parallel_axes]
    return np.stack(axes, axis=1) if axes else np.zeros((1, 0), dtype=np.int64)


def check_unit(
    unit: Unit, arrays: Mapping[str, Array], seed: int, onnx_nodes: tuple[str, ...]
) -> VerifiedRow:
    """The unit's last operator against the oracle.

    `arrays` holds every operand after the call, by canonical name.  Tensors that the kernel keeps
    to itself are computed by the oracle, at the points that the last operator reads.  Tolerances
    are those of whole tensors, for this kernel's own types and sums: its operands are given, so
    only what it writes is rounded.
    """
    graph = unit.schedule.graph
    op = graph.ops[-1]
    reads = max(_reads_per_point(inner) for inner in graph.ops)
    count = max(3, min(NUM_POINTS, MAX_READS // reads))
    points = sample_points(op, seed, count)
    where, expected = _oracle(graph, arrays, points)
    out = graph.tensors[op.write.tensor]
    got = _plain(arrays[out.name][where], out)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(got - expected))
    error = np.where(np.isnan(error), np.inf, error)  # NaN on one side: no comparison refuses NaN
    worst = float(np.max(error)) if error.size else 0.0
    finite = expected[np.isfinite(expected)]
    scale = float(np.max(np.abs(finite))) if finite.size else 0.0
    label = f"kernel {unit.kernel_name} {node_span(onnx_nodes)}"
    if not out.dtype.is_float:
        return VerifiedRow(label, worst, worst, 0.0 if out.dtype.size_bytes > 1 else 1.0)
    relative = worst / scale if scale else (0.0 if worst == 0 else float("inf"))
    written = coarsest(graph.tensors[inner.write.tensor].dtype for inner in graph.ops)
    row = VerifiedRow(label, worst, relative, floor_of(written, longest_sum([graph])))
    if relative <= row.tolerance or out.dtype is DType.F64:
        return row
    own, is_overflowing = _own_error(graph, arrays, points, seed)
    return judged(row, own, written, is_overflowing=is_overflowing)


def _oracle(
    graph: Graph,
    arrays: Mapping[str, Array],
    points: npt.NDArray[np.int64],
    *,
    is_in_order: bool = False,
) -> tuple[tuple[Array, ...], Array]:
    """Where the last operator writes at `points`, and what, in float64."""
    op = graph.ops[-1]
    known = {**arrays, **interior(graph, arrays, op, points, is_in_order=is_in_order)}
    where, values = evaluate_points(op, graph.tensors, known, points, is_in_order=is_in_order)
    return where, _plain(values, graph.tensors[op.write.tensor])


def _plain(stored: Array, tensor: Tensor) -> Array:
    """Numbers in float64."""
    plain: Array = load(stored, tensor.dtype).astype(np.float64)
    return plain


def _own_error(
    graph: Graph, arrays: Mapping[str, Array], points: npt.NDArray[np.int64], seed: int
) -> tuple[float, bool]:
    """How wrong the oracle's values at `points` are, of the largest; and whether they are finite by
    roundings alone.

    Its distance from itself in float64, adding up by pairs and term by term (kernels do either, and
    where terms cancel the one is far closer than the other), and from runs whose operands were
    moved by one rounding.
    """
    _, values = _oracle(graph, arrays, points)
    _, in_order = _oracle(graph, arrays, points, is_in_order=True)
    _, exact = _oracle(float64_graph(graph), float64_arrays(graph, arrays), points)
    others = [(values, exact), (in_order, exact)]
    for move in range(NUM_MOVES):
        _, moved = _oracle(graph, nudged(arrays, seed + move), points)
        others.append((values, moved))
    own = max(relative_distance(one, other) for one, other in others)
    return own, any(overflows(one, other) for one, other in others)
