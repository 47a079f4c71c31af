"""Which storages need tokens at all, which writes need an order, and where cores stay apart.

A tensor written once per element (every usual result) needs no order among its writes, so the
stores of different cores and tiles are not chained to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from worker.compiler.ir.affine import const, var
from worker.compiler.ir.distinct import distinct
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.lower.grid import Grid, Ints, clip
from worker.compiler.lower.resolve import Refs
from worker.compiler.schedule.grid import core_ids
from worker.compiler.schedule.nodes import Box, Compute, Init, LoopKind, Move, Span
from worker.compiler.schedule.walk import Frame, Leaf, Scope, Walk

EVERYTHING = 1 << 40
"""Extent of a span that covers any tensor."""
_MOST_PIECES = 64


@dataclass(frozen=True, slots=True)
class HomeHazards:
    """Tensors at home that need tokens, in graph order, and those whose writes are disjoint."""

    tensors: tuple[str, ...]
    disjoint: frozenset[str]


@dataclass(frozen=True, slots=True)
class Boxes:
    """Half-open boxes of elements.  Shapes: start, end [n, rank]."""

    start: Ints
    end: Ints


@dataclass(frozen=True, slots=True)
class Apart:
    """Boxes of which no two overlap, by the hull of all: start, end [rank]."""

    start: Ints
    end: Ints


def home_hazards(nest: Walk, refs: Sequence[Refs]) -> HomeHazards:
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


def are_disjoint(boxes: Sequence[Boxes | Apart]) -> bool:
    """True when no two boxes provably overlap; False may also mean "not known".

    Each set must tile a grid (every box one cell, no cell twice), or be known to lie apart, and the
    hulls of different sets must not meet.  Cost: O(n log n) of what is listed.
    """
    listed = [b for b in boxes if isinstance(b, Boxes) and b.start.shape[0]]
    hulls = [(b.start.min(axis=0), b.end.max(axis=0)) for b in listed]
    hulls += [(b.start, b.end) for b in boxes if isinstance(b, Apart)]
    for i, (low, high) in enumerate(hulls):
        for other_low, other_high in hulls[:i]:
            if bool(np.all((low < other_high) & (other_low < high))):
                return False
    return all(_tiles_grid(b) for b in listed)


def _tiles_grid(boxes: Boxes) -> bool:
    cell: Ints = np.zeros(boxes.start.shape[0], dtype=np.int64)
    total = 1
    for dim in range(boxes.start.shape[1]):
        start, end = boxes.start[:, dim], boxes.end[:, dim]
        edges = distinct(np.concatenate([start, end]))
        first = np.searchsorted(edges, start)
        if not bool(np.all(np.searchsorted(edges, end) == first + 1)):
            return False
        cell = cell * len(edges) + first
        total *= len(edges)
        if total >= 1 << 62:
            return False
    return len(distinct(cell)) == len(cell)


def boxes_apart(box: Box, frames: Sequence[Frame], shape: Sequence[int]) -> Apart | None:
    """The boxes of all iterations, where the strides of the loops already keep them apart; None:
    they do not, or the boxes have to be looked at.

    Every loop moves the box along one dimension, by no less than what the loops of smaller strides
    in that dimension, and the box, take up together.
    """
    moves: list[list[tuple[int, int]]] = [[] for _ in box]
    for frame in frames:
        if frame.trip == 1:
            continue
        along = [d for d, span in enumerate(box) if frame.var in span.start.variables()]
        if len(along) != 1 or not box[along[0]].start.is_linear:
            return None
        moves[along[0]].append((abs(box[along[0]].start.coeff(frame.var)), frame.trip))
    ranges = {frame.var: (0, frame.trip - 1) for frame in frames}
    hull: list[tuple[int, int]] = []
    for span, loops, size in zip(box, moves, shape, strict=True):
        reach = span.extent
        for stride, trip in sorted(loops):
            if stride < reach:
                return None
            reach += stride * (trip - 1)
        low, high, _ = span.start.bounds(ranges)
        hull.append((max(low, 0), min(high + span.extent, size)))
    start, end = np.array(hull, dtype=np.int64).reshape(-1, 2).T
    return Apart(start, end) if np.all(start < end) else None


def _home_boxes(nest: Walk, leaf: Leaf) -> Boxes | Apart:
    box = write_box(nest, leaf)
    tensor = nest.schedule.graph.tensors[_written(nest, leaf)]
    apart = boxes_apart(box, leaf.frames, tensor.shape)
    if apart is not None:
        return apart
    grid = Grid.of(leaf.frames)
    clipped = clip(box, tensor.shape, grid.values)
    start = _stacked(clipped.start, grid.shape)
    extent = _stacked(clipped.extent, grid.shape)
    keep = np.all(extent > 0, axis=1)
    return Boxes(start[keep], (start + extent)[keep])


def _written(nest: Walk, leaf: Leaf) -> str:
    if isinstance(leaf.node, Move):
        return leaf.node.tensor
    return nest.schedule.graph.op(leaf.node.op).write.tensor


def write_box(nest: Walk, leaf: Leaf) -> Box:
    """Bounding box a leaf writes, as spans over its loop variables (unclipped)."""
    if isinstance(leaf.node, Move):
        return leaf.node.box
    op = nest.schedule.graph.op(leaf.node.op)
    return access_box(op, op.write, leaf.node)


def access_box(op: TensorOp, access: Access, compute: Compute) -> Box:
    """Bounding box that one iteration of `compute` touches through `access`.

    A split, wrapped or data-dependent index gives a span that covers any tensor.
    """
    starts = {
        a.name: s.start + var(f"{a.name}#") for a, s in zip(op.domain, compute.box, strict=True)
    }
    inside = {f"{a.name}#": s.extent - 1 for a, s in zip(op.domain, compute.box, strict=True)}
    spans: list[Span] = []
    for expr in access.index:
        placed = expr.substitute(starts)
        if not placed.is_linear:
            spans.append(Span(const(0), EVERYTHING))
            continue
        low = placed.substitute(dict.fromkeys(inside, 0))
        reach = 0
        for name, last in inside.items():
            reach += abs(placed.coeff(name)) * last
            low = low + min(0, placed.coeff(name)) * last
        spans.append(Span(low, reach + 1))
    return tuple(spans)


def inner_frames(leaf: Leaf, scope: Scope) -> tuple[Frame, ...]:
    """Loops around `leaf` that are inside `scope`."""
    outer = {f.path for f in scope.frames}
    return tuple(f for f in leaf.frames if f.path not in outer)


def core_pieces(nest: Walk, refs: Sequence[Refs], index: int, users: Sequence[int]) -> Ints:
    """Core offsets whose accesses to scope `index` stay in disjoint parts of its tile.

    `users` are the leaves that touch the scope.

    Empty when the cores inside the scope do not write it, or not in disjoint parts: then its slots
    are protected as a whole.  Cost: quadratic in the cores inside one scope (at most 64).
    """
    none = np.zeros(0, dtype=np.int64)
    scope = nest.scopes[index]
    hulls: dict[int, tuple[Ints, Ints]] = {}
    is_written = False
    if scope.queue is not None:
        return none  # producers and consumers count their cores differently
    for leaf, leaf_refs in ((nest.leaves[n], refs[n]) for n in users):
        inner = inner_frames(leaf, scope)
        if prod(f.trip for f in inner if f.kind is LoopKind.CORES) == 1:
            if any(f.kind is LoopKind.CORES for f in inner):
                return none
            continue
        for box in _boxes_in(nest, leaf, leaf_refs, index):
            found = _entry_boxes(leaf, box, scope)
            if found is None:
                return none
            grid = Grid.of(inner)
            cores = np.broadcast_to(core_ids(0, inner, grid.values), grid.shape).ravel()
            for core in distinct(cores).tolist():
                low = found.start[cores == core].min(axis=0)
                high = found.end[cores == core].max(axis=0)
                if core in hulls:
                    low = np.minimum(low, hulls[core][0])
                    high = np.maximum(high, hulls[core][1])
                hulls[core] = low, high
        is_written = is_written or leaf_refs.write.scope == index
    if not is_written or len(hulls) > _MOST_PIECES:
        return none
    order = sorted(hulls)
    for i, core in enumerate(order):
        low, high = hulls[core]
        if any(bool(np.all((low < hulls[c][1]) & (hulls[c][0] < high))) for c in order[:i]):
            return none
    return np.array(order, dtype=np.int64)


def _boxes_in(nest: Walk, leaf: Leaf, refs: Refs, index: int) -> list[Box]:
    """Boxes of the tensor that one iteration of `leaf` touches in scope `index`."""
    if isinstance(leaf.node, Move):
        return [leaf.node.box]
    op = nest.schedule.graph.op(leaf.node.op)
    accesses = zip((*op.reads, op.write), (*refs.reads, refs.write), strict=True)
    return [access_box(op, a, leaf.node) for a, ref in accesses if ref.scope == index]


def ordered_writes(nest: Walk, refs: Sequence[Refs], index: int, users: Sequence[int]) -> bool:
    """Whether writes of one entry of scope `index` may overlap, so that they need an order."""
    scope = nest.scopes[index]
    boxes: list[Boxes] = []
    if not any(
        ref.scope == index and is_never_empty(nest, nest.leaves[n], refs[n])
        for n in users
        for ref in refs[n].reads
    ):
        return True  # there may be no reader between two entries to keep their writes apart
    for leaf, leaf_refs in ((nest.leaves[n], refs[n]) for n in users):
        if leaf_refs.write.scope != index:
            continue
        if not isinstance(leaf.node, Move):
            return True
        found = _entry_boxes(leaf, leaf.node.box, scope)
        if found is None:
            return True
        boxes.append(found)
    return not are_disjoint(boxes)


def is_never_empty(nest: Walk, leaf: Leaf, refs: Refs) -> bool:
    """Whether every iteration of a leaf is an instruction, none cut to nothing nor unread."""
    graph = nest.schedule.graph
    if refs.may_be_unread:
        return False
    if isinstance(leaf.node, Move):
        if leaf.node.fill is not None:
            return True
        sizes = graph.tensors[leaf.node.tensor].shape
    else:
        sizes = tuple(axis.extent for axis in graph.op(leaf.node.op).domain)
    ranges = {f.var: (0, f.trip - 1) for f in leaf.frames}
    for span, size in zip(leaf.node.box, sizes, strict=True):
        low, high, _ = span.start.bounds(ranges)
        if low + span.extent <= 0 or high >= size:
            return False
    return True


def reads_identity(nest: Walk, refs: Sequence[Refs], index: int, users: Sequence[int]) -> bool:
    """True when something may read the identity that scope `index` starts with.

    Such a read starts a new value like a write does: the previous one must be done with.
    """
    if nest.scopes[index].init is not Init.IDENTITY:
        return False
    return bool(users) and refs[users[0]].write.scope != index


def _entry_boxes(leaf: Leaf, box: Box, scope: Scope) -> Boxes | None:
    """Boxes written during one entry, relative to the tile; None when they differ by entry."""
    inner = inner_frames(leaf, scope)
    names = {f.var for f in inner}
    grid = Grid.of(inner)
    starts: list[Ints] = []
    for span, tile in zip(box, scope.tile, strict=True):
        relative = span.start - tile.start
        if not names.issuperset(relative.variables()):
            return None
        starts.append(affine_values(relative, grid.values))
    start = _stacked(starts, grid.shape)
    extent = np.array([span.extent for span in box], dtype=np.int64)
    return Boxes(start, start + extent)


def _stacked(arrays: Sequence[Ints], shape: tuple[int, ...]) -> Ints:
    if not arrays:
        return np.zeros((prod(shape), 0), dtype=np.int64)
    return np.stack([np.broadcast_to(a, shape).ravel() for a in arrays], axis=1)
