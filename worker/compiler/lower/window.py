"""Which iterations are emitted one by one where loops are long: the first ones and the last.

A *block* of a repeating loop is what stands at one step of it in program order: the iteration of
that number, and the fills that are issued ahead in it.  From some block on the blocks of a loop are
alike up to an affine step, in periods that bring every buffer back to the same slot; then only a
window is emitted, `isa.loops` says the rest (`lower.order.folding`).  The window has enough blocks
for buffers and tokens to come into their rhythm, two periods of it, and one period behind the gap.

Three periods decide for all between them: where a tile is cut, its first element is a convex and
its end a concave function of the counter, so that what is affine over three of them is affine over
all.  Loops that are not (`irregular`) are emitted whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm, prod
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.affine import Affine
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.lower.grid import Grid, Ints
from worker.compiler.lower.issue import Ahead
from worker.compiler.lower.resolve import Refs
from worker.compiler.schedule.grid import expr_range
from worker.compiler.schedule.nodes import Compute
from worker.compiler.schedule.unread import Hull, Unread
from worker.compiler.schedule.walk import Frame, Leaf, Walk

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Gap:
    """Blocks of one loop that are not emitted."""

    first: int
    """The first of them."""
    end: int
    """The first that is emitted again."""
    period: int
    """Blocks after which every buffer is at the same slot; divides `end - first`."""


@dataclass(frozen=True, slots=True)
class Window:
    """The gaps, by path of the loop."""

    gaps: Mapping[str, Gap]

    def blocks(self, frame: Frame, before: int = 0) -> Ints:
        """Blocks of a loop that are emitted, ascending; `before` stand in front of its first."""
        gap = self.gaps.get(frame.path)
        if gap is None:
            return np.arange(-before, frame.trip, dtype=np.int64)
        return np.concatenate([np.arange(-before, gap.first), np.arange(gap.end, frame.trip)])

    def grid(self, frames: Sequence[Frame], ahead: Ahead | None) -> Grid:
        """The emitted iterations of a leaf.

        A leaf that is issued ahead has its iterations at the blocks in which it is issued.
        """
        plain = Grid.of(frames)
        rooms = {} if ahead is None else {ahead.frames[0].path: _blocks_ahead(ahead, 0)}
        listed = [
            self.blocks(f, rooms.get(f.path, 0)) if f.is_repeating else np.arange(f.trip)
            for f in plain.frames
        ]
        shaped = [
            blocks.reshape([-1 if k == axis else 1 for k in range(len(listed))])
            for axis, blocks in enumerate(listed)
        ]
        blocks_of = dict(zip((f.path for f in plain.frames), shaped, strict=True))
        values = {f.var: blocks_of[f.path] for f in plain.frames}
        is_there = None
        if ahead is not None:
            entry: Ints = np.array(ahead.distance, dtype=np.int64)
            for frame, weight in zip(ahead.frames, _weights(ahead.frames), strict=True):
                entry = entry + blocks_of[frame.path] * weight
            is_there = (entry >= 0) & (entry < prod(f.trip for f in ahead.frames))
            for frame in reversed(ahead.frames):
                values[frame.var] = entry % frame.trip
                entry = entry // frame.trip
        digits = {f.path: blocks_of[f.path] for f in plain.frames if f.is_repeating}
        return Grid(plain.frames, tuple(map(len, listed)), values, digits, is_there)


EVERYTHING = Window(MappingProxyType({}))


def most_instructions(nest: Walk, widths: Sequence[int]) -> int:
    """A bound on what runs: `widths` of every leaf in every iteration."""
    return sum(
        width * prod(f.trip for f in leaf.frames if not f.is_folded)
        for leaf, width in zip(nest.leaves, widths, strict=True)
    )


def window_of(
    nest: Walk,
    refs: Sequence[Refs],
    unread: Unread,
    ahead: Sequence[Ahead | None],
    widths: Sequence[int],
    most: int,
) -> Window:
    """Gaps of the loops that are long and regular, where more than `most` instructions would run.

    Cost: evaluates the boxes of every leaf over the window.
    """
    if most_instructions(nest, widths) <= most:
        return EVERYTHING
    whole = set(_crooked(nest, refs))
    gaps: dict[str, Gap] = {}
    for frame in dict.fromkeys(f for leaf in nest.leaves for f in leaf.frames):
        if frame.is_repeating and frame.kind is not None and frame.path not in whole:
            gap = _gap(frame, nest, refs, ahead)
            if gap is not None:
                gaps[frame.path] = gap
    window, narrowed = Window(gaps), set[str]()
    while window.gaps:
        ends: dict[str, int] = {}
        for leaf, leaf_refs, plan in zip(nest.leaves, refs, ahead, strict=True):
            grid = window.grid(leaf.frames, plan)
            for path, end in _irregular(nest, leaf, leaf_refs, unread, window, grid):
                ends[path] = min(end, ends.get(path, end))
        if not ends:
            break
        for path, gap in tuple(window.gaps.items()):
            if ends.get(path) == gap.end:  # it is not a tile's end that differs
                ends[path] = gap.first if path in narrowed else gap.end - gap.period
                narrowed.add(path)
        window = _narrowed(window, ends)
    return window


def _narrowed(window: Window, ends: Mapping[str, int]) -> Window:
    """The window with gaps that end earlier, and without those that then are none."""
    gaps = {path: replace(gap, end=ends.get(path, gap.end)) for path, gap in window.gaps.items()}
    return Window({path: gap for path, gap in gaps.items() if gap.end > gap.first})


def without_gaps(window: Window, paths: set[str]) -> Window:
    """The window with these loops whole."""
    return Window({path: gap for path, gap in window.gaps.items() if path not in paths})


def periods_of(nest: Walk, refs: Sequence[Refs]) -> dict[str, int]:
    """Blocks of every repeating loop after which all buffers are at the same slots."""
    frames = dict.fromkeys(f for leaf in nest.leaves for f in leaf.frames if f.is_repeating)
    return {frame.path: _rhythm(frame, nest, refs)[0] for frame in frames}


def _gap(
    frame: Frame, nest: Walk, refs: Sequence[Refs], ahead: Sequence[Ahead | None]
) -> Gap | None:
    period, settled = _rhythm(frame, nest, refs)
    early = max(
        (_blocks_ahead(plan, plan.frames.index(frame))
         for plan in ahead if plan is not None and frame in plan.frames), default=1,
    )  # fmt: skip
    first = settled + early + 2 * period
    end = frame.trip - early - period
    end -= (end - first) % period
    return Gap(first, end, period) if end > first else None


def _rhythm(frame: Frame, nest: Walk, refs: Sequence[Refs]) -> tuple[int, int]:
    """(period of a loop in blocks, blocks until every slot has been used)."""
    period = settled = 1
    for scope in nest.scopes:
        frames = scope.slot_frames
        if frame in frames:
            weight = _weights(frames)[frames.index(frame)]
            period = lcm(period, scope.copies // gcd(scope.copies, weight))
            settled = max(settled, -(-scope.copies // weight))
    for leaf, leaf_refs in zip(nest.leaves, refs, strict=True):
        frames = tuple(f for f in leaf.frames if f.is_repeating)
        if frame in frames and any(r.staged for r in (*leaf_refs.reads, leaf_refs.write)):
            period = lcm(period, 2 // gcd(2, _weights(frames)[frames.index(frame)]))
            settled = max(settled, 2)
    return period, settled


def _weights(frames: Sequence[Frame]) -> list[int]:
    """Entries per iteration of every loop, counted over all of them."""
    return [prod(f.trip for f in frames[k + 1 :]) for k in range(len(frames))]


def _blocks_ahead(plan: Ahead, at: int) -> int:
    return -(-plan.distance // prod(f.trip for f in plan.frames[at + 1 :]))


def _crooked(nest: Walk, refs: Sequence[Refs]) -> Iterator[str]:
    """Loops whose counters are split or wrapped somewhere, so that nothing is affine in them."""
    path_of = {f.var: f.path for leaf in nest.leaves for f in leaf.frames}
    boxes = [leaf.node.box for leaf in nest.leaves] + [scope.tile for scope in nest.scopes]
    for span in (span for box in boxes for span in box):
        if not span.start.is_linear:
            yield from (path_of[name] for name in span.start.variables() if name in path_of)
    for leaf, leaf_refs in zip(nest.leaves, refs, strict=True):
        for expr in (e for index in _staged(nest, leaf, leaf_refs) for e in index):
            if not expr.is_linear and not expr.has_lookup:
                yield from (f.path for f in leaf.frames)


def _staged(nest: Walk, leaf: Leaf, refs: Refs) -> list[tuple[Affine, ...]]:
    """Index expressions of the operands that a compute has brought to it."""
    if not isinstance(leaf.node, Compute):
        return []
    op = nest.schedule.graph.op(leaf.node.op)
    pairs = zip((*op.reads, op.write), (*refs.reads, refs.write), strict=True)
    return [access.index for access, ref in pairs if ref.staged]


def _irregular(
    nest: Walk, leaf: Leaf, refs: Refs, unread: Unread, window: Window, grid: Grid
) -> Iterator[tuple[str, int]]:
    """Loops with a gap in which what the leaf touches is cut in another way than around it, each
    with where the gap may end for that not to be so; its own end: that is not known."""
    graph = nest.schedule.graph
    if isinstance(leaf.node, Compute):
        op = graph.op(leaf.node.op)
        sizes = [axis.extent for axis in op.domain]
    else:
        sizes = list(graph.tensors[leaf.node.tensor].shape)
    spans: list[tuple[Ints, Ints, int]] = []
    ranges: dict[str, tuple[Ints, Ints]] = {}
    for d, (span, size) in enumerate(zip(leaf.node.box, sizes, strict=True)):
        low = affine_values(span.start, grid.values)
        spans.append((low, low + span.extent, size))
        if isinstance(leaf.node, Compute):
            cut = np.maximum(low, 0)
            end = np.maximum(np.minimum(low + span.extent, size), cut + 1)
            ranges[op.domain[d].name] = cut, end - 1
    if isinstance(leaf.node, Compute):
        pairs = zip((*op.reads, op.write), (*refs.reads, refs.write), strict=True)
        for access, ref in pairs:
            if ref.staged:
                for expr, size in zip(access.index, graph.tensors[ref.tensor].shape, strict=True):
                    if expr.is_linear:
                        low, high = expr_range(expr, ranges)
                        spans.append((low, high + 1, size))
    hulls = [h for r in unread.hulls(leaf.number, grid.values) for h in r]
    for axis, frame in enumerate(grid.frames):
        gap = window.gaps.get(frame.path)
        if gap is not None:
            at = int(np.searchsorted(grid.digits[frame.path].ravel(), gap.end))
            bent = [span for span in spans if not _is_regular(span, axis, at, gap)]
            if bent:
                yield frame.path, min(_last_end(span, axis, at, gap) for span in bent)
            elif not all(_is_read_alike(h, axis, at, gap) for h in hulls):
                yield frame.path, gap.end


def _is_read_alike(hull: Hull, axis: int, at: int, gap: Gap) -> bool:
    """Whether a reader is cut to nothing either in all or in none of the blocks of a gap, as far as
    this dimension goes; `at`: the first block behind it."""
    if hull.low.ndim == 0 or hull.low.shape[axis] == 1:
        return True
    one, two, three = _beside(hull.is_empty, axis, at, gap)
    if not (np.array_equal(one, two) and np.array_equal(two, three)):
        return False
    return not _passes((hull.low, hull.end, hull.size), axis, at, gap)


def _is_regular(span: tuple[Ints, Ints, int], axis: int, at: int, gap: Gap) -> bool:
    """Whether a cut span is affine over the gap along an axis; `at`: the first block behind it."""
    raw_low, raw_end, size = span
    if raw_low.ndim == 0 or raw_low.shape[axis] == 1:
        return True
    step = (gap.end - gap.first) // gap.period + 1
    low, end = np.maximum(raw_low, 0), np.minimum(raw_end, size)
    one, two, three = _beside(np.maximum(end - low, 0), axis, at, gap)
    if not (np.array_equal(one, two) and np.array_equal(two, three)):
        return False
    one, two, three = _beside(low, axis, at, gap)
    if not np.array_equal(three - two, (two - one) * step):
        return False
    return not _passes(span, axis, at, gap)


def _last_end(span: tuple[Ints, Ints, int], axis: int, at: int, gap: Gap) -> int:
    """Where a gap ends, and a period behind it, before anything whole is cut: one core of many may
    be through with its share long before the others.  The gap's own end: not for that."""
    low, end, size = span
    one, two, _ = _beside(low, axis, at, gap)
    _, until, _ = _beside(end, axis, at, gap)
    step = two - one
    is_whole = (step > 0) & (until <= size)
    if not np.any(is_whole):
        return gap.end
    left = int(np.min((size - until[is_whole]) // step[is_whole]))
    found = gap.first + (left - 1) * gap.period
    return min(gap.end, found)


def _passes(span: tuple[Ints, Ints, int], axis: int, at: int, gap: Gap) -> bool:
    """Whether something lies on one side of [0, size) before a gap and on the other behind it."""
    low, end, size = span
    _, low_before, low_behind = _beside(low, axis, at, gap)
    _, end_before, end_behind = _beside(end, axis, at, gap)
    passes = ((end_before <= 0) & (low_behind >= size)) | ((end_behind <= 0) & (low_before >= size))
    return bool(np.any(passes))


def _beside(
    values: npt.NDArray[_Scalar], axis: int, at: int, gap: Gap
) -> tuple[npt.NDArray[_Scalar], npt.NDArray[_Scalar], npt.NDArray[_Scalar]]:
    """Values along an axis in the two periods before a gap and the one behind it."""
    own = np.arange(gap.period)
    one, two, three = (
        np.take(values, at + own + shift, axis) for shift in (-2 * gap.period, -gap.period, 0)
    )
    return one, two, three
