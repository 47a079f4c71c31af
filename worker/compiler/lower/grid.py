"""The iteration space of a leaf as numpy broadcasting: every loop variable is one array axis.

Expressions are evaluated once for all iterations; an array only has the axes of the variables it
depends on, so the work is proportional to distinct values until the end.
Axis order: TIME and PIPE loops (outermost first), then CORES, then folded LANES.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.affine import Affine, FloorDiv, Lookup, Mod, Var
from worker.compiler.lower.issue import Ahead, Timing
from worker.compiler.lower.nest import Frame, FrameKind, Scope
from worker.compiler.schedule.nodes import Box

Ints: TypeAlias = "npt.NDArray[np.int64]"

_AXIS_ORDER = {FrameKind.TIME: 0, FrameKind.PIPE: 0, FrameKind.CORES: 1, FrameKind.LANES: 2}


@dataclass(frozen=True, slots=True)
class Grid:
    """All iterations of one leaf."""

    frames: tuple[Frame, ...]
    """In axis order."""
    shape: tuple[int, ...]
    values: Mapping[str, Ints]
    """Loop variable -> its values, shaped to broadcast along its axis."""

    @staticmethod
    def of(frames: Sequence[Frame]) -> Grid:
        """Grid over `frames`."""
        ordered = tuple(sorted(frames, key=lambda f: _AXIS_ORDER[f.kind]))
        shape = tuple(f.trip for f in ordered)
        values: dict[str, Ints] = {}
        for axis, frame in enumerate(ordered):
            extent = [1] * len(ordered)
            extent[axis] = frame.trip
            values[frame.var] = np.arange(frame.trip, dtype=np.int64).reshape(extent)
        return Grid(ordered, shape, values)

    @property
    def num_lane_axes(self) -> int:
        return sum(1 for f in self.frames if f.kind is FrameKind.LANES)

    @property
    def num_lanes(self) -> int:
        lanes = 1
        for frame in self.frames:
            if frame.kind is FrameKind.LANES:
                lanes *= frame.trip
        return lanes


def evaluate(expr: Affine, values: Mapping[str, Ints]) -> Ints:
    """Value of `expr` at all iterations (broadcast shape)."""
    total: Ints = np.array(expr.const, dtype=np.int64)
    for atom, coeff in expr.terms:
        match atom:
            case Var(name):
                part = values[name]
            case FloorDiv(arg, divisor):
                part = evaluate(arg, values) // divisor
            case Mod(arg, divisor):
                part = evaluate(arg, values) % divisor
            case Lookup(slot):
                raise KeyError(f"lookup of slot {slot} has no static value")
        total = total + part * coeff
    return total


def bounds(expr: Affine, low: Mapping[str, Ints], high: Mapping[str, Ints]) -> tuple[Ints, Ints]:
    """Inclusive bounds of `expr` when its variables range over [low, high]; as Affine.bounds."""
    least: Ints = np.array(expr.const, dtype=np.int64)
    most: Ints = least
    for atom, coeff in expr.terms:
        match atom:
            case Var(name):
                lo, hi = low[name], high[name]
            case FloorDiv(arg, divisor):
                lo, hi = bounds(arg, low, high)
                lo, hi = lo // divisor, hi // divisor
            case Mod(arg, divisor):
                lo, hi = bounds(arg, low, high)
                same = lo // divisor == hi // divisor
                lo, hi = np.where(same, lo % divisor, 0), np.where(same, hi % divisor, divisor - 1)
            case Lookup(slot):
                raise KeyError(f"lookup of slot {slot} has no static bounds")
        least = least + (lo if coeff > 0 else hi) * coeff
        most = most + (hi if coeff > 0 else lo) * coeff
    return least, most


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
        start = evaluate(span.start, values)
        low, high = np.maximum(start, 0), np.minimum(start + span.extent, size)
        starts.append(low)
        extents.append(np.maximum(high - low, 0))
    return Clipped(tuple(starts), tuple(extents))


def flat_offset(position: Sequence[Ints], extents: Sequence[int]) -> Ints:
    """Row-major element number of `position` in an array of `extents`."""
    total: Ints = np.array(0, dtype=np.int64)
    for index, extent in zip(position, extents, strict=True):
        total = total * extent + index
    return total


def core_ids(base: int, frames: Sequence[Frame], values: Mapping[str, Ints]) -> Ints:
    """Core of each iteration: base + sum of CORES variables times their strides."""
    cores: Ints = np.array(base, dtype=np.int64)
    for frame in frames:
        if frame.kind is FrameKind.CORES:
            cores = cores + values[frame.var] * frame.core_stride
    return cores


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
    digits: dict[str, Ints] = {
        f.path: grid.values[f.var] for f in frames if f.kind in (FrameKind.TIME, FrameKind.PIPE)
    }
    if ahead is not None:
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
        if frame.kind in (FrameKind.TIME, FrameKind.PIPE) and frame.path not in counted:
            front = front + grid.values[frame.var] * step
    return np.where(entry < start.entries, front, total)
