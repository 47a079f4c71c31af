"""Tiles from grids: all splits over the units at once, then finer tiles beside the best.

Growing tiles (`search`) ends where no axis grows by itself, and takes the split over cores that
follows from its tiles: a product of 4096 on a100 read seven times the bytes that it needs.  Here
splits over the units, tiles of an outer stage and those of the innermost are priced as grids
(`estimate`), coarse ones of all splits, then finer ones beside the cheapest.  The exact price
(`price`) of the best few decides.  Of sizes that leave as many iterations one stands for all; what
lies between the sizes of a grid is not looked at, so nothing is proven.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.tiling.factors import divisors
from worker.compiler.tiling.nest.estimate import (
    MOST_LEAVES,
    Around,
    Contexts,
    Estimate,
    is_estimated,
)
from worker.compiler.tiling.nest.facts import Facts, granules
from worker.compiler.tiling.nest.grid_boxes import (
    Flags,
    Floats,
    Ints,
    all_of,
    least_cycles,
    tile_elems,
)
from worker.compiler.tiling.nest.levels import Sizes, StageFrame, levels_of
from worker.compiler.tiling.nest.plan import Plan, Stage, is_placed
from worker.compiler.tiling.nest.price import Pricer
from worker.compiler.tiling.nest.search import loop_orders, needed_units, ordered_plan, score
from worker.compiler.tiling.nest.unit_splits import splits

# What each of these is worth: `benchmarks.grid_constants`, tables in decisions 0053 and 0057.
MOST_SPLITS = 128
"""Splits that are looked at, those first that could be cheapest."""
OUTER, COARSE, FINE = 1 << 12, 1 << 15, 1 << 11
"""Tilings of one grid: of an outer stage, all splits' innermost one, beside the best."""
SHORT = 8
"""Axes that are no longer are cut in fine grids only, unless nothing fits: taps of windows."""
LONG_CYCLES, LONG_FACTOR = 1 << 20, 2
"""Grids of layers that take longer have so many times as many."""
MOST_AROUND = 48
"""Tiles of an outer stage, with their splits, that are looked into."""
BEST = 4
"""Splits, and tiles around, whose tiles are looked at closely."""
NEAR = 1.05
"""Nothing is looked for that can bring no more than this."""
HOPE = 1.25
"""Finer tiles are looked at where the coarse ones cost at most so much more than the cheapest."""
PRICED = 8
"""Tilings of one grid that are priced."""
RATIOS = (1.1, 1.2, 1.35, 1.5, 2.0, 3.0, 4.0, 8.0, 64.0, inf)
"""Of neighbouring sizes of one axis, from fine to coarse; at last only the ends are left."""

Ways: TypeAlias = "tuple[Mapping[str, int], ...]"
"""Of every stage."""
Tiled: TypeAlias = "tuple[Mapping[str, int], ...]"
"""Tiles of the stages outside of the innermost."""
_Number = TypeVar("_Number", bound=np.generic)


def search_grids(
    facts: Facts, engine: Engine, stages: tuple[Stage, ...], machine: Machine, plan: Plan,
    *, may_idle: bool = True,
) -> Plan:  # fmt: skip
    """The best plan of the space by the measure of `plan` (found in another way), or that where it
    is as good.  `may_idle`: tiles may be larger than a unit's share, so that units get none.

    Without a reduction it is `plan`: nothing is brought more than once then, so tiles that grow
    are good ones.
    Cost: a few hundred array operations over `COARSE` and `FINE` tilings, for each stage.
    """
    if not stages or not facts.reduce_axes or not is_estimated(facts):
        return plan
    needed = needed_units(facts, stages)
    search = _Search(plan, facts, engine, needed, machine, may_idle=may_idle)
    search.run()
    return search.best


