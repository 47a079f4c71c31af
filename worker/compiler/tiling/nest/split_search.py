"""Tiles for a given split over the cores: a grid of sizes, the largest that fit looked at closely.

Growing tiles from small ones ends in local optima where an operand has to be reloaded until a much
larger tile keeps it.  With the split fixed, what is left is how far each core's share is cut, so
halvings of the few axes that matter can be enumerated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd, prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.tiling.factors import divisors, largest_divisor
from worker.compiler.tiling.nest.facts import Facts
from worker.compiler.tiling.nest.levels import Sizes, StageFrame, levels_of
from worker.compiler.tiling.nest.plan import LevelPlan, Plan, Stage
from worker.compiler.tiling.nest.price import Pricer
from worker.compiler.tiling.nest.search import loop_orders, needed_units, ordered_plans, score

Ints: TypeAlias = "npt.NDArray[np.int64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"
Tiles: TypeAlias = Mapping[str, Ints]
"""Tile size per axis, one element per tiling."""

VARIED_AXES = 2
"""Output axes whose tiles are varied: the longest ones of a core's share."""
MAX_HALVINGS = 4
OUTER_HALVINGS = 6
"""Halvings of what an outer stage holds: two large operands leave little room to each other."""
LOOKED_AT = 10
"""Tilings predicted, by falling volume of the tile: the model flatters small tiles, so predicting
all of them finds plans that are simulated slower."""


def search_split(
    facts: Facts,
    engine: Engine,
    stages: tuple[Stage, ...],
    machine: Machine,
    ways: Mapping[str, int],
) -> Plan | None:
    """The best plan found when output axes are split over the cores as `ways` says, or None.

    Cost: a hundred array operations over a few hundred tilings, a dozen of which are priced.
    """
    stages = needed_units(facts, stages)
    by_stage = _by_stage(facts, stages, ways)
    grid = tile_grid(facts, by_stage)
    if grid is None:
        return None
    frame, pricer = StageFrame(facts, stages), Pricer(facts, engine, stages, machine)
    orders = loop_orders(facts)
    for double in (True, False):
        written = largest_tilings(frame, grid, by_stage, double=double)
        found = ordered_plans(pricer, written, orders)
        if found:
            return min(found, key=score)
    return None


def largest_tilings(
    frame: StageFrame, grid: tuple[Tiles, ...], ways: tuple[Mapping[str, int], ...], *, double: bool
) -> list[list[LevelPlan]]:
    """The different tilings that fit, by falling volume of the innermost tile."""
    volume: Ints = prod(grid[-1].values(), start=np.ones(1, dtype=np.int64))
    columns = np.stack([size for tile in grid for size in tile.values()], axis=1)
    places = np.argsort(-volume, kind="stable")
    places = places[_may_fit(frame, grid, ways, double=double)[places]]
    names = list(frame.facts.extents)
    starts = range(0, columns.shape[1], len(names))
    found: list[list[LevelPlan]] = []
    tried: set[tuple[int, ...]] = set()
    for row in columns[places].tolist():
        key = tuple(row)
        if key in tried:
            continue
        tried.add(key)
        tiles = tuple(dict(zip(names, row[k : k + len(names)], strict=True)) for k in starts)
        levels = levels_of(frame, Sizes(tiles, double, ways))
        if levels is not None:
            found.append(levels)
            if len(found) == LOOKED_AT:
                break
    return found


