"""From the grid of a leaf to columns: lanes folded away, unwanted iterations dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.lower.grid import Grid, Ints, drop_last
from worker.compiler.lower.rows.storage import Touch
from worker.compiler.schedule.walk import Leaf, iteration_weights

ZERO: Ints = np.array(0, dtype=np.int64)
Combine: TypeAlias = Callable[..., Ints]


@dataclass(frozen=True, slots=True)
class Flat:
    """Broadcasts to the grid, keeps the wanted iterations, as one dimension."""

    shape: tuple[int, ...]
    keep: npt.NDArray[np.bool_] | None
    count: int

    @staticmethod
    def of(shape: tuple[int, ...], keep: npt.NDArray[np.bool_] | None) -> Flat:
        if keep is None or bool(np.all(keep)):
            return Flat(shape, None, prod(shape))
        mask = np.broadcast_to(keep, shape).ravel()
        return Flat(shape, mask, int(mask.sum()))

    def __call__(self, values: Ints) -> Ints:
        return values if values.ndim == 0 else self.full(values)

    def full(self, values: Ints) -> Ints:
        """Always [count], also for scalars."""
        if values.ndim > len(self.shape):
            # Lane axes are folded: every lane agrees on what is not summed.
            values = drop_last(values, values.ndim - len(self.shape))
        column = np.broadcast_to(values, self.shape).ravel()
        return column if self.keep is None else column[self.keep]


def flat_touch(touch: Touch, flat: Flat) -> Touch:
    """The touch of the instructions that remain."""
    return replace(touch, storage=flat.full(touch.storage))


def blocks_of(grid: Grid, leaf: Leaf, flat: Flat) -> tuple[Ints, ...]:
    """Blocks of the instructions that remain (`Batch.digits`)."""
    return tuple(flat.full(grid.digits[f.path]) for f in leaf.frames if f.path in grid.digits)


def first_lane(values: Ints, grid: Grid) -> Ints:
    """What the first lane sees, without the lane axes."""
    if grid.num_lane_axes == 0 or values.ndim == 0:
        return values
    return drop_last(values, grid.num_lane_axes)


def over_lanes(values: Ints, grid: Grid, combine: Combine) -> Ints:
    """Reduce the lane axes, which are last."""
    if grid.num_lane_axes == 0:
        return values
    axes = tuple(range(values.ndim - grid.num_lane_axes, values.ndim))
    return np.asarray(combine(values, axis=axes))


def iterations_of(leaf: Leaf, grid: Grid) -> Ints:
    """Number of the iteration of its leaf."""
    found: Ints = ZERO
    for frame, weight in zip(leaf.frames, iteration_weights(leaf.frames), strict=True):
        if weight:
            found = found + weight * grid.values[frame.var]
    return found


def steps_of(leaf: Leaf, grid: Grid) -> Ints:
    """Number of the iteration within its core."""
    step: Ints = ZERO
    for frame in leaf.frames:
        if frame.is_repeating:
            step = step * frame.trip + grid.values[frame.var]
    return step
