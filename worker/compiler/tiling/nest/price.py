"""What tilings of one layer are predicted to cost.

The slowest of computing, filling a level, draining it and both on a port that they share counts,
plus what nothing hides: the first fill in front of computing, a last step of computing behind the
last fill, the last drain.  Bandwidth of a shared source is divided by its busy
readers; home behind a cache has one for all units that fetch the same, and what is multicast one
for those that it reaches.  Where a buffer has one copy its unit waits for every fill, but others
compute meanwhile: what a unit does one after the other takes the rate of one that asks alone, what
a port does that of all.  Ports serve who asked first, so of several fills of a step all but the
last wait for those of all units; and units that one transfer serves wait for each other.

Tens of thousands of tilings of one layer are priced on the same stages, in several orders of loops
each.  What tiles do not change is written into tables once per layer (`price_tables`); then one
loop (`price_loop`) goes over as many tilings as are asked for at once.  Only what an engine takes
for a tile is worked out here, once for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from worker.compiler.cost.compute import pace_of
from worker.compiler.cost.feeds import feeds_of
from worker.compiler.jit import loop_for
from worker.compiler.machine.bursts import burst_units
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.tiling.boxes import reach
from worker.compiler.tiling.nest.arrays import WAYS, Flags, Floats, Ints, long_axes
from worker.compiler.tiling.nest.facts import Facts
from worker.compiler.tiling.nest.levels import StageFrame
from worker.compiler.tiling.nest.measure import LATENCY, Measure
from worker.compiler.tiling.nest.plan import LevelPlan, Stage, Team
from worker.compiler.tiling.nest.ports import ports_of
from worker.compiler.tiling.nest.price_loop import prices
from worker.compiler.tiling.nest.price_tables import (
    PriceLayer,
    PriceScratch,
    PriceTables,
    PriceTabulated,
    scratch_of,
)
from worker.compiler.tiling.nest.shared_memory import SharedMemory

_STEPS = 600
"""What one tiling takes, in steps of a usual loop (`jit.INTERPRETED_STEPS`)."""
Orders = Sequence[Sequence[Sequence[str]]]
"""Of each order, for every stage, axes with the outermost first."""


class Tilings(NamedTuple):
    """Tilings of one layer, as its pricer takes them: axes are its `names`."""

    numbers: Ints
    """Ways and trips [tilings, ways or trips, stages, axes]."""
    tiles: Ints
    """[tilings, stages, axes]"""
    double: Flags
    """[tilings]: with two copies of operands where that may help."""


class Prices(NamedTuple):
    """What tilings cost with the best order of their loops [tilings]."""

    rank: Floats
    """By the measure, more where there are too many leaves; inf: a buffer does not fit."""
    order: Ints
    """Place among those that were asked for."""
    cycles: Floats
    leaves: Floats
    """That are executed."""
    charge: Floats
    """By the measure, for what moves."""


class Pricer:
    """Prices tilings of one layer on given stages.

    Cost: tables once, linear in operands and axes; some microseconds a tiling, and up to a
    millisecond for each innermost tile that was not asked for before.
    """

    def __init__(
        self, facts: Facts, engine: Engine, stages: Sequence[Stage], machine: Machine,
        measure: Measure = LATENCY,
    ) -> None:  # fmt: skip
        self.facts = facts
        self.engine = engine
        self.measure = measure
        self.names = long_axes(facts)
        """Axes of tilings."""
        stays = facts.registers is not None
        self.feeds = feeds_of(facts.op, engine, facts.tensors, stays=stays, held=facts.held)
        self.pace = pace_of(facts.op, engine, facts.tensors, stays=stays, held=facts.held)
        self.after = [
            (step, pace_of(step.op, step.engine, facts.tensors, held=facts.held))
            for step in facts.epilogue
        ]
        team = stages[-1].team
        self._shared = [
            (SharedMemory.of(engine, machine, team), self.feeds),
            *((SharedMemory.of(step.engine, machine, team),
               feeds_of(step.op, step.engine, facts.tensors, held=facts.held))
              for step in facts.epilogue),
        ]  # fmt: skip
        self.at_home = home_cycles(facts, machine, team)
        self.ports = ports_of(facts, stages, machine, measure)
        """How operands come to each stage, and results leave it."""
        self._stages, self._machine = tuple(stages), machine
        self._ones = dict.fromkeys(facts.extents, 1)
        self._worked: dict[tuple[int, ...], tuple[float, ...]] = {}
        """By innermost tile."""
        self._tabulated: tuple[PriceTabulated, PriceTables, PriceLayer, PriceScratch] | None = None
        self._orders: dict[tuple[tuple[str, ...], ...], Ints] = {}

    def tilings(self, written: Sequence[Sequence[LevelPlan]]) -> Tilings:
        """Tilings that were written out, as this takes them."""
        names = self.names
        numbers = [
            [[[plan.splits.get(n, 1) for n in names] for plan in levels],
             [[plan.trips[n] for n in names] for plan in levels]]
            for levels in written
        ]  # fmt: skip
        tiles = [[[plan.tile[n] for n in names] for plan in levels] for levels in written]
        double = [any(c > 1 for plan in levels for c in plan.copies.values()) for levels in written]
        return Tilings(np.array(numbers, np.int64), np.array(tiles, np.int64), np.array(double))

    def best(self, tilings: Tilings, orders: Sequence[tuple[str, ...]], most: int) -> Prices:
        """Prices with the best of some orders of output loops, the first of equals, with reductions
        inside.  `most`: leaves, as of `search.score`."""
        key = tuple(orders)
        if key not in self._orders:
            inside = self.facts.reduce_axes
            every = [[(*order, *inside)] * len(self._stages) for order in orders]
            self._orders[key] = self._places(every)
        return self._run(tilings, self._orders[key], most)

    def ordered(self, levels: Sequence[LevelPlan], most: int) -> Prices:
        """The price of one tiling with its loops as they stand."""
        orders = self._places([[level.order for level in levels]])
        return self._run(self.tilings([levels]), orders, most)

    def _places(self, orders: Orders) -> Ints:
        """[orders, stages, axes]: axes by place; those that an order leaves out have no loops."""
        found = [
            [[self.names.index(n) for n in dict.fromkeys((*order, *self.names)) if n in self.names]
             for order in by_stage]
            for by_stage in orders
        ]  # fmt: skip
        return np.array(found, np.int64)

    def _run(self, tilings: Tilings, orders: Ints, most: int) -> Prices:
        if self._tabulated is None:
            self._tabulated = self._tables()
        found, tables, layer, scratch = self._tabulated
        numbers, tiles, double = tilings
        if (tables.moves[:, 7] > 1).any():
            room = int(numbers[:, WAYS].prod(axis=2).max(initial=1))
            if room > len(scratch.stamps):
                scratch = scratch._replace(stamps=np.zeros(room, np.int64))
                self._tabulated = found, tables, layer, scratch
        work = np.array([self._work(row) for row in map(tuple, tiles[:, -1].tolist())], np.float64)
        odd = np.zeros((len(tiles), len(self._stages), len(found.odd), 2), np.int64)
        if found.odd:
            self._look_up(found, tiles, odd)
        out = np.empty((len(tiles), 5))
        loop = loop_for(prices, _STEPS * len(tiles))
        loop(numbers, tiles, double, odd, work, orders, float(most), out, tables, layer, scratch)
        return Prices(out[:, 0], out[:, 1].astype(np.int64), out[:, 2], out[:, 3], out[:, 4])

    def _tables(self) -> tuple[PriceTabulated, PriceTables, PriceLayer, PriceScratch]:
        facts, frame = self.facts, StageFrame(self.facts, self._stages)
        engines = [self.engine.name, *(step.engine.name for step, _ in self.after)]
        shared = [memory for memory, _ in self._shared]
        found = PriceTabulated(frame, self.ports, engines, shared, self.names)
        home_burst, cache_burst = burst_units(self._machine)
        layer = PriceLayer(
            home_burst=home_burst, cache_burst=cache_burst, align=self._machine.home.align_bytes,
            result=found.result, result_held=found.result_held, max_strips=facts.max_strips,
            is_alone=facts.is_alone, overlaps=self._stages[-1].team.overlaps,
            is_fed=bool(self.measure.feeds), at_home=float(self.at_home),
            per_cycle=float(self.measure.per_cycle),
        )  # fmt: skip
        return found, found.tables, layer, scratch_of(found.tables)

    def _look_up(self, found: PriceTabulated, tiles: Ints, odd: Ints) -> None:
        """Widths and pitches of what is no sum of axes."""
        for n, stages in enumerate(tiles.tolist()):
            for k, sizes in enumerate(stages):
                tile = {**self._ones, **dict(zip(self.names, sizes, strict=True))}
                for q, (operand, d) in enumerate(found.odd):
                    known = reach(operand.index[d], tile, self.facts.extents)
                    odd[n, k, q] = known.width, gcd(known.step, known.phase)

    def _work(self, row: tuple[int, ...]) -> tuple[float, ...]:
        """Of an innermost tile: cycles of an instruction of every operator; what engines are
        charged for what they draw and return in one of the first; cycles that one of each takes of
        ports that transfers pass as well."""
        found = self._worked.get(row)
        if found is None:
            tile = {**self._ones, **dict(zip(self.names, row, strict=True))}
            boxes = [tuple(tile.values())]
            if self.after:
                assert self.facts.out is not None
                # All results of the group have the same box.
                widths = list(self.facts.out.widths(tile, self.facts.extents))
                dim, number = self.facts.strips(tile)
                if widths:
                    widths[dim] //= number
                boxes += [
                    tuple(1 if d is None else widths[d] for d in step.dim_of_axis)
                    for step, _ in self.after
                ]
            cycles: list[int] = []
            taken: list[int] = []
            paces = [self.pace, *(pace for _, pace in self.after)]
            for box, pace, (memory, feeds) in zip(boxes, paces, self._shared, strict=True):
                *ports, least = (0, 0, 0) if memory is None else memory.taken(feeds.of(box))
                cycles.append(max(pace.cycles(box), least))
                taken += ports
            fed = self._fed(boxes[0]) if self.measure.feeds else 0.0
            found = self._worked[row] = (*cycles, fed, *taken)
        return found

    def _fed(self, box: tuple[int, ...]) -> float:
        memory, charged = self.engine.memory, self.measure.feeds
        drawn, returned = self.feeds.of(box)
        # What cells take for each multiply-accumulate, no tiling changes.
        lines = self.feeds.inside(box) - self.feeds.per_mac * prod(box)
        bus = self.engine.bus_energy_pj_per_byte * lines
        return drawn * charged[memory, "read"] + returned * charged[memory, "write"] + bus


def home_cycles(facts: Facts, machine: Machine, team: Team) -> float:
    """Time of operands read or written in place at home: every point touches one element."""
    sizes = [facts.tensors[facts.op.reads[k].tensor].dtype.size_bytes for k in facts.at_home]
    if facts.out is None:
        sizes.append(facts.tensors[facts.op.write.tensor].dtype.size_bytes)
    return facts.op.num_points * sum(sizes) * team.copies / machine.home.read_bytes_per_cycle
