"""Slots in pieces that are protected apart, so that a layer need not wait for a whole tensor.

A slot is cut along its dimensions where its writers' boxes begin and end: then what a reader meets
are just the writes that it overlaps, and what a writer meets are just those reads.  Cuts that keep
no writer and no reader apart are left out, so a reader of all channels leaves none along them, and
a reader of large tiles leaves none inside of them.  An access touches every piece that it meets (a
window with a halo those beside it too).  Where that would be too many, every second cut goes, until
in the limit the slot is one piece.

A piece is a box, not a range of addresses.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from worker.compiler.ir.distinct import distinct
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.resolve import Refs
from worker.compiler.lower.rows.reach import Place, Reach, cut_dims, reaches_of
from worker.compiler.schedule.walk import Scope, Walk

MOST_MET = 9
"""Pieces that one access meets at most: those of a window over two dimensions."""
MOST_PIECES = 64
"""Pieces of one slot at most: as many as cores may own (`hazards`); with 256 six networks took as
long, within 1.5 % either way, and more signals."""


@dataclass(frozen=True, slots=True)
class TilePieces:
    """A slot cut into a grid of boxes."""

    dims: tuple[int, ...]
    """Dimensions that may be cut."""
    starts: tuple[Ints, ...]
    """Per such dimension, where its intervals begin; the first is 0."""
    is_used_again: bool
    """Whether a slot holds one value after the other: then all is read of each."""

    @property
    def count(self) -> int:
        return prod(len(start) for start in self.starts)

    def met(self, low: Sequence[Ints], high: Sequence[Ints]) -> Iterator[Ints]:
        """Numbers of the pieces that boxes meet, -1 where a box meets no more.

        `low`, `high`: per dimension of `dims` the boxes' first elements and ends.
        """
        first = [_interval(s, at) for s, at in zip(self.starts, low, strict=True)]
        last = [_interval(s, at - 1) for s, at in zip(self.starts, high, strict=True)]
        widths = [int((b - a).max(initial=0)) + 1 for a, b in zip(first, last, strict=True)]
        for offsets in product(*map(range, widths)):
            number: Ints = np.zeros((), dtype=np.int64)
            is_met = np.ones((), dtype=np.bool_)
            for start, a, b, offset in zip(self.starts, first, last, offsets, strict=True):
                number = number * len(start) + (a + offset)
                is_met = is_met & (a + offset <= b)
            yield np.where(is_met, number, -1)


def tile_pieces(
    nest: Walk, refs: Sequence[Refs], place: Place, users: Sequence[int], *, are_ordered: bool
) -> tuple[TilePieces | None, bool]:
    """How a place is cut, None where it is not; whether that is exact: a write and another access
    that share no element share no piece, as far as single dimensions tell.

    `users` are the leaves that touch it; `are_ordered`: its writes keep their order.  A slot that
    holds one value after the other is cut only where every value is read as a whole.
    Cost: linear in the iterations inside the scope, where its slots are used again, else in the
    distinct boxes per dimension.
    """
    scope = place.scope
    if scope is not None and scope.queue is not None:
        return None, False  # producers and consumers count their cores differently
    dims = cut_dims(nest, refs, users, place, are_ordered=are_ordered)
    if not dims:
        return None, True
    reaches = reaches_of(nest, refs, users, place, dims)
    if reaches is None:
        return None, False
    sizes = [place.sizes[d] for d in dims]
    fine = [_edges(reaches, k, size) for k, size in enumerate(sizes)]
    needed = [
        _needed(starts, size, reaches, k, are_ordered)
        for k, (starts, size) in enumerate(zip(fine, sizes, strict=True))
    ]
    starts, is_exact = _few(needed, reaches)
    if all(len(start) == 1 for start in starts):
        return None, is_exact
    pieces = TilePieces(dims, tuple(starts), is_used_again(scope))
    if pieces.is_used_again and not are_read(replace(pieces, starts=tuple(fine)), reaches):
        return None, False
    return pieces, is_exact


def is_used_again(scope: Scope | None) -> bool:
    """Whether a slot holds one value after the other."""
    return scope is not None and prod(f.trip for f in scope.slot_frames) > scope.copies


def _interval(starts: Ints, at: Ints) -> Ints:
    return np.asarray(np.searchsorted(starts, at, side="right") - 1)


def _edges(reaches: Sequence[Reach], d: int, size: int) -> Ints:
    """Where writes begin and end along a dimension, and where the place begins."""
    writes = [r for r in reaches if r.is_write]
    edges = [end.ravel() for r in writes for end in (r.low[d], r.high[d])]
    found: Ints = distinct(np.concatenate([np.zeros(1, dtype=np.int64), *edges]))
    return found[found < size]


def _needed(starts: Ints, size: int, reaches: Sequence[Reach], d: int, are_ordered: bool) -> Ints:
    """Of the intervals along a dimension, those that keep a write apart from another access."""
    if len(starts) == 1:
        return starts
    writes = _ends([r for r in reaches if r.is_write], d)
    others = _ends([r for r in reaches if are_ordered or not r.is_write], d)
    bars = [*starts.tolist(), size]
    kept = [0]
    for k in range(1, len(bars) - 1):
        here, beyond = (kept[-1], bars[k]), (bars[k], bars[k + 1])
        if (_ends_in(writes, here) and _begins_in(others, beyond)) or (
            _ends_in(others, here) and _begins_in(writes, beyond)
        ):
            kept.append(bars[k])
    return np.array(kept, dtype=np.int64)


def _ends(reaches: Sequence[Reach], d: int) -> tuple[list[int], list[int]]:
    """(first elements, ends) along a dimension, ascending."""
    none = np.zeros(0, dtype=np.int64)
    return (
        distinct(np.concatenate([none, *(r.low[d].ravel() for r in reaches)])).tolist(),
        distinct(np.concatenate([none, *(r.high[d].ravel() for r in reaches)])).tolist(),
    )


def _ends_in(edges: tuple[list[int], list[int]], interval: tuple[int, int]) -> bool:
    """Whether one ends inside, so that it does not meet the interval behind."""
    low, high = interval
    return bisect_right(edges[1], high) > bisect_right(edges[1], low)


def _begins_in(edges: tuple[list[int], list[int]], interval: tuple[int, int]) -> bool:
    """Whether one begins inside, so that it does not meet the interval in front."""
    low, high = interval
    return bisect_left(edges[0], high) > bisect_left(edges[0], low)


def _few(starts: Sequence[Ints], reaches: Sequence[Reach]) -> tuple[list[Ints], bool]:
    """Intervals per dimension that are few enough; whether that is all of them."""
    found = list(starts)
    is_all = True
    while True:
        met = [_most_met(start, reaches, d) for d, start in enumerate(found)]
        if prod(met) > MOST_MET:
            widest = max(range(len(found)), key=lambda d: met[d])
        elif prod(map(len, found)) > MOST_PIECES:
            widest = max(range(len(found)), key=lambda d: len(found[d]))
        else:
            return found, is_all
        found[widest] = found[widest][::2]
        is_all = False


def _most_met(starts: Ints, reaches: Sequence[Reach], d: int) -> int:
    if len(starts) == 1:
        return 1
    return max(
        int((_interval(starts, r.high[d] - 1) - _interval(starts, r.low[d])).max()) + 1
        for r in reaches
    )


def are_read(pieces: TilePieces, reaches: Sequence[Reach]) -> bool:
    """Whether all that is written is read in every entry, so that who comes after the readers of a
    value comes after all of its users."""
    is_read, is_written = (np.zeros(pieces.count + 1, dtype=np.bool_) for _ in range(2))
    for reach in reaches:
        if reach.is_write or reach.is_sure:
            for number in pieces.met(reach.low, reach.high):
                (is_written if reach.is_write else is_read)[number] = True
    return not bool(np.any(is_written[:-1] & ~is_read[:-1]))
