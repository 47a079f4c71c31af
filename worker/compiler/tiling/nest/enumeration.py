"""All tilings of one layer on given stages, one by one: for whoever checks a search, or rivals it.

Plain code that shares nothing with branch and bound (`branch_bound`) but what the space is: ways
and trips for every stage and axis, innermost tiles as small as these allow or rounded up
(`ROUNDINGS`), operands with two copies or one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod

from worker.compiler.tiling.nest.branch_bound import ROUNDINGS
from worker.compiler.tiling.nest.facts import Facts
from worker.compiler.tiling.nest.levels import Sizes
from worker.compiler.tiling.nest.plan import Stage

Axis = tuple[tuple[int, int], ...]
"""(ways, trips) of one axis, by stage."""
Numbers = Mapping[str, Axis]
"""Of every axis."""
EVERY_ROUNDING = (1, *ROUNDINGS)
"""What innermost tiles may be multiples of; 0: of what fills the engine."""


class Enumeration:
    """All ways and trips of a layer on given stages."""

    def __init__(self, facts: Facts, stages: tuple[Stage, ...], grains: Mapping[str, int]) -> None:
        """`grains`: what fills the engine (`facts.granules`)."""
        self.facts, self.stages, self.grains = facts, stages, grains

    def all(self, most: int) -> list[Numbers] | None:
        """Every combination that there are units for; None: more than `most`, units aside.

        Cost: up to the square of `most` for an axis.
        """
        choices: list[list[Axis]] = []
        for name, extent in self.facts.extents.items():
            if prod(extent * min(extent, stage.units) for stage in self.stages) > most**2:
                return None
            choices.append([n for n in self._parts(name, extent, 0) if self.is_real(name, n)])
        if prod(map(len, choices)) > most:
            return None
        return [
            dict(zip(self.facts.extents, chosen, strict=True))
            for chosen in product(*choices)
            if self.has_units(chosen)
        ]

    def drawn(self, rng: random.Random) -> Iterator[Numbers]:
        """Some of them, without end, each extent and number of ways as likely as its half."""
        while True:
            chosen: list[Axis] = []
            for name in self.facts.extents:
                found = self.drawn_axis(name, rng)
                while not (self.is_real(name, found) and self.has_units((*chosen, found))):
                    found = self.drawn_axis(name, rng)
                chosen.append(found)
            yield dict(zip(self.facts.extents, chosen, strict=True))

    def drawn_axis(self, name: str, rng: random.Random) -> Axis:
        """Ways and trips of one axis, which need not leave a tile to each (`is_real`)."""
        left = self.facts.extents[name]
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

    def is_real(self, name: str, axis: Axis) -> bool:
        """Whether an axis may be cut so, and no unit and no trip is without a tile."""
        facts, left = self.facts, self.facts.extents[name]
        for k, (way, trips) in enumerate(axis):
            if way > self._most_ways(name, left, k):
                return False
            left = -(-left // way)
            if trips > self._most_trips(name, left, k):
                return False
            left = -(-left // trips)
        if name in facts.whole:
            return True
        tile = self._least(name, axis)
        return (name not in facts.single or tile == 1) and self._leaves(name, tile, axis)

    def has_units(self, chosen: tuple[Axis, ...]) -> bool:
        """Whether every stage has as many units as so many axes are split over."""
        return all(
            prod(axis[k][0] for axis in chosen) <= stage.units
            for k, stage in enumerate(self.stages)
        )

    def tiled(self, numbers: Numbers) -> Iterator[Sizes]:
        """The tilings that leave so many, each with two copies and with one."""
        known: list[Mapping[str, int]] = []
        for rounding in EVERY_ROUNDING:
            for double in (True, False):
                sizes = self.sized(numbers, rounding, double=double)
                if sizes is None or sizes.tiles[-1] in known:
                    break
                yield sizes
            else:
                assert sizes is not None
                known.append(sizes.tiles[-1])

    def sized(self, numbers: Numbers, rounding: int, *, double: bool) -> Sizes | None:
        """One of them; None: the result cannot be cut in this order (`Facts.below`)."""
        facts = self.facts
        tile: dict[str, int] = {}
        for name, extent in facts.extents.items():
            least = tile[name] = self._least(name, numbers[name])
            unit = rounding or self.grains[name]
            up = min(-(-least // unit) * unit, extent)
            may = name not in facts.whole | facts.single
            if may and self._leaves(name, up, numbers[name]):
                tile[name] = up
        tiles = tuple(
            {
                name: size * prod(way * trips for way, trips in numbers[name][k + 1 :])
                for name, size in tile.items()
            }
            for k in range(len(self.stages))
        )
        if not self._is_cut_in_order(tiles):
            return None
        ways = tuple(
            {n: axis[k][0] for n, axis in numbers.items() if axis[k][0] > 1}
            for k in range(len(self.stages))
        )
        return Sizes(tiles, double, ways)

    def _parts(self, name: str, left: int, k: int) -> Iterator[Axis]:
        """Ways and trips of an axis from a stage on."""
        if k == len(self.stages):
            yield ()
            return
        for way in range(1, self._most_ways(name, left, k) + 1):
            for trips in range(1, self._most_trips(name, -(-left // way), k) + 1):
                for inner in self._parts(name, -(-left // (way * trips)), k + 1):
                    yield ((way, trips), *inner)

    def _most_ways(self, name: str, left: int, k: int) -> int:
        is_split = name in self.facts.out_axes and name not in self.facts.whole
        return min(left, self.stages[k].units) if is_split else 1

    def _most_trips(self, name: str, left: int, k: int) -> int:
        facts, is_last = self.facts, k == len(self.stages) - 1
        if name in facts.whole or (facts.epilogue and name in facts.reduce_axes and not is_last):
            return 1  # an epilogue needs complete sums
        return left

    def _least(self, name: str, axis: Axis) -> int:
        extent = self.facts.extents[name]
        if name in self.facts.whole:
            return extent
        return -(-extent // prod(way * trips for way, trips in axis))

    def _leaves(self, name: str, tile: int, axis: Axis) -> bool:
        """Whether tiles leave just so many ways and trips."""
        extent = self.facts.extents[name]
        inside = tile * prod(way * trips for way, trips in axis[1:])
        way, trips = axis[0]
        count = -(-extent // inside)
        if name in self.facts.exact and inside * way * trips != extent:
            return False
        return -(-count // way) == trips and -(-count // trips) == way

    def _is_cut_in_order(self, tiles: tuple[dict[str, int], ...]) -> bool:
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
