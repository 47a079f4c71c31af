"""Walks over single tilings of one layer, for spaces that branch and bound cannot see through.

Threshold accepting, many walks side by side, by the floors of single tilings (`box_floor`), which
are compiled and nearly prices.  A neighbour has one number of ways or trips that is twice, half,
one more or one less; or a factor went from one such number to another, of the same axis or of two;
or one axis is drawn anew; or tiles are rounded in another way.  A worse one is taken where it is
worse by no more than a chance share of a limit that falls to nothing.  From time to time the worse
half of all walks go on from where the better half are.

Chance comes from a generator with a fixed seed, and floors and chances only meet in sums, products
and comparisons: the same layer walks alike in every process and on every processor.

Source: our own; threshold accepting after Dueck and Scheuer, Journal of Computational Physics 90,
1990, with neighbours of a rival that beat branch and bound (decisions 0062, 0065).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import numpy as np

from worker.compiler.jit import loop_for
from worker.compiler.tiling.nest.arrays import WAYS, Flags, Floats, Ints
from worker.compiler.tiling.nest.walk_steps import ANEW, KINDS, draw, step, within

# What each of these is worth: `python -m benchmarks.search_constants`, table in decision 0065.
WALKS = 1 << 7
"""Side by side: a call of numpy takes about as long for fewer."""
STEPS = 1 << 9
"""Of each."""
GATHER = 1 << 5
"""Steps until the worse half go on from where the better are."""
WORSE = 0.2
"""Share by which a neighbour may be worse at most, at first."""
_CHANCES = 8
"""Numbers that a walk draws for one step."""


class Grid(NamedTuple):
    """What tilings there are."""

    extents: Ints
    """[axes]"""
    most: Ints
    """[ways or trips, stages, axes]"""
    units: Ints
    """[stages]: ways are at most so many in all."""
    single: Flags
    """[axes]: those that are cut into single steps."""
    roundings: int
    """Ways to round tiles."""
    tiled: Callable[[Ints, Ints], tuple[Ints, Flags]]
    """Innermost tiles [tilings, axes] of ways and trips [tilings, 2, stages, axes], rounded each in
    one of the ways [tilings], and whether they leave just as many ways and trips."""
    floors: Callable[[Ints, Ints], Floats]
    """Of ways, trips and tiles: of tilings with two copies of operands and with one [tilings, 2];
    inf: it does not fit."""


class Found(NamedTuple):
    """Tilings that were come upon, each once."""

    numbers: Ints
    """[tilings, ways or trips, stages, axes]"""
    tiles: Ints
    """[tilings, axes]"""


class _Standing(NamedTuple):
    """Where walks are."""

    numbers: Ints
    rounding: Ints
    floors: Floats
    """inf: nowhere yet."""


def walked(grid: Grid, limit: float) -> Found:
    """Tilings with floors below a limit that walks from drawn ones took.

    Cost: `WALKS` x `STEPS` floors, of which six in ten are of no tiling and cost nothing.
    """
    return _Walks(grid).run(limit)


class _Walks:
    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._bits = np.random.PCG64(0)

    def run(self, limit: float) -> Found:
        grid = self._grid
        now = _Standing(self._drawn(), np.zeros(WALKS, np.int64), np.full(WALKS, np.inf))
        seen = [Found(now.numbers[:0], np.zeros((0, len(grid.extents)), np.int64))]
        for number in range(STEPS):
            chances = self._chances(WALKS, _CHANCES)
            moved, rounding = (
                self._neighbours(now, chances) if number else (now.numbers, now.rounding)
            )
            tiles, may = grid.tiled(moved, rounding)
            may &= self._are_within(moved)
            floors = np.full(WALKS, np.inf)
            floors[may] = grid.floors(moved[may], tiles[may]).min(axis=1)
            worse = 1 + WORSE * (1 - number / STEPS) * chances[:, -1]
            is_taken = may & ((floors <= now.floors * worse) | np.isinf(now.floors))
            now = _Standing(
                np.where(is_taken[:, None, None, None], moved, now.numbers),
                np.where(is_taken, rounding, now.rounding),
                np.where(is_taken, floors, now.floors),
            )
            worth = is_taken & (floors < limit)
            seen.append(Found(moved[worth], tiles[worth]))
            if number % GATHER == GATHER - 1:
                now = _gathered(now)
        return _each_once(seen)

    def _chances(self, rows: int, columns: int) -> Floats:
        """From 0 to 1, without 1, all as likely."""
        raw = self._bits.random_raw(rows * columns)
        return np.asarray((raw >> np.uint64(11)) * 2.0**-53).reshape(rows, columns)

    def _drawn(self) -> Ints:
        """Where walks begin: numbers as likely as their halves, which need not be tilings."""
        grid = self._grid
        _, num_stages, num_axes = grid.most.shape
        found = np.ones((WALKS, 2, num_stages, num_axes), np.int64)
        for a in range(num_axes):
            found[:, :, :, a] = self._drawn_axis(np.full(WALKS, a))
        for k in range(num_stages):  # units go to outer axes first
            left = np.full(WALKS, grid.units[k])
            for a in range(num_axes):
                found[:, WAYS, k, a] = np.minimum(found[:, WAYS, k, a], left)
                left //= found[:, WAYS, k, a]
        return found

    def _drawn_axis(self, axes: Ints) -> Ints:
        """Ways and trips of one axis each [tilings, ways or trips, stages]."""
        grid, (_, num_stages, _) = self._grid, self._grid.most.shape
        found = np.ones((len(axes), 2, num_stages), np.int64)
        chances = self._chances(len(axes), 4 * num_stages)
        loop = loop_for(draw, found.size)
        loop(axes, chances, grid.most, grid.extents, grid.single, found)
        return found

    def _neighbours(self, now: _Standing, chances: Floats) -> tuple[Ints, Ints]:
        """(ways and trips, rounding) beside those where walks are, which need not be tilings."""
        is_anew = (chances[:, 0] * KINDS).astype(np.int64) == ANEW
        axes = (chances[is_anew, 3] * len(self._grid.extents)).astype(np.int64)
        moved, rounding = now.numbers.copy(), now.rounding.copy()
        loop = loop_for(step, len(moved))
        loop(chances, self._drawn_axis(axes), self._grid.roundings, moved, rounding)
        return moved, rounding

    def _are_within(self, numbers: Ints) -> Flags:
        """Which have parts left for all ways and trips, and units for all ways [tilings]."""
        grid, may = self._grid, np.empty(len(numbers), np.bool_)
        loop = loop_for(within, 2 * numbers.size)
        loop(numbers, grid.most, grid.units, grid.extents, may)
        return may


def _gathered(now: _Standing) -> _Standing:
    """The worse half where the better half are."""
    order = np.argsort(now.floors, kind="stable")
    half = len(order) // 2
    places = np.arange(len(order))
    places[order[len(order) - half :]] = order[:half]
    return _Standing(now.numbers[places], now.rounding[places], now.floors[places])


def _each_once(seen: list[Found]) -> Found:
    numbers, tiles = (np.concatenate(each) for each in zip(*seen, strict=True))
    flat = numbers.reshape(len(numbers), prod(numbers.shape[1:]))
    keys = np.concatenate([flat, tiles], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    return Found(numbers[first], tiles[first])