def _may_fit(
    frame: StageFrame, grid: tuple[Tiles, ...], ways: tuple[Mapping[str, int], ...], *, double: bool
) -> Flags:
    """What is worth writing out: without strips, its buffers fit if nobody shares the memory."""
    outer: Tiles = {name: np.array(extent) for name, extent in frame.facts.extents.items()}
    fits: Flags = np.ones(len(next(iter(grid[0].values()))), dtype=np.bool_)
    for stand, tile, split in zip(frame.stands, grid, ways, strict=True):
        looped = {n: -(-outer[n] // size) > split.get(n, 1) for n, size in tile.items()}
        total = np.zeros(len(fits), dtype=np.int64)
        for held in stand.held:
            operand = held.operand
            elems = np.full(len(fits), 0 if held.is_strip else held.item_bytes)
            for terms, extra, (_, most) in zip(
                operand.linear, operand.extra, operand.limits, strict=True
            ):
                width = 1 + sum(coeff * (tile[name] - 1) for name, coeff in terms or ())
                elems = elems * np.minimum(width + extra, most)
            size = -(-elems // held.unit_bytes) * held.unit_bytes
            twice = [looped[name] for name in operand.axes if double and not held.is_lone]
            taken = size + size * np.any(twice, axis=0) if twice else size
            if held.room is None:
                total += taken
            else:
                fits &= taken <= held.room
        fits &= total <= stand.stage.capacity_bytes
        outer = tile
    return fits


def tile_grid(facts: Facts, ways: tuple[Mapping[str, int], ...]) -> tuple[Tiles, ...] | None:
    """Tiles of all stages: the innermost cut along a few axes, the others along the longest one.

    None when none of them can be settled.
    """
    outers = list(_outer(facts, _shares(facts, ways), ways))
    points: list[Tiles] = []
    for outer in outers:
        axes = _varied(facts, outer[-1])
        cuts = np.meshgrid(*(_cuts(facts, n, outer[-1][n]) for n in axes), indexing="ij")
        points.append({name: sizes.ravel() for name, sizes in zip(axes, cuts, strict=True)})
    numbers = [len(next(iter(found.values()))) if found else 1 for found in points]
    tiles = [
        {n: np.repeat([outer[k][n] for outer in outers], numbers) for n in facts.extents}
        for k in range(len(ways))
    ]
    for name in {n: None for found in points for n in found}:
        sizes = (
            found.get(name, np.full(number, outer[-1][name]))
            for found, number, outer in zip(points, numbers, outers, strict=True)
        )
        tiles[-1][name] = np.concatenate(list(sizes))
    return _settled(facts, tiles, ways)


def _outer(
    facts: Facts, shares: tuple[dict[str, int], ...], ways: tuple[Mapping[str, int], ...]
) -> Iterator[tuple[dict[str, int], ...]]:
    """Shares with the longest output axis of the first stage cut in half again and again."""
    yield shares
    if len(shares) == 1:
        return
    axes = [n for n in facts.out_axes if n not in facts.whole and n not in facts.single]
    for name in sorted(axes, key=lambda n: (-shares[0][n], n))[:1]:
        for size in _cuts(facts, name, shares[0][name], OUTER_HALVINGS)[1:]:
            cut = [{**shares[0], name: size}]
            for tile, split in zip(shares[1:], ways[1:], strict=True):
                share = -(-cut[-1][name] // split.get(name, 1))
                if name in facts.exact:
                    share = largest_divisor(cut[-1][name], share)
                cut.append({**tile, name: min(tile[name], share)})
            yield tuple(cut)


def _varied(facts: Facts, share: Mapping[str, int]) -> tuple[str, ...]:
    """Axes whose tile sizes are enumerated: the longest output axes and the longest reduction."""
    free = [n for n in share if share[n] > 1 and n not in facts.whole and n not in facts.single]
    out = sorted((n for n in free if n in facts.out_axes), key=lambda n: (-share[n], n))
    sums = sorted((n for n in free if n in facts.reduce_axes), key=lambda n: (-share[n], n))
    return (*out[:VARIED_AXES], *sums[:1])


def _cuts(facts: Facts, name: str, share: int, halvings: int = MAX_HALVINGS) -> list[int]:
    """A share, half of it, and so on."""
    found = [share]
    while found[-1] > 1 and len(found) <= halvings:
        old = found[-1]
        found.append(largest_divisor(old, old // 2) if name in facts.exact else -(-old // 2))
    return found


def _by_stage(
    facts: Facts, stages: tuple[Stage, ...], ways: Mapping[str, int]
) -> tuple[Mapping[str, int], ...]:
    """A split over all cores as splits over the units of each stage, outer stages first.

    Which axis an outer stage is split along decides what its units read twice: the order of axes
    with the fewest bytes wins, the order given on ties.
    """
    tried = [_dealt(stages, {name: ways[name] for name in order}) for order in _orders(ways)]
    return min(tried, key=lambda found: _outer_bytes(facts, found[:-1]))


def _orders(ways: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Each axis first once."""
    return [(name, *(n for n in ways if n != name)) for name in ways] or [()]


def _outer_bytes(facts: Facts, ways: Sequence[Mapping[str, int]]) -> int:
    """What all units of the outer stages read together, each its own share once."""
    total, units = 0, 1
    share = dict(facts.extents)
    for split in ways:
        share = {name: -(-size // split.get(name, 1)) for name, size in share.items()}
        units *= prod(split.values())
        total += units * sum(
            prod(operand.widths(share, facts.extents)) * operand.dtype.size_bytes
            for operand in facts.fetched
        )
    return total


def _dealt(stages: tuple[Stage, ...], ways: Mapping[str, int]) -> tuple[Mapping[str, int], ...]:
    """The split dealt out to the stages, the axes in their order."""
    left = dict(ways)
    found: list[Mapping[str, int]] = []
    for stage in stages[:-1]:
        units = stage.units
        own: dict[str, int] = {}
        for name in left:
            own[name] = gcd(left[name], units)
            left[name] //= own[name]
            units //= own[name]
        found.append(own)
    if prod(left.values()) > stages[-1].units:  # more than the innermost stage has: fewer cores
        units = stages[-1].units
        for name in left:
            left[name] = largest_divisor(left[name], units)
            units //= left[name]
    return (*found, left)


def _shares(facts: Facts, ways: tuple[Mapping[str, int], ...]) -> tuple[dict[str, int], ...]:
    """The largest tiles: each stage's share of the stage before."""
    found: list[dict[str, int]] = []
    outer: Mapping[str, int] = facts.extents
    for split in ways:
        tile: dict[str, int] = {}
        for name, extent in outer.items():
            share = -(-extent // split.get(name, 1))
            tile[name] = largest_divisor(extent, share) if name in facts.exact else share
            if name in facts.single:
                tile[name] = 1
        found.append(tile)
        outer = tile
    return tuple(found)


def _settled(
    facts: Facts, tiles: Sequence[Tiles], ways: tuple[Mapping[str, int], ...]
) -> tuple[Tiles, ...] | None:
    """Tiles of outer stages grown to whole shares of the inner ones, where they can be.

    Those are left out whose result would be a box with holes (`Facts.below`): storing it would
    write over what other tiles computed.
    """
    found = [dict(tile) for tile in tiles]
    for tile in found:
        for name, below in facts.below.items():
            for inner in below:
                tile[name] = np.where(tile[inner] < facts.extents[inner], 1, tile[name])
    can = np.ones(len(next(iter(found[0].values()))), dtype=np.bool_)
    for k in reversed(range(len(found) - 1)):
        for name, extent in facts.extents.items():
            unit = found[k + 1][name] * ways[k + 1].get(name, 1)
            size = -(-found[k][name] // unit) * unit
            if name in facts.exact:
                size = _divisor_above(extent, size, unit)
                can &= size > 0
                size = np.where(size > 0, size, extent)
            found[k][name] = size
    for tile in found:  # a share of several cores may have grown again beside a cut axis
        for name, below in facts.below.items():
            for inner in below:
                can &= (tile[name] == 1) | (tile[inner] >= facts.extents[inner])
    if not can.any():
        return None
    return tuple({name: size[can] for name, size in tile.items()} for tile in found)


def _divisor_above(extent: int, least: Ints, unit: Ints) -> Ints:
    """Per element the smallest divisor of `extent` from `least` on that `unit` divides, or 0."""
    found = np.zeros_like(least)
    for number in reversed(divisors(extent)):
        found = np.where((number >= least) & (number % unit == 0), number, found)
    return found
