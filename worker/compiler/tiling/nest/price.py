"""What a tiling of one layer is predicted to cost.

Per level the slowest of computing, filling, draining and both on a port that they share counts,
plus the first fill and the last drain, which nothing hides.  Bandwidth of a shared source is
divided by its busy readers; home behind a cache has one for all units that fetch the same, and what
is multicast one for those that it reaches.

Tens of thousands of tilings of one layer are priced on the same stages, in several orders of loops
each.  What tiles do not change is worked out once per layer (`Pricer`), what orders do not change
once per tiling (`Price`): an order only says how often each operand is filled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from worker.compiler.cost.compute import EngineRate, pace_of
from worker.compiler.cost.feeds import Feeds, feeds_of
from worker.compiler.machine.bursts import Sizes, burst_units, sizes_of_tile
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.tiling.nest.facts import Facts, Operand, Pointwise
from worker.compiler.tiling.nest.measure import LATENCY, Measure
from worker.compiler.tiling.nest.plan import (
    LevelPlan,
    Stage,
    Team,
    comes_early,
    memory_of,
    source_of,
)
from worker.compiler.tiling.nest.route import Route, Turns


@dataclass(frozen=True, slots=True)
class _Way:
    """How an operand comes to a stage."""

    operand: Operand
    source: int
    """Number of the memory it comes from among those the stage is filled from."""
    is_early: bool
    route: Route


@dataclass(frozen=True, slots=True)
class _Port:
    """What moves at a stage."""

    fills: tuple[_Way, ...]
    num_sources: int
    drain: tuple[Operand, Route] | None
    """(result, way); None: it stays."""


class _Fill(NamedTuple):
    """One operand's fills in one tiling."""

    axes: frozenset[str]
    source: int
    size_bytes: int
    rate: float
    latency_cycles: int
    is_early: bool
    is_double: bool
    turns: Turns
    """Of one."""
    charge: float
    """Of one, to all units."""


class _Moves(NamedTuple):
    """What one level of one tiling moves, whatever the order of loops."""

    fills: tuple[_Fill, ...]
    num_sources: int
    drain: float
    last: float
    """Cycles of the last drain, which nothing hides."""
    drain_turns: Turns
    """Of all drains."""
    drain_charge: float
    is_double: bool
    is_alone: bool
    """Whether the next result waits for the drain of the one before: it has no second copy."""
    entries: int
    busy_units: int
    """Units that are busy outside of this level times those it uses."""
    out_trips: int
    trips: Mapping[str, int]


class Price:
    """One tiling's cycles, as far as they do not depend on the order of loops."""

    __slots__ = ("at_home", "compute", "fed", "leaves", "moves")

    def __init__(
        self, moves: Sequence[_Moves], compute: float, at_home: float, leaves: int, fed: float
    ) -> None:
        self.moves = moves
        self.compute = compute
        self.at_home = at_home
        self.leaves = leaves
        self.fed = fed
        """What engines are charged for what they draw and return."""

    def of(self, orders: Sequence[Sequence[str]]) -> tuple[int, int, float]:
        """(cycles, executed leaves, charge) with the loops of every level in the order given."""
        slowest = exposed = waiting = 0.0
        charge = self.fed
        leaves = 0
        turns: dict[int, float] = {}
        for level, order in zip(self.moves, orders, strict=True):
            fill, waits, moves, early, charged = _filled(level, order, turns)
            entries, drain = level.entries, level.drain
            charge += entries * (charged + level.drain_charge)
            if level.is_double:
                slowest = max(slowest, entries * fill)
                waiting += entries * (fill + waits)
                if level.is_alone:
                    exposed += entries * drain - level.last
                else:
                    slowest = max(slowest, entries * drain)
            else:
                slowest = max(slowest, entries * early)
                exposed += entries * (fill - early + waits + drain)
            exposed += level.last
            leaves += entries * level.busy_units * (moves + level.out_trips)
        # Two copies: while one is computed on the other is on its way, so a pair of steps takes at
        # least one load with its latency and one computation.
        paired = (waiting + self.compute) / 2
        longest = max(slowest, self.compute, self.at_home, paired)
        # The last drain is among what a port of both directions takes one by one.
        cycles = int(max(longest + exposed, max(turns.values(), default=0.0)))
        return cycles, leaves + self.leaves, charge


