"""The iteration space of a leaf as numpy broadcasting: every loop variable is one array axis.

Expressions are evaluated once for all iterations; an array only has the axes of the variables it
depends on, so the work is proportional to distinct values until the end.
Axis order: TIME and PIPE loops (outermost first), then CORES, then folded LANES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.evaluate import affine_values
from worker.compiler.lower.issue import Ahead, Timing
from worker.compiler.schedule.grid import coordinates
from worker.compiler.schedule.nodes import Box, LoopKind
from worker.compiler.schedule.walk import Frame, Scope

Ints: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True, slots=True)
class Grid:
    """All iterations of one leaf."""

    frames: tuple[Frame, ...]
    """In axis order."""
    shape: tuple[int, ...]
    values: Mapping[str, Ints]
    """Loop variable -> its values, shaped to broadcast along its axis."""
    digits: Mapping[str, Ints] = field(default_factory=dict)
    """Where only some iterations are emitted (`lower.window`): path of each repeating loop -> the
    block that each is issued in."""
    is_there: npt.NDArray[np.bool_] | None = None
    """Then also which of them are iterations at all (None: all)."""

    @staticmethod
    def of(frames: Sequence[Frame]) -> Grid:
        """Grid over `frames`."""
        ordered = tuple(sorted(frames, key=lambda f: (f.is_folded, f.kind is LoopKind.CORES)))
        return Grid(ordered, tuple(f.trip for f in ordered), coordinates(ordered))

    @property
    def num_lane_axes(self) -> int:
        return sum(1 for f in self.frames if f.is_folded)

    @property
    def num_lanes(self) -> int:
        lanes = 1
        for frame in self.frames:
            if frame.is_folded:
                lanes *= frame.trip
        return lanes


@dataclass(frozen=True, slots=True)
class Clipped:
    """A box cut to its tensor or domain, at all iterations."""

    start: tuple[Ints, ...]
    """First element inside, per dimension."""
    extent: tuple[Ints, ...]
    """Elements inside, per dimension; never negative."""

    @property
    def num_elems(self) -> Ints:
        total: Ints = np.array(1, dtype=np.int64)
        for extent in self.extent:
            total = total * extent
        return total


def clip(box: Box, shape: Sequence[int], values: Mapping[str, Ints]) -> Clipped:
    """Cut `box` to [0, shape) per dimension."""
    starts: list[Ints] = []
    extents: list[Ints] = []
    for span, size in zip(box, shape, strict=True):
        start = affine_values(span.start, values)
        low, high = np.maximum(start, 0), np.minimum(start + span.extent, size)
        starts.append(low)
        extents.append(np.maximum(high - low, 0))
    return Clipped(tuple(starts), tuple(extents))


def per_shape(
    extents: Sequence[Ints], price: Callable[[tuple[int, ...]], tuple[int, ...]], width: int
) -> tuple[Ints, ...]:
    """`price` of boxes of these extents, `width` numbers each, at all iterations; it is asked once
    per distinct shape."""
    distinct = [np.unique(e) for e in extents]
    radix = prod(len(d) for d in distinct)
    code: Ints = np.array(0, dtype=np.int64)
    for extent, values in zip(extents, distinct, strict=True):
        code = code * len(values) + np.searchsorted(values, extent)
    used = (
        np.unique(code)
        if radix > 1 << 20
        else np.flatnonzero(np.bincount(np.ravel(code), minlength=radix))
    )
    found: list[tuple[int, ...]] = []
    for number in used.tolist():
        shape: list[int] = []
        for values in reversed(distinct):
            number, digit = divmod(number, len(values))
            shape.append(int(values[digit]))
        found.append(price(tuple(reversed(shape))))
    at = np.searchsorted(used, code)
    return tuple(column[at] for column in np.array(found, dtype=np.int64).reshape(-1, width).T)


def drop_last(values: Ints, count: int) -> Ints:
    """First element along each of the last `count` axes."""
    for _ in range(count):
        values = values[..., 0]
    return values


def flat_offset(position: Sequence[Ints], extents: Sequence[int]) -> Ints:
    """Row-major element number of `position` in an array of `extents`."""
    total: Ints = np.array(0, dtype=np.int64)
    for index, extent in zip(position, extents, strict=True):
        total = total * extent + index
    return total


def slots(scope: Scope, values: Mapping[str, Ints]) -> Ints:
    """Copy of `scope` that is current: entries so far (in one core) modulo the copies."""
    count: Ints = np.array(0, dtype=np.int64)
    if scope.copies == 1:
        return count
    for frame in scope.slot_frames:
        count = count * frame.trip + values[frame.var]
    return count % scope.copies


def positions(frames: Sequence[Frame], timing: Timing, ahead: Ahead | None, grid: Grid) -> Ints:
    """Program position of each iteration (see `lower.issue`)."""
    digits: dict[str, Ints] = {f.path: grid.values[f.var] for f in frames if f.is_repeating}
    if grid.digits:
        digits = dict(grid.digits)
    elif ahead is not None:
        entry: Ints = np.array(-ahead.distance, dtype=np.int64)
        weight = 1
        for frame in reversed(ahead.frames):
            entry = entry + grid.values[frame.var] * weight
            weight *= frame.trip
        for frame in reversed(ahead.frames[1:]):
            digits[frame.path] = entry % frame.trip
            entry = entry // frame.trip
        # The outermost digit may be negative: the prologue.
        digits[ahead.frames[0].path] = entry
    total: Ints = np.array(timing.offset, dtype=np.int64)
    for frame, step in zip(frames, timing.steps, strict=True):
        if frame.path in digits:
            total = total + digits[frame.path] * step
    return total if timing.front is None else _with_front(total, frames, timing, grid)


def _with_front(total: Ints, frames: Sequence[Frame], timing: Timing, grid: Grid) -> Ints:
    """`total`, but the first entries stand where the layer they are issued with starts."""
    start = timing.front
    assert start is not None
    counted = {f.path for f in start.frames}
    entry: Ints = np.array(0, dtype=np.int64)
    for frame in start.frames:
        entry = entry * frame.trip + grid.values[frame.var]
    front: Ints = start.offset + entry * start.step
    for frame, step in zip(frames, timing.steps, strict=True):
        if frame.is_repeating and frame.path not in counted:
            front = front + grid.values[frame.var] * step
    return np.where(entry < start.entries, front, total)
