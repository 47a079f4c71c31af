"""The best tiling of one layer, by branch and bound over all splits and trips.

A box has a lowest and a highest number of ways and trips for every stage and axis (`box_floor`).
Boxes whose floors are lowest are cut in two, along the axis where they are widest in ratio, and so
are, to come upon good tilings early, the lowest of those that were cut last; boxes whose floors are
no better than what was found are left.  What is a single tiling at last is priced (`price`).  So
either nothing is left, and nothing in the space is better, or the work was ended, and the lowest
floor says how much better anything could be.

**Space**: all ways to split output axes over at most the units of each stage, and all numbers of
trips; innermost tiles as small as that allows, or the next multiples of what fills the engine or of
8 to 64 (`ROUNDINGS`), tiles around multiples of those inside; operands with two copies or one;
output loops in orders that keep one operand's own axes outermost.

Source: our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod

import numpy as np
import numpy.typing as npt

from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.tiling.nest.box_floor import BoxFloor
from worker.compiler.tiling.nest.box_tables import TRIPS, WAYS, Floats, Ints
from worker.compiler.tiling.nest.facts import Facts, granules
from worker.compiler.tiling.nest.levels import Sizes, StageFrame, levels_of
from worker.compiler.tiling.nest.plan import Plan, Stage, is_placed
from worker.compiler.tiling.nest.price import Pricer
from worker.compiler.tiling.nest.search import (
    MOST_LEAVES,
    loop_orders,
    needed_units,
    ordered_plan,
    score,
)

Flags = npt.NDArray[np.bool_]

# What each of these is worth: `benchmarks.search_constants`, table in decision 0058.
MOST_BOXES = 1 << 15
"""Boxes of one layer on one chain of memories that are looked at."""
AT_ONCE = 1 << 7
"""Boxes that are cut in one go: a call of numpy takes about as long for fewer."""
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
    boxes: int
    """That were looked at."""
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
) -> tuple[Plan, Proof]:  # fmt: skip
    """The best plan of the space by the measure of `plan` (found in another way), or that where it
    is as good, and what is proven of it.  The layer is one that floors know (`is_bounded`).

    Cost: some microseconds for each of at most about `MOST_BOXES` boxes.
    """
    found = _Search(facts, engine, needed_units(facts, stages), machine, plan)
    proof = found.run()
    return found.best, proof


class _Search:
    def __init__(
        self, facts: Facts, engine: Engine, stages: tuple[Stage, ...], machine: Machine, plan: Plan
    ) -> None:
        self.best = plan
        self.score = score(plan, MOST_LEAVES)
        self.facts, self.stages = facts, stages
        self.frame = StageFrame(facts, stages)
        self.pricer = Pricer(facts, engine, stages, machine, plan.measure)
        self.floor = BoxFloor(self.frame, self.pricer, machine)
        self.names = list(facts.extents)
        self.extents = np.array(list(facts.extents.values()), np.int64)[:, None]
        self.grains = granules(facts, engine)
        self.orders = loop_orders(facts)
        self.tilings = 0

    def run(self) -> Proof:
        low, high = self._whole()
        floors = self.floor.of(low, high)
        deep = np.ones(1, np.bool_)
        boxes = 1
        while True:
            keep = floors * NEAR < self.score
            if not keep.all():
                low, high, floors, deep = low[..., keep], high[..., keep], floors[keep], deep[keep]
            if not len(floors) or boxes >= MOST_BOXES:
                break
            dived = _some(floors, deep, AT_ONCE // 2)
            places = np.concatenate([dived, _some(floors, ~deep, AT_ONCE - len(dived))])
            others = np.ones(len(floors), np.bool_)
            others[places] = False
            is_deep = np.zeros(len(places), np.bool_)
            is_deep[: len(dived) or len(places)] = True
            new_low, new_high = low[..., places], high[..., places]
            is_one = np.all(new_low == new_high, axis=(0, 1, 2))
            if is_one.any():
                self._price(new_low[..., is_one])
                new_low, new_high = new_low[..., ~is_one], new_high[..., ~is_one]
                is_deep = is_deep[~is_one]
            new_low, new_high, is_deep = self._cut(new_low, new_high, is_deep)
            boxes += len(is_deep)
            least = self.floor.of(new_low, new_high)
            near = least * NEAR < self.score
            deep[others] = False
            low, high, floors, deep = (
                np.concatenate([old[..., others], new[..., near]], axis=-1)
                for old, new in (
                    (low, new_low), (high, new_high), (floors, least), (deep, is_deep)
                )
            )  # fmt: skip
        left = float(min(floors, default=inf))
        return Proof(self.score, min(left, self.score / NEAR), boxes, self.tilings)

    def _whole(self) -> tuple[Ints, Ints]:
        """The box of everything."""
        facts, count = self.facts, len(self.stages)
        low = np.ones((2, count, len(self.names), 1), np.int64)
        high = low.copy()
        is_summed_inside = self._is_summed_inside()
        for k, (stage, stand) in enumerate(zip(self.stages, self.frame.stands, strict=True)):
            for i, name in enumerate(self.names):
                if name in facts.whole:
                    continue
                if name in stand.out_axes:
                    high[WAYS, k, i] = min(facts.extents[name], stage.units)
                is_inside = name in facts.reduce_axes and is_summed_inside
                if k == count - 1 or not is_inside:
                    high[TRIPS, k, i] = facts.extents[name]
        return low, high

    def _is_summed_inside(self) -> bool:
        """Whether no stage but the innermost loops over reductions (as in `search`)."""
        facts, stored = self.facts, self.facts.stored
        return bool(facts.epilogue) or (
            stored is not None
            and not all(is_placed(facts.base.get(stored.tensor, ""), s) for s in self.stages)
        )

    def _cut(self, low: Ints, high: Ints, deep: Flags) -> tuple[Ints, Ints, Flags]:
        """Two boxes of each, without what no tiling has; with the marks that they inherit."""
        shape = low.shape
        low, high = (a.reshape(prod(shape[:-1]), shape[-1]) for a in (low, high))
        widest = np.argmax(high / low, axis=0)
        column = np.arange(shape[-1])
        first, last = low[widest, column], high[widest, column]
        middle = np.minimum(np.sqrt(first * last).astype(np.int64), last - 1)
        below, above = high.copy(), low.copy()
        below[widest, column], above[widest, column] = middle, middle + 1
        low = np.concatenate([low, above], axis=-1).reshape(*shape[:-1], 2 * shape[-1])
        high = np.concatenate([below, high], axis=-1).reshape(*shape[:-1], 2 * shape[-1])
        some = self._tighten(low, high)
        return low[..., some], high[..., some], np.concatenate([deep, deep])[some]

    def _tighten(self, low: Ints, high: Ints) -> Flags:
        """As many units as there are, and no more parts of an axis than it has steps; which boxes
        still have something."""
        parts = np.ones_like(low[0, 0])
        for k, stage in enumerate(self.stages):
            used = np.prod(low[WAYS, k], axis=0)
            high[WAYS, k] = np.minimum(high[WAYS, k], stage.units * low[WAYS, k] // used)
            parts = parts * low[WAYS, k]
            high[TRIPS, k] = np.minimum(high[TRIPS, k], -(-self.extents // parts))
            parts = parts * low[TRIPS, k]
        if len(self.stages) == 1:
            for i, name in enumerate(self.names):
                if name in self.facts.single:
                    least = -(-self.extents[i] // high[WAYS, 0, i])
                    low[TRIPS, 0, i] = np.maximum(low[TRIPS, 0, i], least)
        return np.asarray(np.all(low <= high, axis=(0, 1, 2)))

    def _price(self, numbers: Ints) -> None:
        """Price tilings of so many ways and trips [2, stages, axes, tilings]."""
        last = -(-self.extents // np.prod(numbers, axis=(0, 1)))
        is_real: Flags = np.ones(numbers.shape[-1], np.bool_)
        for i, name in enumerate(self.names):
            if name in self.facts.whole:
                last[i] = self.extents[i]
            elif name in self.facts.single:
                is_real &= last[i] == 1
            is_real &= self._is_real(i, last[i], numbers)
        last, numbers = last[:, is_real], numbers[..., is_real]
        sizes, places = [last], [np.arange(last.shape[-1])]
        for rounding in ROUNDINGS:
            up = self._rounded(last, numbers, rounding)
            is_new = np.all([np.any(known != up, axis=0) for known in sizes], axis=0)
            sizes.append(up)
            places.append(np.flatnonzero(is_new))
        tiles = np.concatenate([t[:, p] for t, p in zip(sizes, places, strict=True)], axis=-1)
        which = np.concatenate(places)
        floors = self.floor.of_tilings(np.ascontiguousarray(numbers[..., which]), tiles)
        for place in np.argsort(floors, kind="stable").tolist():
            if not floors[place] * NEAR < self.score:
                break
            for double in (True, False):
                self._exactly(tiles[:, place], numbers[..., which[place]], double=double)

    def _is_real(self, i: int, last: Ints, numbers: Ints) -> Flags:
        """Whether tiles of an axis leave just as many ways and trips [tilings]."""
        name, extent = self.names[i], self.extents[i]
        ways, trips = numbers[WAYS, :, i], numbers[TRIPS, :, i]
        inside = last * np.prod(ways[1:] * trips[1:], axis=0)
        count = -(-extent // inside)
        found = (-(-count // ways[0]) == trips[0]) & (-(-count // trips[0]) == ways[0])
        if name in self.facts.exact:
            found = found & (inside * ways[0] * trips[0] == extent)
        return np.asarray(found)

    def _rounded(self, last: Ints, numbers: Ints, rounding: int) -> Ints:
        """Tiles that are multiples of a number, or of what fills the engine (0), where that leaves
        as many of them."""
        found = last.copy()
        for i, name in enumerate(self.names):
            unit = rounding or self.grains[name]
            if unit > 1 and name not in self.facts.whole | self.facts.single:
                up = np.minimum(-(-last[i] // unit) * unit, self.extents[i])
                found[i] = np.where(self._is_real(i, up, numbers), up, last[i])
        return found

    def _exactly(self, tiles: Ints, numbers: Ints, *, double: bool) -> None:
        """Price one tiling, and keep it where it is the best."""
        sized: list[Mapping[str, int]] = []
        ways: list[Mapping[str, int]] = []
        for k in range(len(self.stages)):
            sizes = (tiles * np.prod(numbers[:, k + 1 :], axis=(0, 1))).tolist()
            sized.append(dict(zip(self.names, sizes, strict=True)))
            each = zip(self.names, numbers[WAYS, k].tolist(), strict=True)
            ways.append({name: number for name, number in each if number > 1})
        for name, below in self.facts.below.items():
            for tile in sized:
                if tile[name] > 1 and any(tile[n] < self.facts.extents[n] for n in below):
                    return
        levels = levels_of(self.frame, Sizes(tuple(sized), double, tuple(ways)))
        if levels is None:
            return
        self.tilings += 1
        plan = ordered_plan(self.pricer, levels, self.orders, MOST_LEAVES)
        if score(plan, MOST_LEAVES) < self.score:
            self.best, self.score = plan, score(plan, MOST_LEAVES)


def _some(floors: Floats, among: Flags, number: int) -> npt.NDArray[np.intp]:
    """Places of the `number` lowest of some floors, ascending; of equal ones the first.

    `argpartition` leaves equals in an order that depends on the processor's vectors, and with it
    which of them are among the lowest.
    Cost: linear.
    """
    places = np.flatnonzero(among)
    costs = floors[places]
    edge = np.partition(costs, number - 1)[number - 1] if number < len(costs) else inf
    below = np.flatnonzero(costs < edge)
    found = np.concatenate([below, np.flatnonzero(costs == edge)[: number - len(below)]])
    return np.asarray(places[found[np.argsort(costs[found], kind="stable")]])
