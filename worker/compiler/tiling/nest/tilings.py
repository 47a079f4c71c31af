"""Many tilings of one layer at once: what each needs of every memory, as arrays.

The same closed forms as `levels.levels_of`, one array element per tiling, for splits over the cores
that are given.  A test holds them against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.affine import Affine
from worker.compiler.tiling.boxes import reach
from worker.compiler.tiling.nest.facts import Facts, Operand
from worker.compiler.tiling.nest.plan import Stage, placed_at

Ints: TypeAlias = "npt.NDArray[np.int64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"
Tiles: TypeAlias = Mapping[str, Ints]
"""Tile size per axis, one element per tiling."""


@dataclass(frozen=True, slots=True)
class Tilings:
    """One stage of many tilings.  Every array has one element per tiling."""

    stage: Stage
    tile: Tiles
    trips: Mapping[str, Ints]
    """Iterations left to each unit, per axis."""
    units_used: Ints
    copies: Mapping[str, Ints]
    elems: Mapping[str, Ints]

    def only(self, kept: Flags | Ints) -> Tilings:
        """The tilings that `kept` marks or counts up."""

        def some(values: Mapping[str, Ints]) -> Mapping[str, Ints]:
            return {name: value[kept] for name, value in values.items()}

        return Tilings(
            self.stage, some(self.tile), some(self.trips), self.units_used[kept],
            some(self.copies), some(self.elems),
        )  # fmt: skip


def fitting(
    facts: Facts,
    stages: tuple[Stage, ...],
    tiles: Sequence[Tiles],
    ways: tuple[Mapping[str, int], ...],
    *,
    double: bool,
) -> tuple[tuple[Tilings, ...], Ints]:
    """Per stage the tilings whose buffers fit all stages, and their positions in `tiles`.

    Cost: about a hundred array operations per stage.
    """
    number = len(next(iter(tiles[0].values())))
    places = np.arange(number)
    found: list[Tilings] = []
    outer: Tiles = {name: np.full(number, extent) for name, extent in facts.extents.items()}
    rest = list(tiles)
    for k, stage in enumerate(stages):
        level = _stage(facts, stage, rest[k], outer, ways[k], (k, len(stages)), double=double)
        fits = _fits(facts, level, is_last=k + 1 == len(stages))
        if not fits.all():
            places = places[fits]
            found = [before.only(fits) for before in found]
            level = level.only(fits)
            rest = [{name: size[fits] for name, size in tile.items()} for tile in rest]
        found.append(level)
        outer = level.tile
    return tuple(found), places


def _stage(
    facts: Facts,
    stage: Stage,
    tile: Tiles,
    outer: Tiles,
    ways: Mapping[str, int],
    position: tuple[int, int],
    *,
    double: bool,
) -> Tilings:
    k, number = position
    is_last = k + 1 == number
    must_divide = frozenset(facts.out_axes) if k else facts.exact
    trips: dict[str, Ints] = {}
    units = np.ones_like(next(iter(tile.values())))
    for name in facts.extents:
        trips[name] = -(-outer[name] // tile[name])
        asked = ways.get(name, 1)
        if asked > 1 and name in facts.out_axes and name not in facts.whole:
            used = np.minimum(trips[name], asked)
            if name in must_divide:
                used = divisor_below(trips[name], used, asked)
            trips[name] = -(-trips[name] // used)
            units = units * used
    placed = placed_at(facts, stage, is_last=is_last)
    lone = {step.out.tensor for step in facts.epilogue[:-1]}
    if facts.epilogue and facts.out is not None and is_last and not facts.is_overlapped:
        lone.update((facts.out.tensor, facts.epilogue[-1].out.tensor))
    one = np.ones_like(units)
    copies: dict[str, Ints] = {}
    elems: dict[str, Ints] = {}
    for operand in placed:
        looped = np.zeros(len(units), dtype=np.bool_)
        if double and operand.tensor not in lone:
            for name in facts.extents:
                if name in operand.axes:
                    looped |= trips[name] > 1
        copies[operand.tensor] = np.where(looped, 2, one)
        elems[operand.tensor] = prod(
            _placed_widths(facts, operand, tile, is_last=is_last), start=one
        )
    return Tilings(stage, tile, trips, units, copies, elems)


def _fits(facts: Facts, level: Tilings, *, is_last: bool) -> Flags:
    stage = level.stage
    total = np.zeros_like(level.units_used)
    for operand in placed_at(facts, stage, is_last=is_last):
        unit = lcm(stage.level.align_bytes, operand.dtype.size_bytes)
        size = level.elems[operand.tensor] * operand.dtype.size_bytes
        total = total + -(-size // unit) * unit * level.copies[operand.tensor]
    budget = stage.capacity_bytes // np.minimum(stage.sharers, level.units_used)
    fits: Flags = total <= budget
    return fits


def divisor_below(value: Ints, limit: Ints, most: int) -> Ints:
    """Per element the largest divisor of `value` not above `limit`, which is at most `most`."""
    found = np.ones_like(value)
    for number in range(2, most + 1):
        found = np.where((value % number == 0) & (limit >= number), number, found)
    return found


def widths(operand: Operand, tile: Tiles, extents: Mapping[str, int]) -> tuple[Ints, ...]:
    """Extents of an operand's box per tiling: `Operand.widths` for arrays."""
    one = np.ones_like(next(iter(tile.values())))
    found: list[Ints] = []
    for k, terms in enumerate(operand.linear):
        width = one
        if terms is None:
            width = _reached(operand.index[k], tile, extents)
        else:
            for name, coeff in terms:
                width = width + coeff * (tile[name] - 1)
        found.append(np.minimum(width + operand.extra[k], operand.limits[k][1]))
    return tuple(found)


def _reached(expr: Affine, tile: Tiles, extents: Mapping[str, int]) -> Ints:
    """Widths of an index with // or %, computed once per different tile."""
    names = tuple(dict.fromkeys(expr.variables()))
    rows = np.stack([tile[name] for name in names], axis=1).tolist()
    known: dict[tuple[int, ...], int] = {}
    for row in map(tuple, rows):
        if row not in known:
            known[row] = reach(expr, dict(zip(names, row, strict=True)), extents).width
    return np.array([known[tuple(row)] for row in rows], dtype=np.int64)


def strips(facts: Facts, tile: Tiles) -> tuple[Ints, Ints]:
    """(dimension, number) of strips per tiling: `Facts.strips` for arrays."""
    one = np.ones_like(next(iter(tile.values())))
    dims, best = one * 0, one
    if facts.out is not None and facts.max_strips > 1:
        for dim, width in enumerate(widths(facts.out, tile, facts.extents)):
            number = divisor_below(width, one * facts.max_strips, facts.max_strips)
            dims = np.where(number > best, dim, dims)
            best = np.maximum(number, best)
    return dims, best


def _placed_widths(
    facts: Facts, operand: Operand, tile: Tiles, *, is_last: bool
) -> tuple[Ints, ...]:
    whole = widths(operand, tile, facts.extents)
    if not is_last or all(operand is not step.out for step in facts.epilogue[:-1]):
        return whole
    dims, number = strips(facts, tile)
    return tuple(np.where(dims == dim, width // number, width) for dim, width in enumerate(whole))
