"""Checks what a certificate says of a kernel, by looking at tilings one by one.

Nothing of the search is used: no floors, no boxes, no arrays.  Small spaces are enumerated, of
large ones a thousand tilings are drawn, each priced as it is (`tiling/nest/price.py`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import product
from math import inf, prod

from worker.compiler.errors import Shortfall
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.strategies.base import Checked
from worker.compiler.strategies.naive.certificate import Certificate
from worker.compiler.strategies.naive.tilings import layer_of
from worker.compiler.tiling.nest.branch_bound import ROUNDINGS
from worker.compiler.tiling.nest.facts import Facts, granules
from worker.compiler.tiling.nest.levels import Sizes, StageFrame, levels_of
from worker.compiler.tiling.nest.plan import Stage
from worker.compiler.tiling.nest.price import Pricer
from worker.compiler.tiling.nest.search import (
    MOST_LEAVES,
    loop_orders,
    needed_units,
    ordered_plan,
    score,
)

WHOLE = 4096
"""Spaces of so many splits and trips are enumerated."""
DRAWN = 1000
"""Combinations of ways and trips that are drawn at most of each other space, and tilings that fit
with which it ends."""
SLACK = 1e-3
"""Notes give three digits behind the point."""

Axis = tuple[tuple[int, int], ...]
"""(ways, trips) of one axis, by stage."""


def check(schedule: Schedule, machine: Machine) -> Checked | None:
    """Whether no tiling that is looked at is better than the bound; None: nothing was certified.

    Deterministic: what is drawn follows from the schedule.
    Cost: some hundred microseconds a tiling.

    Raises:
        ValueError, KeyError: the note names a space that is none on this machine.
    """
    found = next(filter(None, map(Certificate.said, schedule.notes)), None)
    if found is None:
        return None
    unit = schedule.graph
    layer = layer_of(unit, machine)
    if isinstance(layer, Shortfall):
        raise ValueError(f"no kernel of this machine: {layer}")
    facts, engine = layer
    least, number, is_whole = inf, 0, True
    for space in found.spaces:
        placed, stages = space.placed(facts, machine)
        space_of = _Layer(placed, needed_units(placed, stages))
        pricer = Pricer(placed, engine, space_of.stages, machine)
        grains = granules(placed, engine)
        every = space_of.all()
        is_whole &= every is not None
        rng = random.Random(f"{space} {placed.extents}")
        most = number + DRAWN
        for numbers in space_of.drawn(rng) if every is None else every:
            if every is None and number >= most:
                break
            for sizes in space_of.tiled(numbers, grains):
                levels = levels_of(space_of.frame, sizes)
                if levels is None:
                    continue
                plan = ordered_plan(pricer, levels, loop_orders(placed), MOST_LEAVES)
                least, number = min(least, score(plan, MOST_LEAVES)), number + 1
    return Checked(
        best=found.best, bound=found.bound, least=least, tilings=number, is_whole=is_whole,
        holds=found.is_ordered(SLACK) and least >= found.bound - SLACK,
    )  # fmt: skip


class _Layer:
    """All ways and trips of a layer on given stages."""

    def __init__(self, facts: Facts, stages: tuple[Stage, ...]) -> None:
        self.facts, self.stages = facts, stages
        self.frame = StageFrame(facts, stages)

    def all(self) -> list[Mapping[str, Axis]] | None:
        """Every combination that there are units for; None: too many."""
        choices: list[list[Axis]] = []
        for name, extent in self.facts.extents.items():
            if prod(extent * min(extent, stage.units) for stage in self.stages) > WHOLE**2:
                return None
            choices.append([n for n in self._parts(name, extent, 0) if self._leaves(name, n)])
        if prod(map(len, choices)) > WHOLE:
            return None
        return [
            dict(zip(self.facts.extents, chosen, strict=True))
            for chosen in product(*choices)
            if self._has_units(chosen)
        ]

    def drawn(self, rng: random.Random) -> Iterator[Mapping[str, Axis]]:
        """Some of them, each extent and number of ways as likely as its half."""
        for _ in range(DRAWN):
            chosen: list[Axis] = []
            for name, extent in self.facts.extents.items():
                found = self._some(name, extent, rng)
                while not (self._leaves(name, found) and self._has_units((*chosen, found))):
                    found = self._some(name, extent, rng)
                chosen.append(found)
            yield dict(zip(self.facts.extents, chosen, strict=True))

    def _parts(self, name: str, left: int, k: int) -> Iterator[Axis]:
        """Ways and trips of an axis from a stage on."""
        if k == len(self.stages):
            yield ()
            return
        for way in range(1, self._most_ways(name, left, k) + 1):
            for trips in range(1, self._most_trips(name, -(-left // way), k) + 1):
                for inner in self._parts(name, -(-left // (way * trips)), k + 1):
                    yield ((way, trips), *inner)

    def _some(self, name: str, left: int, rng: random.Random) -> Axis:
        found: list[tuple[int, int]] = []
        for k in range(len(self.stages)):
            way = _halved(self._most_ways(name, left, k), rng)
            left = -(-left // way)
            trips = _halved(self._most_trips(name, left, k), rng)
            if name in self.facts.single and k == len(self.stages) - 1:
                trips = left  # into single steps: any other number would be drawn for ever
            left = -(-left // trips)
            found.append((way, trips))
        return tuple(found)

    def _most_ways(self, name: str, left: int, k: int) -> int:
        is_split = name in self.facts.out_axes and name not in self.facts.whole
        return min(left, self.stages[k].units) if is_split else 1

    def _most_trips(self, name: str, left: int, k: int) -> int:
        facts, is_last = self.facts, k == len(self.stages) - 1
        if name in facts.whole or (facts.epilogue and name in facts.reduce_axes and not is_last):
            return 1  # an epilogue needs complete sums
        return left

    def _leaves(self, name: str, numbers: Axis) -> bool:
        """Whether no unit and no trip is without a tile."""
        facts, extent = self.facts, self.facts.extents[name]
        tile = -(-extent // prod(way * trips for way, trips in numbers))
        if name in facts.whole:
            return True
        return (name not in facts.single or tile == 1) and self._is_real(name, tile, numbers)

    def _is_real(self, name: str, tile: int, numbers: Axis) -> bool:
        extent = self.facts.extents[name]
        inside = tile * prod(way * trips for way, trips in numbers[1:])
        way, trips = numbers[0]
        count = -(-extent // inside)
        if name in self.facts.exact and inside * way * trips != extent:
            return False
        return -(-count // way) == trips and -(-count // trips) == way

    def _has_units(self, chosen: tuple[Axis, ...]) -> bool:
        return all(
            prod(axis[k][0] for axis in chosen) <= stage.units
            for k, stage in enumerate(self.stages)
        )

    def tiled(
        self, numbers: Mapping[str, Axis], grains: Mapping[str, int]
    ) -> Iterator[Sizes]:  # fmt: skip
        """The tiles that leave so many, with two copies and with one."""
        known: list[dict[str, int]] = []
        for rounding in (1, *ROUNDINGS):
            tile: dict[str, int] = {}
            for name, extent in self.facts.extents.items():
                least = -(-extent // prod(way * trips for way, trips in numbers[name]))
                tile[name] = extent if name in self.facts.whole else least
                unit = rounding or grains[name]
                up = min(-(-least // unit) * unit, extent)
                if name not in self.facts.whole | self.facts.single and self._is_real(
                    name, up, numbers[name]
                ):
                    tile[name] = up
            if tile in known:
                continue
            known.append(tile)
            tiles = [
                {
                    name: size * prod(way * trips for way, trips in numbers[name][k + 1 :])
                    for name, size in tile.items()
                }
                for k in range(len(self.stages))
            ]
            if self._is_cut_in_order(tiles):
                ways = tuple(
                    {n: axis[k][0] for n, axis in numbers.items() if axis[k][0] > 1}
                    for k in range(len(self.stages))
                )
                for double in (True, False):
                    yield Sizes(tuple(tiles), double, ways)

    def _is_cut_in_order(self, tiles: list[dict[str, int]]) -> bool:
        """`Facts.below`."""
        return all(
            tile[name] == 1 or all(tile[n] >= self.facts.extents[n] for n in below)
            for tile in tiles
            for name, below in self.facts.below.items()
        )


def _halved(most: int, rng: random.Random) -> int:
    """A number up to one, each power of two as likely."""
    low = 1 << rng.randrange(most.bit_length())
    return rng.randint(low, min(most, 2 * low - 1))
