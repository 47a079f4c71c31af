"""The best tiling of one layer, by branch and bound over all splits and trips.

A box has a lowest and a highest number of ways and trips for every stage and axis (`box_floor`).
Boxes whose floors are lowest are cut in two, along the axis where they are widest in ratio
(`box_cut`), and so are, to come upon good tilings early, the lowest of those that were cut last;
boxes whose floors are no better than what was found are left.  What is a single tiling at last is
priced (`price`).  So either nothing is left, and nothing in the space is better, or the work was
ended, and the lowest floor says how much better anything could be.  Where that is much, walks over
single tilings (`walks`) look for what boxes were too wide to show.

**Space**: all ways to split output axes over at most the units of each stage, and all numbers of
trips; innermost tiles as small as that allows, or the next multiples of what fills the engine or of
8 to 64 (`ROUNDINGS`), tiles around multiples of those inside; operands with two copies or one;
output loops in orders that keep one operand's own axes outermost.

Source: our own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from worker.compiler.jit import loop_for
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.tiling.nest.arrays import TRIPS, WAYS, Flags, Floats, Ints, long_axes
from worker.compiler.tiling.nest.box_cut import HALVES, SINGLE_TILINGS, cut
from worker.compiler.tiling.nest.box_floor import BoxFloor
from worker.compiler.tiling.nest.box_pool import ADDED, LATEST, add, take
from worker.compiler.tiling.nest.facts import Facts, granules
from worker.compiler.tiling.nest.levels import Sizes, StageFrame, levels_of
from worker.compiler.tiling.nest.plan import Plan, Stage, is_placed
from worker.compiler.tiling.nest.price import Pricer, Prices, Tilings
from worker.compiler.tiling.nest.search import (
    MOST_LEAVES,
    loop_orders,
    needed_units,
    plan_at,
    score,
)
from worker.compiler.tiling.nest.walk_steps import sized
from worker.compiler.tiling.nest.walks import Grid, walked

T = TypeVar("T", bound=np.generic)

# What each of these is worth: `python -m benchmarks.search_constants`, table in decision 0058.
MOST_BOXES = 3 << 13
"""Boxes of one layer on one chain of memories that are looked at, for each of `WAYS_FIRST`."""
MOST_TILINGS = 1 << 12
"""Tilings of one layer on one chain of memories that are priced, but for the end of a round: half a
second.  By energy, where floors of many are alike, some layers need as many; by latency few do."""
AT_ONCE = 1 << 7
"""Boxes that are cut in one go: a call of numpy takes about as long for fewer."""
DEEP = 0.75
"""Share of them that are the lowest of those that were cut last."""
WAYS_FIRST = (1, 16)
"""Ways are cut as if they were so many times as wide.  Both are done, in turn, with what is the
best so far in common: 1 proves more, 16 finds better tilings where there are many units."""
WIDE = 1.15
"""Single tilings are walked over (`walks`) where what was found may be that far from the best."""
MOST_WALKED = 1 << 9
"""Of them that are priced at most, with one copy and with two."""
NEAR = 1.005
"""Nothing is looked for that can bring no more than this."""
ROUNDINGS = (0, 8, 16, 32, 64)
"""Tiles are also looked at as the next multiples of these, where that leaves as many: bursts begin
and end there; 0: of what fills the engine."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of a layer's space once it was searched."""

    best: float
    """`search.score` of what was found."""
    bound: float
    """No tiling of the space has a lower one."""
    second: float
    """Of the best of the others that were priced, or of the plan to beat; inf: there is none."""
    boxes: int
    """That were looked at."""
    cut: int
    """Of them, those that their floors ruled out."""
    tilings: int
    """That were priced one by one."""


def is_bounded(facts: Facts) -> bool:
    """Whether floors know the layer: it has axes, every index is linear, nothing comes early."""
    operands = [*facts.fetched, *(step.out for step in facts.epilogue)]
    if facts.out is None or not facts.extents or facts.early or facts.padded_locals:
        return False
    return all(terms is not None for o in (*operands, facts.out) for terms in o.linear)


def search_all(
    facts: Facts, engine: Engine, stages: tuple[Stage, ...], machine: Machine, plan: Plan,
    most: int = MOST_LEAVES, *, may_walk: bool = True, within: float = inf,
) -> tuple[Plan, Proof]:  # fmt: skip
    """The best plan of the space by the measure of `plan` (found in another way), or that where it
    is as good, and what is proven of it.

    The layer is one that floors know (`is_bounded`); programs of more than `most` executed leaves
    count more (`score`).  Without `may_walk` boxes are all that is looked at.  Plans that cost more
    than `within` are not looked for.

    Cost: some microseconds for each of at most about `MOST_BOXES` boxes; where they leave much, as
    much again for walks, and twice.
    """
    found = _Search(facts, engine, needed_units(facts, stages), machine, plan, most, within)
    proof = found.run(may_walk=may_walk)
    return found.best, proof


