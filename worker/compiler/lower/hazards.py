"""Which tensors at home need tokens inside a unit, and whether their writes need an order.

A tensor written once per element (every usual result) needs no order among its writes, so the
stores of different cores and tiles are not chained to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from worker.compiler.ir.affine import const, var
from worker.compiler.lower.grid import Grid, Ints, clip, evaluate
from worker.compiler.lower.nest import FrameKind, Leaf, Nest, Scope
from worker.compiler.lower.resolve import Refs
from worker.compiler.schedule.nodes import Box, Move, Span


@dataclass(frozen=True, slots=True)
class HomeHazards:
    """Tensors at home that need tokens, in graph order, and those whose writes are disjoint."""

    tensors: tuple[str, ...]
    disjoint: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Shapes: start, end [n, rank]."""

    start: Ints
    end: Ints


def home_hazards(nest: Nest, refs: Sequence[Refs]) -> HomeHazards:
    """Find the tensors at home that the unit both writes and uses, or writes twice."""
    written: dict[str, list[int]] = {}
    read: set[str] = set()
    for number, leaf_refs in enumerate(refs):
        if leaf_refs.write.scope is None:
            written.setdefault(leaf_refs.write.tensor, []).append(number)
        read.update(r.tensor for r in leaf_refs.reads if r.scope is None)
    disjoint = frozenset(
        name
        for name, leaves in written.items()
        if are_disjoint([_home_boxes(nest, nest.leaves[n]) for n in leaves])
    )
    needed = tuple(name for name in written if name in read or name not in disjoint)
    return HomeHazards(needed, disjoint)


def are_disjoint(boxes: Sequence[_Boxes]) -> bool:
    """True when no two boxes provably overlap; False may also mean "not known".

    Each set must tile a grid (every box one cell, no cell twice) and the hulls of different sets
    must not meet.  Cost: O(n log n).
    """
    filled = [b for b in boxes if b.start.shape[0]]
    hulls = [(b.start.min(axis=0), b.end.max(axis=0)) for b in filled]
    for i, (low, high) in enumerate(hulls):
        for other_low, other_high in hulls[:i]:
            if bool(np.all((low < other_high) & (other_low < high))):
                return False
    return all(_tiles_grid(b) for b in filled)


def _tiles_grid(boxes: _Boxes) -> bool:
    cell: Ints = np.zeros(boxes.start.shape[0], dtype=np.int64)
    total = 1
    for dim in range(boxes.start.shape[1]):
        start, end = boxes.start[:, dim], boxes.end[:, dim]
        edges = np.unique(np.concatenate([start, end]))
        first = np.searchsorted(edges, start)
        if not bool(np.all(np.searchsorted(edges, end) == first + 1)):
            return False
        cell = cell * len(edges) + first
        total *= len(edges)
        if total >= 1 << 62:
            return False
    return len(np.unique(cell)) == len(cell)


def _home_boxes(nest: Nest, leaf: Leaf) -> _Boxes:
    box = write_box(nest, leaf)
    tensor = nest.schedule.graph.tensors[_written(nest, leaf)]
    grid = Grid.of(leaf.frames)
    clipped = clip(box, tensor.shape, grid.values)
    start = _stacked(clipped.start, grid.shape)
    extent = _stacked(clipped.extent, grid.shape)
    keep = np.all(extent > 0, axis=1)
    return _Boxes(start[keep], (start + extent)[keep])


def _written(nest: Nest, leaf: Leaf) -> str:
    if isinstance(leaf.node, Move):
        return leaf.node.tensor
    return nest.schedule.graph.tensor_op(leaf.node.op).write.tensor


def write_box(nest: Nest, leaf: Leaf) -> Box:
    """Bounding box a leaf writes, as spans over its loop variables (unclipped)."""
    if isinstance(leaf.node, Move):
        return leaf.node.box
    op = nest.schedule.graph.tensor_op(leaf.node.op)
    starts = {
        a.name: s.start + var(f"{a.name}#") for a, s in zip(op.domain, leaf.node.box, strict=True)
    }
    inside = {f"{a.name}#": s.extent - 1 for a, s in zip(op.domain, leaf.node.box, strict=True)}
    spans: list[Span] = []
    for expr in op.write.index:
        placed = expr.substitute(starts)
        low = placed.substitute(dict.fromkeys(inside, 0))
        reach = 0
        for name, last in inside.items():
            reach += abs(placed.coeff(name)) * last
            low = low + min(0, placed.coeff(name)) * last
        if not placed.is_linear:
            # A split or wrapped index: give the whole of what it can reach.
            low, reach = const(0), 1 << 40
        spans.append(Span(low, reach + 1))
    return tuple(spans)


def ordered_writes(nest: Nest, refs: Sequence[Refs], index: int) -> bool:
    """Whether writes of one entry of scope `index` may overlap, so that they need an order."""
    scope = nest.scopes[index]
    boxes: list[_Boxes] = []
    for leaf, leaf_refs in zip(nest.leaves, refs, strict=True):
        if leaf_refs.write.scope != index:
            continue
        if not isinstance(leaf.node, Move):
            return True
        found = _entry_boxes(leaf, leaf.node.box, scope)
        if found is None:
            return True
        boxes.append(found)
    return not are_disjoint(boxes)


def _entry_boxes(leaf: Leaf, box: Box, scope: Scope) -> _Boxes | None:
    """Boxes written during one entry, relative to the tile; None when they differ by entry."""
    outer = {f.path for f in scope.frames}
    inner = [f for f in leaf.frames if f.path not in outer or f.kind is FrameKind.LANES]
    names = {f.var for f in inner}
    grid = Grid.of(inner)
    starts: list[Ints] = []
    for span, tile in zip(box, scope.tile, strict=True):
        relative = span.start - tile.start
        if not names.issuperset(relative.variables()):
            return None
        starts.append(evaluate(relative, grid.values))
    start = _stacked(starts, grid.shape)
    extent = np.array([span.extent for span in box], dtype=np.int64)
    return _Boxes(start, start + extent)


def _stacked(arrays: Sequence[Ints], shape: tuple[int, ...]) -> Ints:
    if not arrays:
        return np.zeros((prod(shape), 0), dtype=np.int64)
    return np.stack([np.broadcast_to(a, shape).ravel() for a in arrays], axis=1)