def _filled(
    level: _Moves, order: Sequence[str], turns: dict[int, float]
) -> tuple[float, float, int, float, float]:
    """(cycles of all fills, exposed cycles, moves, cycles of fills that may start early, charge).

    Adds to `turns`, by memory, what fills and drains take of ports that serve both directions.
    """
    trips = level.trips
    for memory, cycles in level.drain_turns:
        turns[memory] = turns.get(memory, 0.0) + level.entries * cycles
    busy = [0.0] * level.num_sources
    first = early = charge = 0.0
    waits = moves = 0
    for axes, source, size, rate, latency, is_early, is_double, taken, charged in level.fills:
        # Its Place stands inside the loops up to the last that its box depends on.
        loads = running = 1
        for name in order:
            running *= trips[name]
            if name in axes:
                loads = running
        one = loads * size / rate
        busy[source] += one
        if is_early and (loads == 1 or is_double):
            early += one
        else:
            first += latency + size / rate
        moves += loads
        charge += loads * charged
        for memory, cycles in taken:
            turns[memory] = turns.get(memory, 0.0) + level.entries * loads * cycles
        waits = max(waits, loads * latency)
    # Loads of different operands are in flight together: a step waits for the latency once.
    # One engine brings them all, so sources do not add their rates up.
    return sum(busy), first + waits, moves, early, charge


