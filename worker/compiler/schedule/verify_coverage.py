"""Every point of every domain is computed exactly once (or in a declared recomputation).

A Compute whose axes depend on disjoint loop variables covers a product of one-dimensional sets, so
two exact facts suffice: per axis its spans do not overlap, and volumes add up (several Computes of
one operator must be disjoint along some axis).  Other Computes are counted point by point.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.ir.op import TensorOp
from worker.compiler.schedule.grid import Ints, coordinates
from worker.compiler.schedule.nodes import Compute, LoopKind, Schedule
from worker.compiler.schedule.verify_structure import refuse
from worker.compiler.schedule.walk import Leaf, Walk

MAX_COUNTED_POINTS = 1 << 24
MAX_COUNTED_BOXES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Product:
    """Per axis: sorted, clipped, non-empty half-open intervals."""

    axes: tuple[tuple[Ints, Ints], ...]
    volume: int


def check_coverage(schedule: Schedule, flat: Walk) -> None:
    """Raise VerifyError (rule coverage) at the first operator not computed as it should be."""
    computes: dict[str, list[Leaf]] = {}
    for leaf in flat.leaves:
        if isinstance(leaf.node, Compute):
            computes.setdefault(leaf.node.op, []).append(leaf)
    for op in schedule.graph.ops:
        if not isinstance(op, TensorOp):
            continue
        leaves = computes.get(op.name, [])
        if not leaves:
            raise refuse("0", "coverage", f"{op.name} is never computed")
        for leaf in leaves:
            _check_scan(op, leaf)
        _check_op(op, leaves)


def _check_op(op: TensorOp, leaves: list[Leaf]) -> None:
    extents = tuple(a.extent for a in op.domain)
    again = [leaf for leaf in leaves if isinstance(leaf.node, Compute) and leaf.node.recompute]
    products = [_product(leaf, extents) for leaf in leaves]
    if again or any(p is None for p in products):
        _count(op, leaves, extents, may_repeat=bool(again))
        return
    known = [p for p in products if p is not None]
    for i, one in enumerate(known):
        for j in range(i):
            if not _disjoint(one, known[j]):
                _count(op, leaves, extents, may_repeat=False)
                return
    total = sum(p.volume for p in known)
    if total != prod(extents):
        raise refuse(
            leaves[0].path, "coverage", f"{total} of {prod(extents)} points of {op.name} computed"
        )


def _product(leaf: Leaf, extents: tuple[int, ...]) -> _Product | None:
    """The leaf's cover as a product of intervals; None when it is not one or overlaps itself."""
    assert isinstance(leaf.node, Compute)
    frames = {f.var: f for f in leaf.frames if f.trip > 1}
    used: set[str] = set()
    axes: list[tuple[Ints, Ints]] = []
    for span, extent in zip(leaf.node.box, extents, strict=True):
        names = [v for v in span.start.variables() if v in frames]
        if used.intersection(names):
            return None
        used.update(names)
        coords = coordinates([frames[v] for v in names])
        coords.update({f.var: np.zeros(1, np.int64) for f in leaf.frames if f.trip == 1})
        starts = np.unique(np.asarray(affine_values(span.start, coords)), return_counts=True)
        low = np.clip(starts[0], 0, extent)
        high = np.clip(starts[0] + span.extent, 0, extent)
        kept = high > low
        if np.any(starts[1][kept] > 1):
            return None
        low, high = low[kept], high[kept]
        if np.any(low[1:] < high[:-1]):
            return None
        axes.append((low, high))
    if used != set(frames):
        return None
    volume = prod(int((high - low).sum()) for low, high in axes)
    return _Product(tuple(axes), volume)


def _disjoint(a: _Product, b: _Product) -> bool:
    if a.volume == 0 or b.volume == 0:
        return True
    for (low, high), (other_low, other_high) in zip(a.axes, b.axes, strict=True):
        after = np.searchsorted(other_high, low, side="right")
        inside = after < len(other_low)
        if not np.any(other_low[after[inside]] < high[inside]):
            return True
    return False


def _count(op: TensorOp, leaves: list[Leaf], extents: tuple[int, ...], *, may_repeat: bool) -> None:
    boxes = sum(prod(f.trip for f in leaf.frames) for leaf in leaves)
    if prod(extents) > MAX_COUNTED_POINTS or boxes > MAX_COUNTED_BOXES:
        raise refuse(
            leaves[0].path, "coverage",
            f"boxes of {op.name} overlap, or are neither products nor few enough to count"
            f" ({boxes} boxes, {prod(extents)} points)",
        )  # fmt: skip
    times = np.zeros(extents, dtype=np.int32)
    for leaf in leaves:
        assert isinstance(leaf.node, Compute)
        shape = tuple(f.trip for f in leaf.frames)
        coords = coordinates(leaf.frames)
        starts = [
            np.broadcast_to(affine_values(span.start, coords), shape).ravel()
            for span in leaf.node.box
        ]
        for k in range(prod(shape)):
            index = tuple(
                slice(max(0, int(s[k])), max(0, int(s[k]) + span.extent))
                for s, span in zip(starts, leaf.node.box, strict=True)
            )
            times[index] += 1
    bad = times == 0 if may_repeat else times != 1
    if np.any(bad):
        point = tuple(int(v[0]) for v in np.nonzero(bad)) if op.domain else ()
        raise refuse(
            leaves[0].path, "coverage", f"point {point} of {op.name} is computed"
            f" {int(times[point])} times",
        )  # fmt: skip


def _check_scan(op: TensorOp, leaf: Leaf) -> None:
    """A recurrence may not be spread over cores: its steps need each other in order."""
    assert isinstance(leaf.node, Compute)
    parallel = {f.var for f in leaf.frames if f.kind in (LoopKind.CORES, LoopKind.LANES)}
    for axis, span in zip(op.domain, leaf.node.box, strict=True):
        if axis.kind is AxisKind.SCAN and parallel.intersection(span.start.variables()):
            raise refuse(leaf.path, "coverage", f"axis {axis.name} is ordered but runs in parallel")
