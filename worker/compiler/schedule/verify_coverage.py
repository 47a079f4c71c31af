"""Every point of every domain is computed exactly once (or in a declared recomputation).

A Compute whose axes depend on disjoint loop variables covers a product of one-dimensional sets, so
two exact facts suffice: per axis its spans do not overlap, and volumes add up (several Computes of
one operator must be disjoint along some axis).  A recomputation may cover a point again along the
parallel axes: there the union per axis must be the whole axis.  Along a reduce axis nothing may
repeat, as the sum would count it twice.  Other Computes are counted, not point by point but in the
cells between the edges of their boxes, so that the size of a domain does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.distinct import distinct
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.ir.op import TensorOp
from worker.compiler.schedule.grid import Ints, coordinates
from worker.compiler.schedule.nodes import Compute, LoopKind, Schedule, Span
from worker.compiler.schedule.verify_structure import refuse
from worker.compiler.schedule.walk import Leaf, Walk

MAX_COUNTED_CELLS = 1 << 24
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
        leaves = computes.get(op.name, [])
        if not leaves:
            raise refuse("0", "coverage", f"{op.name} is never computed")
        for leaf in leaves:
            _check_scan(op, leaf)
            _check_sum(op, leaf)
        _check_op(op, leaves)


def _check_op(op: TensorOp, leaves: list[Leaf]) -> None:
    extents = tuple(a.extent for a in op.domain)
    products = [_product(leaf, op) for leaf in leaves]
    known = [p for p in products if p is not None]
    is_again = [_recomputes(leaf) for leaf in leaves]
    if any(is_again):
        covers = len(known) == len(leaves) == sum(is_again) and any(
            _is_whole(p, extents) for p in known
        )
        if not covers:
            _count(op, leaves, products, extents)
        return
    if len(known) < len(leaves):
        _count(op, leaves, products, extents)
        return
    for i, one in enumerate(known):
        for j in range(i):
            if not _disjoint(one, known[j]):
                _count(op, leaves, products, extents)
                return
    total = sum(p.volume for p in known)
    if total != prod(extents):
        raise refuse(
            leaves[0].path, "coverage", f"{total} of {prod(extents)} points of {op.name} computed"
        )


def _recomputes(leaf: Leaf) -> bool:
    assert isinstance(leaf.node, Compute)
    return leaf.node.recompute


def _product(leaf: Leaf, op: TensorOp) -> _Product | None:
    """The leaf's cover as a product of interval unions.

    None when it is no product, or covers something twice that it may not.
    """
    assert isinstance(leaf.node, Compute)
    frames = {f.var: f for f in leaf.frames if f.trip > 1}
    used: set[str] = set()
    axes: list[tuple[Ints, Ints]] = []
    for axis, span in zip(op.domain, leaf.node.box, strict=True):
        names = [v for v in span.start.variables() if v in frames]
        if used.intersection(names):
            return None
        used.update(names)
        low, high, repeats = _intervals(leaf, span, axis.extent, names)
        if repeats and (not leaf.node.recompute or axis.kind is not AxisKind.PARALLEL):
            return None
        axes.append(_union(low, high) if repeats else (low, high))
    if used != set(frames) and not leaf.node.recompute:
        return None
    volume = prod(int((high - low).sum()) for low, high in axes)
    return _Product(tuple(axes), volume)


def _intervals(leaf: Leaf, span: Span, extent: int, names: list[str]) -> tuple[Ints, Ints, bool]:
    """(ascending starts, ends) of a span's clipped, non-empty positions; whether any two meet."""
    frames = {f.var: f for f in leaf.frames}
    coords = coordinates([frames[v] for v in names])
    coords.update({f.var: np.zeros(1, np.int64) for f in leaf.frames if f.trip == 1})
    starts, times = np.unique(np.asarray(affine_values(span.start, coords)), return_counts=True)
    low = np.clip(starts, 0, extent)
    high = np.clip(starts + span.extent, 0, extent)
    kept = high > low
    low, high = low[kept], high[kept]
    return low, high, bool(np.any(times[kept] > 1) or np.any(low[1:] < high[:-1]))