class Pricer:
    """Prices tilings of one layer on given stages.  Cost of one: linear in operands and axes."""

    def __init__(
        self, facts: Facts, engine: Engine, stages: Sequence[Stage], machine: Machine,
        measure: Measure = LATENCY,
    ) -> None:  # fmt: skip
        self.facts = facts
        self.engine = engine
        self.measure = measure
        stays = facts.registers is not None
        self.feeds = (
            feeds_of(facts.op, engine, facts.tensors, stays=stays) if measure.feeds else None
        )
        self.pace = pace_of(facts.op, engine, facts.tensors, stays=stays)
        self.after = [
            (step, pace_of(step.op, step.engine, facts.tensors)) for step in facts.epilogue
        ]
        self._axes = tuple(axis.name for axis in facts.op.domain)
        self._machine, self._units = machine, burst_units(machine)
        self._in_bursts: dict[tuple[str, int, tuple[int, ...]], Sizes] = {}
        self.at_home = home_cycles(facts, machine, stages[-1].team)
        self.ports = [self._port(stages, k, machine) for k in range(len(stages))]
        """How operands come to each stage, and results leave it."""

    def _port(self, stages: Sequence[Stage], k: int, machine: Machine) -> _Port:
        facts, stage, home = self.facts, stages[k], machine.home.name
        memory = stage.level.name
        routes: dict[str, Route] = {}
        fills: list[_Way] = []
        for operand in facts.fetched:
            source = source_of(facts, operand.tensor, stages, k, home)
            if source not in routes:
                routes[source] = Route.between(machine, source, memory, stage.team, self.measure)
            fills.append(
                _Way(
                    operand, list(routes).index(source),
                    comes_early(facts, operand.tensor, stages, k, machine), routes[source],
                )
            )  # fmt: skip
        drain = None
        if facts.stored is not None:
            name = facts.stored.tensor
            target = source_of(facts, name, stages, k, home)
            near = memory_of(facts, facts.stored, stage, is_last=k == len(stages) - 1)
            if target != near:
                route = Route.between(machine, near, target, stage.team, self.measure)
                stored = facts.stored
                if target == home:  # sums are rounded on their way
                    stored = replace(stored, dtype=facts.tensors[name].dtype)
                drain = stored, route
        return _Port(tuple(fills), len(routes), drain)

    def price(self, levels: Sequence[LevelPlan]) -> Price:
        """The price of one tiling."""
        entries, busy, results, found = 1, 1, 1, []
        strips = self.facts.strips(levels[-1].tile)
        for k, plan in enumerate(levels):
            moves = self._moves(k, plan, entries, busy)
            found.append(moves)
            results = entries * moves.out_trips * strips[1]
            entries *= prod(plan.trips[name] for name in plan.order)
            busy = moves.busy_units
        innermost = levels[-1]
        tile = innermost.tile
        compute: float = entries * self.pace.cycles(tuple(tile[name] for name in self._axes))
        leaves = entries * busy
        if self.after:
            compute = self._fused_cycles(compute, results, innermost, strips)
            leaves += results * busy * len(self.after)
        fed = 0.0
        if self.feeds is not None:
            fed = entries * busy * self._fed(self.feeds, tuple(tile[name] for name in self._axes))
        return Price(found, compute, self.at_home, leaves, fed)

    def _fed(self, feeds: Feeds, box: tuple[int, ...]) -> float:
        """What an instruction is charged for what its engine draws and returns."""
        memory, prices = self.engine.memory, self.measure.feeds
        drawn, returned = feeds.of(box)
        return drawn * prices[memory, "read"] + returned * prices[memory, "write"]

    def _moves(self, k: int, plan: LevelPlan, entries: int, busy: int) -> _Moves:
        """What stage `k` moves, begun so many times by so many units outside of it."""
        port = self.ports[k]
        used = busy * plan.units_used
        out_trips = prod(plan.trips[name] for name in plan.order[: plan.num_out_loops])
        drain = last = drain_charge = 0.0
        drain_turns: Turns = ()
        if port.drain is not None and port.drain[0].tensor in plan.elems:
            operand, route = port.drain
            sizes = self._sizes(operand, plan, route)
            last = route.latency_cycles + sizes.payload / route.rate(sizes, used, used)
            drain = out_trips * last
            drain_turns = route.turns(sizes, out_trips, used, used)
            drain_charge = out_trips * route.charge(sizes, used, used)
        fills = tuple(
            self._fill(way, plan, used) for way in port.fills if way.operand.tensor in plan.elems
        )
        is_double = any(c > 1 for c in plan.copies.values())
        is_alone = self.facts.is_alone and k == len(self.ports) - 1 and out_trips > 1
        return _Moves(
            fills, port.num_sources, drain, last, drain_turns, drain_charge, is_double, is_alone,
            entries, used, out_trips, plan.trips,
        )  # fmt: skip

    def _fill(self, way: _Way, plan: LevelPlan, used: int) -> _Fill:
        """What a tile takes to come, on its way to each of `used` units."""
        operand, route = way.operand, way.route
        sizes = self._sizes(operand, plan, route)
        reads = route.reads(used // plan.units_used, plan.splits, operand.axes)
        return _Fill(
            operand.axes, way.source, sizes.payload, route.rate(sizes, used, reads),
            route.latency_cycles, way.is_early, plan.copies[operand.tensor] > 1,
            route.turns(sizes, 1, used, reads), route.charge(sizes, used, reads),
        )  # fmt: skip

    def _sizes(self, operand: Operand, plan: LevelPlan, route: Route) -> Sizes:
        """Bytes of a tile of an operand on a way."""
        payload = plan.elems[operand.tensor] * operand.dtype.size_bytes
        if self._units == (1, 1) or not route.is_at_home:
            return Sizes(payload, payload, payload)
        tile, extents = plan.tile, self.facts.extents
        key = operand.tensor, payload, tuple([tile[name] for name in operand.axes])
        found = self._in_bursts.get(key)
        if found is None:
            found = self._in_bursts[key] = sizes_of_tile(
                payload, operand.widths(tile, extents), operand.shape, operand.dtype.size_bytes,
                operand.pitches(tile, extents), self._machine,
            )  # fmt: skip
        return found

    def _fused_cycles(
        self, anchor: float, results: int, plan: LevelPlan, strips: tuple[int, int]
    ) -> float:
        """Cycles of all engines of a core: side by side if the accumulators have a second copy."""
        facts = self.facts
        assert facts.out is not None
        busy = {self.engine.name: anchor}
        # All results of the group have the same box.
        widths = list(facts.out.widths(plan.tile, facts.extents))
        if widths:
            widths[strips[0]] //= strips[1]
        for step, pace in self.after:
            one = _step_cycles(step, pace, widths)
            busy[step.engine.name] = busy.get(step.engine.name, 0.0) + results * one
        if plan.copies[facts.out.tensor] > 1:
            return max(busy.values())
        return sum(busy.values())


def _step_cycles(step: Pointwise, pace: EngineRate, widths: Sequence[int]) -> int:
    return pace.cycles(tuple(1 if dim is None else widths[dim] for dim in step.dim_of_axis))


def home_cycles(facts: Facts, machine: Machine, team: Team) -> float:
    """Time of operands read or written in place at home: every point touches one element."""
    sizes = [facts.tensors[facts.op.reads[k].tensor].dtype.size_bytes for k in facts.at_home]
    if facts.out is None:
        sizes.append(facts.tensors[facts.op.write.tensor].dtype.size_bytes)
    return facts.op.num_points * sum(sizes) * team.copies / machine.home.read_bytes_per_cycle