class _Search:
    def __init__(
        self, plan: Plan, facts: Facts, engine: Engine, stages: tuple[Stage, ...],
        machine: Machine, *, may_idle: bool,
    ) -> None:  # fmt: skip
        self.may_idle = may_idle
        self.best = plan
        self.score = score(plan, MOST_LEAVES)
        self.facts = facts
        self.stages = stages
        self.machine = machine
        self.orders = loop_orders(facts)
        self.frame = StageFrame(facts, stages)
        self.pricer = Pricer(facts, engine, stages, machine, plan.measure)
        self.grains = granules(facts, engine)
        self.names = list(facts.extents)
        self.shape = [1] * len(self.names)
        self.outer = Estimate(self.frame, 0, self.pricer, machine)
        self.last = Estimate(self.frame, len(stages) - 1, self.pricer, machine)
        self.summed_inside = self._summed_inside()
        self.factor = LONG_FACTOR if plan.predicted_cycles > LONG_CYCLES else 1

    def run(self) -> None:
        ways, least = self._ranked()
        keep = [k for k, cost in enumerate(least) if cost * NEAR < self.score][:MOST_SPLITS]
        if not keep:
            return
        ways = [ways[k] for k in keep]
        if len(self.stages) == 1:
            self._look(self._first(ways), ways, [()] * len(ways), (True, False))
            return
        for double in (True, False):
            contexts, which = self._around(ways, double=double)
            if which:
                outer: list[Tiled] = [
                    ({n: int(size.ravel()[j]) for n, size in contexts.outer.items()},)
                    for j in range(len(which))
                ]
                self._look(contexts, [ways[k] for k in which], outer, (double,))

    def _around(self, ways: Sequence[Ways], *, double: bool) -> tuple[Contexts, list[int]]:
        """Tiles of the outer stage that may be the cheapest to bring, and the split of each."""
        first = self._first(ways)
        inner = {n: self._column([w[1].get(n, 1) for w in ways]) for n in self.names}
        for short in (SHORT, 0):
            counts, _ = self._coarse(first, OUTER * self.factor, 0, short)
            tiles, valid = self._tiles(first, counts, 0, inner)
            inside, least = self.outer.inside(first, tiles, double=double)
            shape = (len(ways), *(len(counts[n]) for n in self.names))
            flat = np.broadcast_to(np.where(valid, least, np.inf), shape).ravel()
            if np.isfinite(flat).any():
                break
        places = lowest(flat, MOST_AROUND // 2)
        places = places[flat[places] < self.score]
        which = [int(k) for k in np.unravel_index(places, shape)[0]]
        found = self._picked(inside, shape, places.tolist())
        return replace(found, ways={n: size[which] for n, size in inner.items()}), which

    def _picked(self, contexts: Contexts, shape: Sequence[int], places: Sequence[int]) -> Contexts:
        """Some of the elements of arrays that broadcast to a shape, along the first dimension."""

        def pick(array: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
            found = np.broadcast_to(array, shape).ravel()[list(places)]
            return np.asarray(found.reshape([-1, *self.shape]))

        return Contexts(
            {n: pick(a) for n, a in contexts.outer.items()},
            {n: pick(a) for n, a in contexts.ways.items()},
            pick(contexts.entries), pick(contexts.units),
            tuple(
                Around(
                    a.order,
                    tuple((pick(p), pick(q), pick(r), pick(steps)) for p, q, r, steps in a.busy),
                    pick(a.serial), pick(a.stored), pick(a.first), pick(a.tail), pick(a.lag),
                    pick(a.waiting), pick(a.draining),
                    {memory: pick(cycles) for memory, cycles in a.turns.items()}, pick(a.leaves),
                    pick(a.charge),
                )
                for a in contexts.arounds
            ),
        )  # fmt: skip

    def _look(
        self, contexts: Contexts, ways: Sequence[Ways], outer: Sequence[Tiled],
        doubles: Sequence[bool],
    ) -> None:  # fmt: skip
        """Innermost tiles in all contexts, then those beside the best."""
        best: list[tuple[float, int, bool, dict[str, float], float]] = []
        for double in doubles:
            for short in (SHORT, 0):
                counts, ratio = self._coarse(
                    contexts, COARSE * self.factor, len(self.stages) - 1, short
                )
                cost = self._priced(contexts, ways, outer, counts, double=double)
                if np.isfinite(cost).any():
                    break
            each = cost.reshape(len(ways), -1)
            for k in np.argsort(each.min(axis=1), kind="stable")[:BEST].tolist():
                place = int(each[k].argmin())
                if np.isfinite(each[k, place]):
                    index = np.unravel_index(place, cost.shape[1:])
                    at = {n: counts[n][int(j)] for n, j in zip(self.names, index, strict=True)}
                    best.append((float(each[k, place]), k, double, at, ratio))
        best.sort(key=lambda entry: entry[:2])
        shape = [len(ways), *self.shape]
        for least, k, double, at, ratio in best[:BEST]:
            if least > HOPE * best[0][0]:
                break
            one = self._picked(contexts, shape, [k])
            counts = self._beside(one, at, ratio)
            for whole in (True, False):
                self._priced(one, [ways[k]], [outer[k]], counts, double=double, whole=whole)

    def _priced(
        self, contexts: Contexts, ways: Sequence[Ways], outer: Sequence[Tiled],
        counts: Mapping[str, Sequence[float]], *, double: bool, whole: bool = True,
    ) -> Floats:  # fmt: skip
        """What tilings cost; the cheapest of them are priced."""
        tiles, valid = self._tiles(contexts, counts, len(self.stages) - 1, None, whole=whole)
        shape = (len(ways), *(len(counts[n]) for n in self.names))
        cost = np.where(valid, self.last.of(contexts, tiles, double=double), np.inf)
        cost = np.broadcast_to(cost, shape)
        flat = cost.ravel()
        for place in lowest(flat, PRICED).tolist():
            if not flat[place] < self.score:
                break
            index = np.unravel_index(place, shape)
            tile = {n: int(np.broadcast_to(size, shape)[index]) for n, size in tiles.items()}
            k = int(index[0])
            levels = levels_of(self.frame, Sizes((*outer[k], tile), double, ways[k]))
            if levels is None:
                continue
            plan = ordered_plan(self.pricer, levels, self.orders, MOST_LEAVES)
            if score(plan, MOST_LEAVES) < self.score:
                self.best, self.score = plan, score(plan, MOST_LEAVES)
        return cost

    def _ranked(self) -> tuple[list[Ways], list[float]]:
        """Splits, and what they cost at least: computing a share, and bringing it once."""
        facts, home = self.facts, self.machine.home
        found: list[Ways] = []
        for first in splits(facts, facts.extents, self.stages[0].units):
            if len(self.stages) == 1:
                found.append((first,))
                continue
            left = {n: -(-e // first.get(n, 1)) for n, e in facts.extents.items()}
            found += [(first, second) for second in splits(facts, left, self.stages[1].units)]
        if not found:
            return [], []
        parts: dict[str, Ints] = {
            name: np.array([prod(w.get(name, 1) for w in each) for each in found], np.int64)
            for name in facts.extents
        }
        share = {name: -(-extent // parts[name]) for name, extent in facts.extents.items()}
        least = least_cycles(self.pricer.pace, [share[axis.name] for axis in facts.op.domain])
        moved: Floats = np.zeros(len(found))
        for operand in facts.fetched:
            if facts.base.get(operand.tensor, home.name) == home.name:
                apart = all_of(n for name, n in parts.items() if name in operand.axes)
                moved = moved + tile_elems(operand, share) * operand.dtype.size_bytes * apart
        rate = home.read_bytes_per_cycle * self.stages[-1].team.instances(home)
        measure = self.pricer.measure
        least = np.maximum(least, moved / rate)
        least = measure.cost(least, moved * measure.ports.get((home.name, "read"), 0.0))
        order = np.lexsort((moved, least))
        return [found[k] for k in order.tolist()], least[order].tolist()

    def _first(self, ways: Sequence[Ways]) -> Contexts:
        zero = np.zeros([1, *self.shape])
        none = np.zeros([1, *self.shape], np.int64)
        return Contexts(
            {n: none + e for n, e in self.facts.extents.items()},
            {n: self._column([w[0].get(n, 1) for w in ways]) for n in self.names},
            none + 1,
            none + 1,
            tuple(Around.nothing(order, zero) for order in self.orders),
        )

    def _column(self, numbers: Sequence[int]) -> Ints:
        return np.array(numbers, np.int64).reshape([-1, *self.shape])

    def _coarse(
        self, contexts: Contexts, most: int, k: int, short: int
    ) -> tuple[dict[str, list[float]], float]:
        """(numbers of tiles that parts are cut into, ratio of neighbours), all contexts together
        not more than `most`; parts no longer than `short` are not cut."""
        count = max(a.shape[0] for a in (*contexts.outer.values(), *contexts.ways.values()))
        part = {n: -(-contexts.outer[n] // contexts.ways[n]) for n in self.names}
        numbers = {n: self._numbers(n, contexts, k) for n in self.names}
        for name, found in numbers.items():
            if int(part[name].max()) <= short:
                numbers[name] = [number for number in found if number <= 1]
        for ratio in RATIOS:
            thinned = {n: _thinned(numbers[n], ratio) for n in self.names}
            if prod(map(len, thinned.values())) * count <= most:
                break
        return thinned, ratio

    def _beside(
        self, one: Contexts, at: Mapping[str, float], ratio: float
    ) -> dict[str, list[float]]:
        """The numbers between the neighbours of some, in one context."""
        found: dict[str, list[float]] = {}
        for name, number in at.items():
            near = self._numbers(name, one, len(self.stages) - 1)
            found[name] = [n for n in near if number / ratio <= n <= number * ratio] or [number]
        for finer in RATIOS:
            thinned = {n: _thinned(numbers, finer) for n, numbers in found.items()}
            if prod(map(len, thinned.values())) <= FINE * self.factor:
                break
        return {n: sorted({*numbers, at[n]}) for n, numbers in thinned.items()}

    def _numbers(self, name: str, contexts: Contexts, k: int) -> list[float]:
        """Numbers of tiles that matter, ascending; below 1: tiles of several parts, for which fewer
        units are used."""
        part = -(-contexts.outer[name] // contexts.ways[name])
        most = int(part.max())
        is_last = k == len(self.stages) - 1
        is_fixed = name in self.facts.whole or name in self.facts.single
        if is_fixed or (not is_last and name in self.summed_inside):
            return [1]
        if k or name in self.facts.exact:
            return sorted({d for size in set(part.ravel().tolist()) for d in divisors(size)})
        several = _apart(int(contexts.ways[name].max()) if self.may_idle else 1)
        cut = dict.fromkeys(-(-most // -(-most // n)) for n in _apart(most))
        return [*(1 / n for n in reversed(several[1:])), *cut]

    def _tiles(
        self, contexts: Contexts, counts: Mapping[str, Sequence[float]], k: int,
        inner: Mapping[str, Ints] | None, *, whole: bool = True,
    ) -> tuple[dict[str, Ints], Flags]:  # fmt: skip
        """Sizes of every axis along its dimension, and which of them may be.

        `inner`: ways of the next stage, of which sizes have to be multiples; `whole`: they also
        fill the engine.
        """
        facts = self.facts
        tiles: dict[str, Ints] = {}
        valid: Flags = np.ones((), np.bool_)
        for axis, name in enumerate(self.names):
            place = [1, *self.shape]
            place[axis + 1] = -1
            number, several = _whole_numbers(counts[name], place)
            part = -(-contexts.outer[name] // contexts.ways[name])
            is_equal = bool(k) or name in facts.exact
            unit = np.ones((), np.int64) if inner is None else inner[name]
            grain = self.grains[name]
            if name in facts.single:
                size = np.ones([1, *self.shape], np.int64)
            elif name in facts.whole:
                size = contexts.outer[name]
            elif is_equal:
                size = np.maximum(part // number, 1)
            else:
                size = np.minimum(-(-part // number) * several, contexts.outer[name])
                unit = unit * np.where(size >= unit * grain, grain, 1) if whole else unit
                size = np.minimum(
                    -(-size // unit) * unit,
                    -(-part * several // inner[name]) * inner[name]
                    if inner is not None
                    else np.minimum(part * several, contexts.outer[name]),
                )
            if is_equal:
                valid = valid & (contexts.outer[name] % (size * contexts.ways[name]) == 0)
                valid = valid & (size % unit == 0)
            tiles[name] = size
        for name, below in facts.below.items():
            for other in below:
                valid = valid & ((tiles[name] == 1) | (tiles[other] >= facts.extents[other]))
        return tiles, valid

    def _summed_inside(self) -> frozenset[str]:
        """Reductions that no stage but the innermost loops over (as in `search`)."""
        facts, stored = self.facts, self.facts.stored
        if facts.epilogue or (
            stored is not None
            and not all(is_placed(facts.base.get(stored.tensor, ""), s) for s in self.stages)
        ):
            return frozenset(facts.reduce_axes)
        return frozenset()


def lowest(costs: Floats, number: int) -> npt.NDArray[np.intp]:
    """Places of the `number` lowest of costs [n], ascending; of equal ones the first.

    `argpartition` leaves equals in an order that depends on the processor's vectors, and with it
    which of them are among the lowest.
    Cost: linear.
    """
    edge = np.partition(costs, number - 1)[number - 1] if number < len(costs) else inf
    below = np.flatnonzero(costs < edge)
    found = np.concatenate([below, np.flatnonzero(costs == edge)[: number - len(below)]])
    return found[np.argsort(costs[found], kind="stable")]


def _whole_numbers(numbers: Sequence[float], shape: Sequence[int]) -> tuple[Ints, Ints]:
    """(tiles in a part, parts in a tile) of each, one of them 1."""
    found = np.array(numbers, np.float64).reshape(shape)
    return (
        np.rint(np.maximum(found, 1)).astype(np.int64),
        np.rint(1 / np.minimum(found, 1)).astype(np.int64),
    )


def _thinned(numbers: Sequence[float], ratio: float) -> list[float]:
    """The first of ascending numbers, the last, and those between that are so far apart."""
    kept = [numbers[0]]
    for number in numbers[1:]:
        if number >= kept[-1] * ratio:
            kept.append(number)
    return kept if kept[-1] == numbers[-1] else [*kept, numbers[-1]]


def _apart(most: int) -> list[int]:
    """Numbers up to one, ever farther apart."""
    found, number = [], 1
    while number <= most:
        found.append(number)
        number = max(number + 1, int(number * 1.1))
    if found[-1] != most:
        found.append(most)
    return found
