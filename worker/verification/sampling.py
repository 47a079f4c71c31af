"""Check one kernel at sampled points against the numpy oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.bits import load
from worker.compiler.ir.evaluate import evaluate_points
from worker.compiler.ir.op import TensorOp
from worker.compiler.package.verify_numerics import coarsest, tolerance
from worker.compiler.units import Unit

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


def check_unit(
    unit: Unit, arrays: Mapping[str, Array], seed: int, onnx_nodes: tuple[str, ...]
) -> tuple[str, float, float, float]:
    """(label, max abs error, error over scale, tolerance) of the unit's last operator.

    `arrays` holds every operand after the call, by canonical name; for a unit of several
    operators the operands of the last one must all be at home, which holds for single-op units.
    """
    graph = unit.schedule.graph
    op = graph.ops[-1]
    assert isinstance(op, TensorOp)
    reads = 1
    for axis in op.reduce_axes:
        reads *= axis.extent
    count = max(3, min(NUM_POINTS, MAX_READS // reads))
    points = sample_points(op, seed, count)
    where, want = evaluate_points(op, graph.tensors, arrays, points)
    out = graph.tensors[op.write.tensor]
    got = load(arrays[out.name][where], out.dtype).astype(np.float64)
    expected = load(want, out.dtype).astype(np.float64)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(got - expected))
    error = np.where(np.isnan(error), np.inf, error)  # NaN on one side: no comparison refuses NaN
    worst = float(np.max(error)) if error.size else 0.0
    finite = expected[np.isfinite(expected)]
    scale = float(np.max(np.abs(finite))) if finite.size else 0.0
    dtypes = [graph.tensors[a.tensor].dtype for a in (*op.reads, op.write)]
    bound = tolerance(coarsest(dtypes))
    if not out.dtype.is_float:
        bound = 0.0 if out.dtype.size_bytes > 1 else 1.0
        return f"kernel {unit.kernel_name} {_node(onnx_nodes)}", worst, worst, bound
    relative = worst / scale if scale else (0.0 if worst == 0 else float("inf"))
    return f"kernel {unit.kernel_name} {_node(onnx_nodes)}", worst, relative, bound


def _node(names: tuple[str, ...]) -> str:
    return names[0] if names else ""