class _Search:
    def __init__(
        self, facts: Facts, engine: Engine, stages: tuple[Stage, ...], machine: Machine, plan: Plan,
        most: int, within: float,
    ) -> None:  # fmt: skip
        self.most = most
        self.best = plan
        self.score = score(plan, most)
        self.limit = min(self.score, within)
        self.facts, self.stages = facts, stages
        self.frame = StageFrame(facts, stages)
        self.pricer = Pricer(facts, engine, stages, machine, plan.measure)
        self.names = long_axes(facts)
        self.floor = BoxFloor(self.frame, self.pricer, machine, most, self.names)
        self.extents = np.array([facts.extents[name] for name in self.names], np.int64)
        self.long = [k for k, name in enumerate(facts.extents) if name in self.names]
        self.ones = dict.fromkeys(facts.extents, 1)
        self.units = np.array([stage.units for stage in stages], np.int64)
        self.whole = np.array([name in facts.whole for name in self.names])
        self.single = np.array([name in facts.single for name in self.names])
        self.exact = np.array([name in facts.exact for name in self.names])
        grains = granules(facts, engine)
        own = np.array([grains[name] for name in self.names], np.int64)
        self.roundings = np.array([0 * own + (unit or own) for unit in (1, *ROUNDINGS)])
        self.orders = loop_orders(facts)
        shape = (2 * AT_ONCE, 2, len(stages), len(self.names))
        self._halves = (
            np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(shape[0], np.bool_),
            np.empty(AT_ONCE, np.int64), np.zeros(2, np.int64),
        )  # fmt: skip
        self.tilings = 0
        self.second = inf

    def run(self, *, may_walk: bool) -> Proof:
        low, high = self._whole()
        floor = float(self.floor.of(low, high)[0])
        fronts = [_Front(_Pool(low, high, floor), first) for first in WAYS_FIRST]
        while self.tilings < MOST_TILINGS:
            front = min(fronts, key=lambda front: front.boxes)
            if front.boxes >= MOST_BOXES or not self._round(front):
                break
        left = max(front.pool.least() for front in fronts)
        if may_walk and left * WIDE < self.limit:
            self._walk()
        boxes = sum(front.boxes for front in fronts)
        cut = sum(front.cut + front.pool.count_from(self.limit / NEAR) for front in fronts)
        bound = min(left, self.limit / NEAR)
        return Proof(self.score, bound, self.second, boxes, cut, self.tilings)

    def _round(self, front: _Front) -> bool:
        """Cut some boxes in two; whether there were any."""
        pool, limit = front.pool, self.limit / NEAR
        dived = pool.taken(front.deep, int(DEEP * AT_ONCE), limit)
        places = np.concatenate([dived, pool.lowest(AT_ONCE - len(dived), limit)])
        if not len(places):
            return False
        low, high, is_deep, ones = self._cut(pool, places, len(dived), front.ways_first)
        if len(ones):
            self._price(pool.low[ones])
        front.boxes += len(low)
        floors = self.floor.of(low, high, self.limit / NEAR)
        before = pool.count
        front.deep = pool.add(low, high, floors, is_deep, self.limit)
        front.cut += len(low) - (pool.count - before)
        return True

    def _walk(self) -> None:
        """Look at single tilings, where the bound leaves much that may be found.

        Walks go along axes of one step as well, though nothing stands there: chance falls to all
        axes of a layer, whatever boxes leave out.
        """
        facts, long = self.facts, self.long
        most = np.ones((2, len(self.stages), len(facts.extents)), np.int64)
        most[:, :, long] = self._whole()[1][0]

        def tiled(numbers: Ints, rounding: Ints) -> tuple[Ints, Flags]:
            tiles = np.ones((len(numbers), len(facts.extents)), np.int64)
            tiles[:, long], may = self._tiled(numbers[..., long], rounding)
            return tiles, may

        grid = Grid(
            np.array(list(facts.extents.values())), most, self.units,
            np.array([name in facts.single for name in facts.extents]), len(ROUNDINGS) + 1,
            tiled, lambda numbers, tiles: self.floor.of_tilings(numbers[..., long], tiles[:, long]),
        )  # fmt: skip
        found = walked(grid, self.limit / NEAR)
        self._price_tilings(found.numbers[..., long], found.tiles[:, long], MOST_WALKED)

    def _tiled(self, numbers: Ints, rounding: Ints) -> tuple[Ints, Flags]:
        """As `Grid.tiled`; rounding 0: tiles as small as ways and trips allow."""
        tiles = np.empty((len(numbers), len(self.names)), np.int64)
        may = np.empty(len(numbers), np.bool_)
        loop = loop_for(sized, numbers.size)
        loop(numbers, self.roundings[rounding], self.extents, self.whole, self.single, self.exact,
             tiles, may)  # fmt: skip
        return tiles, may

    def _whole(self) -> tuple[Ints, Ints]:
        """The box of everything."""
        facts, count = self.facts, len(self.stages)
        low = np.ones((1, 2, count, len(self.names)), np.int64)
        high = low.copy()
        is_summed_inside = self._is_summed_inside()
        for k, (stage, stand) in enumerate(zip(self.stages, self.frame.stands, strict=True)):
            for i, name in enumerate(self.names):
                if name in facts.whole:
                    continue
                if name in stand.out_axes:
                    high[:, WAYS, k, i] = min(facts.extents[name], stage.units)
                is_inside = name in facts.reduce_axes and is_summed_inside
                if k == count - 1 or not is_inside:
                    high[:, TRIPS, k, i] = facts.extents[name]
        return low, high

    def _is_summed_inside(self) -> bool:
        """Whether no stage but the innermost loops over reductions (as in `search`)."""
        facts, stored = self.facts, self.facts.stored
        return bool(facts.epilogue) or (
            stored is not None
            and not all(is_placed(facts.base.get(stored.tensor, ""), s) for s in self.stages)
        )

    def _cut(
        self, pool: _Pool, places: Ints, dived: int, ways_first: int
    ) -> tuple[Ints, Ints, Flags, Ints]:
        """Two boxes of each that have anything (`box_cut`), whether they were cut to come upon good
        tilings: the first `dived`, or all if there are none; and places of single tilings."""
        lower, upper, is_deep, ones, counts = self._halves
        loop = loop_for(cut, len(places) * lower[0].size)
        loop(pool.low, pool.high, places, dived or len(places), float(ways_first), self.units,
             self.extents, self.single, lower, upper, is_deep, ones, counts)  # fmt: skip
        number, single = counts[HALVES], counts[SINGLE_TILINGS]
        return lower[:number], upper[:number], is_deep[:number], ones[:single]

    def _price(self, numbers: Ints) -> None:
        """Price tilings of so many ways and trips [tilings, 2, stages, axes]."""
        count, each = len(numbers), np.arange(len(self.roundings))
        every = np.tile(numbers, (len(each), 1, 1, 1))
        tiles, may = self._tiled(every, np.repeat(each, count))
        rounded = tiles.reshape(len(each), count, -1)
        is_alike = (rounded[:, None] == rounded).all(axis=3) & (each[:, None] > each)[..., None]
        kept = may & ~is_alike.any(axis=1).reshape(-1)
        self._price_tilings(every[kept], tiles[kept])

    def _price_tilings(self, numbers: Ints, tiles: Ints, most: int | None = None) -> None:
        """Price those whose floors are the lowest, at most so many, until none can be better."""
        floors = self.floor.of_tilings(numbers, tiles)
        order = np.argsort(floors, axis=None, kind="stable")[:most]
        order = order[floors.reshape(-1)[order] * NEAR < self.limit]
        lowest = floors.reshape(-1)[order].tolist()
        for first in range(0, len(order), AT_ONCE):
            if not lowest[first] * NEAR < self.limit:
                break
            places = order[first : first + AT_ONCE]
            found = self._tilings(numbers[places // 2], tiles[places // 2], places % 2 == 0)
            prices = self.pricer.best(found, self.orders, self.most)
            may = (self._in_order(found.tiles) & np.isfinite(prices.rank)).tolist()
            for k, rank in enumerate(prices.rank.tolist()):
                if not lowest[first + k] * NEAR < self.limit:
                    break
                if may[k]:
                    self._keep(found, prices, k, rank)

    def _tilings(self, numbers: Ints, tiles: Ints, double: Flags) -> Tilings:
        """With tiles of all stages."""
        inside = np.ones_like(numbers[:, 0])
        inside[:, :-1] = np.cumprod(numbers.prod(axis=1)[:, :0:-1], axis=1)[:, ::-1]
        return Tilings(numbers, tiles[:, None] * inside, double)

    def _in_order(self, tiles: Ints) -> Flags:
        """Which tilings write boxes without holes (`Facts.below`) [tilings]."""
        may = np.ones(len(tiles), np.bool_)
        for name, below in self.facts.below.items():
            if name not in self.names:
                continue
            is_long = tiles[:, :, self.names.index(name)] > 1
            for inner in below:
                if inner in self.names:
                    k = self.names.index(inner)
                    may &= ~(is_long & (tiles[:, :, k] < self.extents[k])).any(axis=1)
        return may

    def _keep(self, found: Tilings, prices: Prices, k: int, rank: float) -> None:
        """Keep one tiling that was priced where it is the best, or the best of the others."""
        self.tilings += 1
        if rank >= self.second and rank >= self.score:
            return
        plan = self._plan(found, prices, k)
        if rank < self.score:
            self.best, self.score, self.second = plan, rank, self.score
            self.limit = min(self.limit, rank)
        elif plan.levels != self.best.levels:
            self.second = rank

    def _plan(self, found: Tilings, prices: Prices, k: int) -> Plan:
        """One of the tilings, written out."""
        names = self.names
        ways = tuple(
            {n: number for n, number in zip(names, row, strict=True) if number > 1}
            for row in found.numbers[k, WAYS].tolist()
        )
        tiles = tuple(
            {**self.ones, **dict(zip(names, row, strict=True))} for row in found.tiles[k].tolist()
        )
        levels = levels_of(self.frame, Sizes(tiles, bool(found.double[k]), ways))
        assert levels is not None, "it was priced, so its buffers fit"
        return plan_at(self.pricer, levels, self.orders, prices, k)


class _Pool:
    """Boxes that are still to be looked at."""

    def __init__(self, low: Ints, high: Ints, floor: float) -> None:
        room = 2 * AT_ONCE
        self.low, self.high = (np.ones((room, *low.shape[1:]), np.int64) for _ in range(2))
        self.floors, self.is_left = np.full(room, inf), np.zeros(room, np.bool_)
        self._heap = np.zeros(room, np.int64)
        self._counts = np.zeros(3, np.int64)
        self.add(low, high, np.array([floor]), np.ones(1, np.bool_), inf)

    def add(self, low: Ints, high: Ints, floors: Floats, is_deep: Flags, score: float) -> Ints:
        """Add those that leave something better than a score; places of those with `is_deep`."""
        while int(self._counts[ADDED]) + len(floors) > len(self.floors):
            self.low, self.high = _twice(self.low), _twice(self.high)
            self.floors, self.is_left = _twice(self.floors), _twice(self.is_left)
            self._heap = _twice(self._heap)
        deep = np.empty(len(floors), np.int64)
        loop = loop_for(add, low.size)
        loop(low, high, floors, is_deep, NEAR, score, self.low, self.high, self.floors,
             self.is_left, self._heap, deep, self._counts)  # fmt: skip
        return deep[: self._counts[LATEST]]

    @property
    def count(self) -> int:
        """Boxes that were ever added."""
        return int(self._counts[ADDED])

    def least(self) -> float:
        """The lowest floor; inf where nothing is left."""
        return float(self._floors_left().min(initial=inf))

    def count_from(self, limit: float) -> int:
        """Boxes with floors of `limit` or more."""
        return int(np.count_nonzero(self._floors_left() >= limit))

    def _floors_left(self) -> Floats:
        return self.floors[: self.count][self.is_left[: self.count]]

    def lowest(self, number: int, limit: float) -> Ints:
        """Take the `number` lowest below a limit, ascending; of equal ones the first."""
        found = np.empty(max(0, number), np.int64)
        loop = loop_for(take, 8 * len(found))
        return found[: loop(self.floors, self.is_left, self._heap, self._counts, limit, found)]

    def taken(self, places: Ints, number: int, limit: float) -> Ints:
        """The same of some, in order."""
        floors = self.floors[places]
        order = np.argsort(floors, kind="stable")[:number]
        found = places[order[floors[order] < limit]]
        self.is_left[found] = False
        return found


def _twice(array: npt.NDArray[T]) -> npt.NDArray[T]:
    """With room for as much again behind it, of which no page is touched before it is used."""
    found = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
    found[: len(array)] = array
    return found


@dataclass(slots=True)
class _Front:
    """One way to cut the whole space into boxes."""

    pool: _Pool
    ways_first: int
    boxes: int = 0
    """That were looked at."""
    cut: int = 0
    """Of them, those that were left at once."""
    deep: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    """Places of those that were cut last for a good tiling's sake."""
