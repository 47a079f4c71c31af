"""What leaves touch of a slot, or of a tensor at home, as boxes relative to its tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worker.compiler.ir.affine import const
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.lower.grid import Grid, Ints
from worker.compiler.lower.resolve import Ref, Refs
from worker.compiler.lower.rows.hazards import EVERYTHING, access_box, inner_frames, is_never_empty
from worker.compiler.schedule.nodes import Box, Move, Span
from worker.compiler.schedule.walk import Frame, Leaf, Scope, Walk


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor, or a tile of it, is kept."""

    tensor: str
    tile: Box
    scope: Scope | None
    """None: at home, as a whole."""

    @staticmethod
    def of_scope(scope: Scope) -> Place:
        return Place(scope.tensor, scope.tile, scope)

    @staticmethod
    def of_home(nest: Walk, tensor: str) -> Place:
        shape = nest.schedule.graph.tensors[tensor].shape
        return Place(tensor, tuple(Span(const(0), size) for size in shape), None)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(span.extent for span in self.tile)

    def is_named_by(self, ref: Ref) -> bool:
        """Whether an operand of a leaf is here."""
        number = None if self.scope is None else self.scope.number
        return ref.scope == number and ref.tensor == self.tensor

    def frames_inside(self, leaf: Leaf) -> tuple[Frame, ...]:
        """Loops around a leaf that run while one value is here."""
        return leaf.frames if self.scope is None else inner_frames(leaf, self.scope)


@dataclass(frozen=True, slots=True)
class Reach:
    """What the iterations of a leaf touch of one entry, relative to its tile.

    Per dimension that is asked for, [iterations] or what broadcasts to it: first element and end.
    """

    low: tuple[Ints, ...]
    high: tuple[Ints, ...]
    is_write: bool
    is_sure: bool
    """Whether every iteration is an instruction, none being cut to nothing."""


def cut_dims(
    nest: Walk, refs: Sequence[Refs], users: Sequence[int], place: Place, *, are_ordered: bool
) -> tuple[int, ...]:
    """Dimensions along which some write, and some access that it may have to be kept from, touches
    less than all: a read, or where writes `are_ordered` any."""
    dims = tuple(range(len(place.tile)))
    for is_write in (True, False):
        if dims and (is_write or not are_ordered):
            least = list(place.sizes)
            for leaf, leaf_refs in ((nest.leaves[n], refs[n]) for n in users):
                for box in boxes_in(nest, leaf, leaf_refs, place, is_write=is_write):
                    least = [min(size, span.extent) for size, span in zip(least, box, strict=True)]
            dims = tuple(d for d in dims if least[d] < place.tile[d].extent)
    return dims


def reaches_of(
    nest: Walk, refs: Sequence[Refs], users: Sequence[int], place: Place, dims: Sequence[int]
) -> list[Reach] | None:
    """What leaves read and write of a place along some dimensions; None where that is not the same
    in every entry.

    Cost: one number per iteration of the loops that a dimension depends on.
    """
    found: list[Reach] = []
    for leaf, leaf_refs in ((nest.leaves[n], refs[n]) for n in users):
        inner = place.frames_inside(leaf)
        names = {f.var for f in inner}
        grid = Grid.of(inner)
        for is_write in (False, True):
            boxes = boxes_in(nest, leaf, leaf_refs, place, is_write=is_write)
            for span, tile in ((box[d], place.tile[d]) for box in boxes for d in dims):
                if span.extent < EVERYTHING and not names.issuperset(
                    (span.start - tile.start).variables()
                ):
                    return None
            if boxes:
                low, high = bounds(boxes, place, grid, dims)
                found.append(Reach(low, high, is_write, is_never_empty(nest, leaf, leaf_refs)))
    return found


def boxes_in(nest: Walk, leaf: Leaf, refs: Refs, place: Place, *, is_write: bool) -> list[Box]:
    """Boxes of the tensor that one iteration of `leaf` reads, or writes, in a place."""
    own = (refs.write,) if is_write else refs.reads
    if isinstance(leaf.node, Move):
        return [leaf.node.box for ref in own if place.is_named_by(ref)]
    op = nest.schedule.graph.op(leaf.node.op)
    accesses = (op.write,) if is_write else op.reads
    return [
        access_box(op, access, leaf.node)
        for access, ref in zip(accesses, own, strict=True)
        if place.is_named_by(ref)
    ]


def bounds(
    boxes: Sequence[Box], place: Place, grid: Grid, dims: Sequence[int]
) -> tuple[tuple[Ints, ...], tuple[Ints, ...]]:
    """Per dimension of `dims`, (first elements, ends) of what holds all `boxes`, relative to the
    tile and cut to it; of all lanes of an instruction together."""
    low: list[Ints] = []
    high: list[Ints] = []
    for d in dims:
        tile, spans = place.tile[d], [box[d] for box in boxes]
        if any(span.extent >= EVERYTHING for span in spans):
            low.append(np.zeros((), dtype=np.int64))
            high.append(np.full((), tile.extent, dtype=np.int64))
            continue
        firsts = [affine_values(span.start - tile.start, grid.values) for span in spans]
        first, end = firsts[0], firsts[0] + spans[0].extent
        for other, span in zip(firsts[1:], spans[1:], strict=True):
            first, end = np.minimum(first, other), np.maximum(end, other + span.extent)
        low.append(np.clip(_of_lanes(first, grid, is_end=False), 0, tile.extent - 1))
        high.append(np.clip(_of_lanes(end, grid, is_end=True), 1, tile.extent))
    return tuple(low), tuple(high)


def _of_lanes(values: Ints, grid: Grid, *, is_end: bool) -> Ints:
    """The least, or greatest, of all lanes, whose axes are last and stay."""
    if grid.num_lane_axes == 0 or values.ndim == 0:
        return values
    axes = tuple(range(values.ndim - grid.num_lane_axes, values.ndim))
    combine = np.max if is_end else np.min
    return np.asarray(combine(values, axis=axes, keepdims=True))