def _union(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Disjoint intervals with the same points.  `high` ascends because all spans are as long."""
    first = np.ones(len(low), dtype=bool)
    first[1:] = low[1:] > high[:-1]
    last = np.append(first[1:], True)
    return low[first], high[last]


def _is_whole(product: _Product, extents: tuple[int, ...]) -> bool:
    return product.volume == prod(extents)


def _disjoint(a: _Product, b: _Product) -> bool:
    if a.volume == 0 or b.volume == 0:
        return True
    for (low, high), (other_low, other_high) in zip(a.axes, b.axes, strict=True):
        after = np.searchsorted(other_high, low, side="right")
        inside = after < len(other_low)
        if not np.any(other_low[after[inside]] < high[inside]):
            return True
    return False


def _count(
    op: TensorOp,
    leaves: list[Leaf],
    products: list[_Product | None],
    extents: tuple[int, ...],
) -> None:
    """Count how often each cell between box edges is computed; a cell is computed as a whole."""
    boxes = sum(
        prod(f.trip for f in leaf.frames)
        for leaf, product in zip(leaves, products, strict=True)
        if product is None
    )
    is_few = boxes <= MAX_COUNTED_BOXES
    corners = [
        list(product.axes) if product is not None else _corners(leaf, extents)
        for leaf, product in zip(leaves, products, strict=True)
        if is_few
    ]
    edges = [
        distinct(np.concatenate([[0, extent], *(end for c in corners for end in c[k])]))
        for k, extent in enumerate(extents)
    ]
    shape = tuple(len(e) - 1 for e in edges)
    if not is_few or prod(shape) > MAX_COUNTED_CELLS:
        raise refuse(
            leaves[0].path, "coverage",
            f"boxes of {op.name} overlap, or are neither products nor few enough to count"
            f" ({boxes} boxes, {prod(extents)} points)",
        )  # fmt: skip
    times = np.zeros(shape, dtype=np.int32)
    again = np.zeros(shape, dtype=np.int32)
    for leaf, product, corner in zip(leaves, products, corners, strict=True):
        target = again if _recomputes(leaf) else times
        cells = [
            (np.searchsorted(e, low), np.searchsorted(e, high))
            for e, (low, high) in zip(edges, corner, strict=True)
        ]
        if product is not None:
            target[np.ix_(*(_inside(*c, size) for c, size in zip(cells, shape, strict=True)))] += 1
            continue
        for k in range(prod(f.trip for f in leaf.frames)):
            target[tuple(slice(int(low[k]), int(high[k])) for low, high in cells)] += 1
    # Only declared recomputation may meet: a plain box has its points for itself.
    bad = ((times == 0) & (again == 0)) | (times > 1) | ((times > 0) & (again > 0))
    if np.any(bad):
        cell = tuple(int(v[0]) for v in np.nonzero(bad)) if op.domain else ()
        point = tuple(int(e[k]) for e, k in zip(edges, cell, strict=True))
        raise refuse(
            leaves[0].path, "coverage", f"point {point} of {op.name} is computed"
            f" {int(times[cell] + again[cell])} times",
        )  # fmt: skip


def _inside(first: Ints, end: Ints, size: int) -> Ints:
    """Which of `size` cells lie in disjoint ranges [first, end)."""
    steps = np.zeros(size + 1, dtype=np.int64)
    steps[first] += 1
    steps[end] -= 1
    # A range that ends where the next starts cancels out there: both edges are unique.
    return np.asarray(np.cumsum(steps[:-1]) > 0)


def _corners(leaf: Leaf, extents: tuple[int, ...]) -> list[tuple[Ints, Ints]]:
    """Per axis, clipped starts and ends of the leaf's boxes, one per iteration."""
    assert isinstance(leaf.node, Compute)
    shape = tuple(f.trip for f in leaf.frames)
    coords = coordinates(leaf.frames)
    found: list[tuple[Ints, Ints]] = []
    for span, extent in zip(leaf.node.box, extents, strict=True):
        start = np.broadcast_to(affine_values(span.start, coords), shape).ravel()
        found.append((np.clip(start, 0, extent), np.clip(start + span.extent, 0, extent)))
    return found


def _check_scan(op: TensorOp, leaf: Leaf) -> None:
    """A recurrence may not be spread over cores: its steps need each other in order."""
    assert isinstance(leaf.node, Compute)
    parallel = {f.var for f in leaf.frames if f.kind in (LoopKind.CORES, LoopKind.LANES)}
    for axis, span in zip(op.domain, leaf.node.box, strict=True):
        if axis.kind is AxisKind.SCAN and parallel.intersection(span.start.variables()):
            raise refuse(leaf.path, "coverage", f"axis {axis.name} is ordered but runs in parallel")


def _check_sum(op: TensorOp, leaf: Leaf) -> None:
    """A recomputation repeats points of the result, never terms of one sum."""
    assert isinstance(leaf.node, Compute)
    if not leaf.node.recompute:
        return
    moving = {f.var for f in leaf.frames if f.trip > 1}
    for axis, span in zip(op.domain, leaf.node.box, strict=True):
        names = [v for v in span.start.variables() if v in moving]
        if axis.kind is AxisKind.REDUCE and _intervals(leaf, span, axis.extent, names)[2]:
            raise refuse(leaf.path, "coverage", f"spans of {axis.name} overlap: terms count twice")
