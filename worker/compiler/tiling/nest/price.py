"""What a tiling of one layer is predicted to cost.

The slowest of computing, filling a level, draining it and both on a port that they share counts,
plus what nothing hides: the first fill in front of computing, a last step of computing behind the
last fill, the last drain.  Bandwidth of a shared source is divided by its busy
readers; home behind a cache has one for all units that fetch the same, and what is multicast one
for those that it reaches.  Where a buffer has one copy its unit waits for every fill, but others
compute meanwhile: what a unit does one after the other takes the rate of one that asks alone, what
a port does that of all.  Ports serve who asked first, so of several fills of a step all but the
last wait for those of all units; and units that one transfer serves wait for each other.

Tens of thousands of tilings of one layer are priced on the same stages, in several orders of loops
each.  What tiles do not change is worked out once per layer (`Pricer`), what orders do not change
once per tiling (`Price`): an order only says how often each operand is filled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import NamedTuple

from worker.compiler.cost.compute import pace_of
from worker.compiler.cost.feeds import Feeds, feeds_of
from worker.compiler.machine.bursts import Sizes, burst_units, sizes_of_tile
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.tiling.nest.facts import Facts, Operand
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
from worker.compiler.tiling.nest.shared_memory import SharedMemory


@dataclass(frozen=True, slots=True)
class _Way:
    """How an operand comes to a stage."""

    operand: Operand
    is_early: bool
    route: Route
    known: dict[tuple[object, ...], _Fill] = field(default_factory=dict, compare=False)
    """Of tiles that came before: most of a layer's tilings share each operand's with others."""


@dataclass(frozen=True, slots=True)
class _Port:
    """What moves at a stage."""

    fills: tuple[_Way, ...]
    carried: _Way | None
    """Sums that loops of an outer stage go on with."""
    drain: tuple[Operand, Route] | None
    """(result, way); None: it stays."""
    is_apart: bool
    """Whether units need not wait for each other: no transfer serves several."""


class _Fill(NamedTuple):
    """One operand's fills in one tiling."""

    axes: frozenset[str]
    cycles: float
    """Of one, while all units fill."""
    alone: float
    """Of one, while no other unit does."""
    arrival: float
    """From when the ports that all share are done with it until it is there."""
    latency_cycles: int
    is_early: bool
    is_double: bool
    is_carried: bool
    """Whether it brings back sums that were stored: what is stored last comes first."""
    turns: Turns
    """Of one."""
    charge: float
    """Of one, to all units."""


class _Moves(NamedTuple):
    """What one level of one tiling moves, whatever the order of loops."""

    fills: tuple[_Fill, ...]
    drain: float
    """Cycles of all drains without their latencies, while all units drain."""
    drain_alone: float
    """With them, while no other unit does."""
    last: float
    """Cycles of the last drain, which nothing hides."""
    drain_turns: Turns
    """Of all drains."""
    drain_charge: float
    is_double: bool
    is_alone: bool
    """Whether the next result waits for the drain of the one before: it has no second copy."""
    entries: int
    steps: int
    """Times that what is inside of it is begun."""
    busy_units: int
    """Units that are busy outside of this level times those it uses."""
    out_trips: int
    trips: Mapping[str, int]


class Price:
    """One tiling's cycles, as far as they do not depend on the order of loops."""

    __slots__ = ("at_home", "compute", "fed", "leaves", "moves", "overlaps", "turns")

    def __init__(
        self, moves: Sequence[_Moves], compute: float, at_home: float, leaves: int, fed: float,
        turns: Mapping[int, float], *, overlaps: bool,
    ) -> None:  # fmt: skip
        self.moves = moves
        self.overlaps = overlaps
        """Whether other layers fill what this one alone would wait for at its ends."""
        self.compute = compute
        self.at_home = at_home
        self.leaves = leaves
        self.fed = fed
        """What engines are charged for what they draw and return."""
        self.turns = turns
        """What engines take of ports that they share with transfers."""

    def of(self, orders: Sequence[Sequence[str]]) -> tuple[int, int, float]:
        """(cycles, executed leaves, charge) with the loops of every level in the order given."""
        charge, leaves = self.fed, self.leaves
        turns = dict(self.turns)
        fills: list[_Filled] = []
        for level, order in zip(self.moves, orders, strict=True):
            fill = _filled(level, order, turns)
            fills.append(fill)
            charge += level.entries * (fill.charge + level.drain_charge)
            leaves += level.entries * level.busy_units * (fill.moves + level.out_trips)
        turning = max(turns.values(), default=0.0)
        cycles = (self._among if self.overlaps else self._only)(fills, turning)
        return int(cycles), leaves, charge

    def _only(self, fills: Sequence[_Filled], turning: float) -> float:
        """Cycles of a layer that has its kernel for itself.  `turning`: of the busiest port that
        serves both directions."""
        serial = stored = first = tail = lag = waiting = draining = 0.0
        busy: list[tuple[float, float, float, int]] = []
        for level, fill in zip(self.moves, fills, strict=True):
            entries = level.entries
            if level.is_double:
                waiting += entries * (fill.cycles + fill.first + fill.waits)
                first += fill.first
            else:
                serial += entries * (fill.waited + fill.waits) + fill.skew
            if level.is_double and not level.is_alone and not fill.carried:
                draining += entries * level.drain_alone
            else:  # the last one is not among those that something waits for
                drains = (entries - 1 / level.out_trips) * level.drain_alone
                serial += drains + entries * fill.carried
                if level.is_double:
                    stored += drains + entries * fill.carried
            ports = entries * max(fill.cycles, level.drain)
            busy.append((ports, fill.arrival, serial, level.steps))
            tail += level.last
            lag += level.last - level.drain / level.out_trips
        # Two copies: while one is computed on the other is on its way, so a pair of steps takes at
        # least one load or store with its latency and one computation; a result without a second
        # copy is waited for in each.
        done = self.compute + serial
        paired = (max(waiting, draining) + done + stored) / 2
        longest = max(done + first, self.at_home, paired)
        behind = 0.0
        for ports, arrival, before, steps in busy:  # what comes last is still computed with
            behind = arrival + (done - before) / steps
            longest = max(longest, ports + behind)
        # The last drains are among what a port of both directions takes one by one: while a unit
        # computes with what it got last, others are drained.
        return max(longest + tail, turning + max(0.0, behind - (tail - lag)) + lag)

    def _among(self, fills: Sequence[_Filled], turning: float) -> float:
        """Cycles of a layer while others run, which fill what it would wait for at its ends and ask
        for ports whenever a unit waits: where a buffer has one copy all that moves is added."""
        slowest = exposed = waiting = 0.0
        for level, fill in zip(self.moves, fills, strict=True):
            entries, drain = level.entries, level.out_trips * level.last
            if level.is_double:
                slowest = max(slowest, entries * fill.cycles)
                waiting += entries * (fill.cycles + fill.first + fill.waits)
                if level.is_alone:
                    exposed += entries * drain - level.last
                else:
                    slowest = max(slowest, entries * drain)
            else:
                slowest = max(slowest, entries * fill.early)
                exposed += entries * (fill.cycles - fill.early + fill.first + fill.waits + drain)
            exposed += level.last
        longest = max(slowest, self.compute, self.at_home, (waiting + self.compute) / 2)
        return max(longest + exposed, turning)


class _Filled(NamedTuple):
    """Of all fills of a level, each time that it is begun."""

    cycles: float
    """While all units fill."""
    early: float
    """Of them, those that what ran before hides."""
    waited: float
    """What a unit waits for of those that cannot start early, if it has no second copies."""
    first: float
    """Of the first ones, with their latencies."""
    arrival: float
    """From when its ports are free until the last one is there."""
    skew: float
    """For which the last unit's first fills wait for those of others."""
    carried: float
    """For sums that loops of an outer stage go on with, with latencies."""
    waits: int
    """Latencies."""
    moves: int
    charge: float


def _filled(level: _Moves, order: Sequence[str], turns: dict[int, float]) -> _Filled:
    """Adds to `turns`, by memory, what fills and drains take of ports that serve both ways."""
    trips = level.trips
    for memory, taken in level.drain_turns:
        turns[memory] = turns.get(memory, 0.0) + level.entries * taken
    cycles = early = first = arrival = waited = charge = skew = carried = 0.0
    waits = moves = last = 0
    for fill in level.fills:
        # Its Place stands inside the loops up to the last that its box depends on.
        loads = running = 1
        for name in order:
            running *= trips[name]
            if name in fill.axes:
                loads = running
        cycles += loads * fill.cycles
        if fill.is_carried:
            carried += loads * (fill.latency_cycles + fill.cycles)
        elif fill.is_early and (loads == 1 or fill.is_double):
            early += loads * fill.cycles
        else:
            apart = max(0, loads - last)  # steps in which no other fill follows
            last = max(last, loads)
            waited += apart * fill.alone + (loads - apart) * fill.cycles
            first += fill.latency_cycles + fill.cycles
            skew += fill.cycles - fill.alone
        arrival = max(arrival, fill.arrival)
        moves += loads
        charge += loads * fill.charge
        for memory, taken in fill.turns:
            turns[memory] = turns.get(memory, 0.0) + level.entries * loads * taken
        if not fill.is_carried:
            waits = max(waits, loads * fill.latency_cycles)
    # Loads of different operands are in flight together: a step waits for the latency once.
    # One engine brings them all, so sources do not add their rates up.
    return _Filled(cycles, early, waited, first, arrival, skew, carried, waits, moves, charge)


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
        self.feeds = feeds_of(facts.op, engine, facts.tensors, stays=stays, held=facts.held)
        self.shared = SharedMemory.of(engine, machine, stages[-1].team)
        self.pace = pace_of(facts.op, engine, facts.tensors, stays=stays, held=facts.held)
        self.after = [
            (step, pace_of(step.op, step.engine, facts.tensors, held=facts.held))
            for step in facts.epilogue
        ]
        self.after_shared = [
            (SharedMemory.of(step.engine, machine, stages[-1].team),
             feeds_of(step.op, step.engine, facts.tensors, held=facts.held))
            for step in facts.epilogue
        ]  # fmt: skip
        self._axes = tuple(axis.name for axis in facts.op.domain)
        self._machine, self._units = machine, burst_units(machine)
        self._in_bursts: dict[tuple[str, int, tuple[int, ...]], Sizes] = {}
        self.at_home = home_cycles(facts, machine, stages[-1].team)
        self.overlaps = stages[-1].team.overlaps
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
            is_early = comes_early(facts, operand.tensor, stages, k, machine)
            fills.append(_Way(operand, is_early, routes[source]))
        drain = carried = None
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
                if k and facts.reduce_axes and not stage.team.overlaps:
                    back = Route.between(machine, target, near, stage.team, self.measure)
                    if stage.units > 1:  # tensors are protected as wholes, so cores wait for all
                        waiting = back.latency_cycles + machine.signal_cycles
                        back = replace(back, latency_cycles=waiting)
                    carried = _Way(stored, False, back)
        is_apart = all(way.route.shared_rate == inf for way in fills)
        return _Port(tuple(fills), carried, drain, is_apart)

    def price(self, levels: Sequence[LevelPlan]) -> Price:
        """The price of one tiling."""
        entries, busy, results, carries, found = 1, 1, 1, False, []
        strips = self.facts.strips(levels[-1].tile)
        for k, plan in enumerate(levels):
            moves = self._moves(k, plan, entries, busy, carries=carries)
            found.append(moves)
            results = entries * moves.out_trips * strips[1]
            entries, busy = moves.steps, moves.busy_units
            carries = carries or len(plan.order) > plan.num_out_loops
        innermost = levels[-1]
        tile = innermost.tile
        box = tuple(tile[name] for name in self._axes)
        turns: dict[int, float] = {}
        one = self.pace.cycles(box)
        if self.shared is not None:
            one = max(one, self.shared.take(self.feeds.of(box), entries, busy, turns))
        compute: float = entries * one
        leaves = entries * busy
        if self.after:
            compute = self._fused_cycles(compute, results, innermost, strips, busy, turns)
            leaves += results * busy * len(self.after)
        fed = entries * busy * self._fed(self.feeds, box) if self.measure.feeds else 0.0
        return Price(found, compute, self.at_home, leaves, fed, turns, overlaps=self.overlaps)

    def _fed(self, feeds: Feeds, box: tuple[int, ...]) -> float:
        """What an instruction is charged for what its engine draws and returns."""
        memory, prices = self.engine.memory, self.measure.feeds
        drawn, returned = feeds.of(box)
        return drawn * prices[memory, "read"] + returned * prices[memory, "write"]

    def _moves(self, k: int, plan: LevelPlan, entries: int, busy: int, *, carries: bool) -> _Moves:
        """What stage `k` moves, begun so many times by so many units outside of it.

        `carries`: it goes on with sums that stand around it.
        """
        port = self.ports[k]
        used = busy * plan.units_used
        out_trips = prod(plan.trips[name] for name in plan.order[: plan.num_out_loops])
        drain = drain_alone = last = drain_charge = 0.0
        drain_turns: Turns = ()
        if port.drain is not None and port.drain[0].tensor in plan.elems:
            operand, route = port.drain
            sizes = self._sizes(operand, plan, route)
            one = route.cycles(sizes, used, used)
            drain = out_trips * one
            last = route.latency_cycles + drain / out_trips
            alone = route.cycles(sizes, 0, 0) if port.is_apart else one
            drain_alone = out_trips * (route.latency_cycles + alone)
            drain_turns = route.turns(sizes, out_trips, used, used)
            drain_charge = out_trips * route.charge(sizes, used, used)
        ways = (port.carried, *port.fills) if carries and port.carried else port.fills
        fills = tuple(
            self._fill(port, way, plan, used) for way in ways if way.operand.tensor in plan.elems
        )
        is_double = any(c > 1 for c in plan.copies.values())
        is_alone = self.facts.is_alone and k == len(self.ports) - 1 and out_trips > 1
        return _Moves(
            fills, drain, drain_alone, last, drain_turns, drain_charge, is_double, is_alone,
            entries, entries * prod(plan.trips[name] for name in plan.order), used, out_trips,
            plan.trips,
        )  # fmt: skip

    def _fill(self, port: _Port, way: _Way, plan: LevelPlan, used: int) -> _Fill:
        """What a tile takes to come, on its way to each of `used` units."""
        operand, route = way.operand, way.route
        reads = used
        if route.reach > 1:
            reads = route.reads(used // plan.units_used, plan.splits, operand.axes)
        key = (
            self._boxed(operand, plan, route), plan.copies[operand.tensor] > 1, used, reads
        )  # fmt: skip
        found = way.known.get(key)
        if found is None:
            sizes = self._sizes(operand, plan, route)
            cycles = route.cycles(sizes, used, reads)
            alone = route.cycles(sizes, 0, 0) if port.is_apart else cycles
            arrival = route.latency_cycles + max(0.0, alone - cycles / used)
            found = way.known[key] = _Fill(
                operand.axes, cycles, alone, arrival, route.latency_cycles, way.is_early,
                key[1], way is port.carried,
                route.turns(sizes, 1, used, reads), route.charge(sizes, used, reads),
            )  # fmt: skip
        return found

    def _boxed(self, operand: Operand, plan: LevelPlan, route: Route) -> object:
        """What of a tile decides `_sizes`: its elements, and where bursts count its box."""
        if self._units == (1, 1) or not route.is_at_home:
            return plan.elems[operand.tensor]
        tile = plan.tile
        return plan.elems[operand.tensor], *[tile[name] for name in operand.axes]

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
        self, anchor: float, results: int, plan: LevelPlan, strips: tuple[int, int], units: int,
        turns: dict[int, float],
    ) -> float:  # fmt: skip
        """Cycles of all engines of a core: side by side if the accumulators have a second copy.

        Adds to `turns` what those of `units` take of ports that they share with transfers.
        """
        facts = self.facts
        assert facts.out is not None
        busy = {self.engine.name: anchor}
        # All results of the group have the same box.
        widths = list(facts.out.widths(plan.tile, facts.extents))
        if widths:
            widths[strips[0]] //= strips[1]
        for (step, pace), (shared, feeds) in zip(self.after, self.after_shared, strict=True):
            box = tuple(1 if dim is None else widths[dim] for dim in step.dim_of_axis)
            one = pace.cycles(box)
            if shared is not None:
                one = max(one, shared.take(feeds.of(box), results, units, turns))
            busy[step.engine.name] = busy.get(step.engine.name, 0.0) + results * one
        if plan.copies[facts.out.tensor] > 1:
            return max(busy.values())
        return sum(busy.values())


def home_cycles(facts: Facts, machine: Machine, team: Team) -> float:
    """Time of operands read or written in place at home: every point touches one element."""
    sizes = [facts.tensors[facts.op.reads[k].tensor].dtype.size_bytes for k in facts.at_home]
    if facts.out is None:
        sizes.append(facts.tensors[facts.op.write.tensor].dtype.size_bytes)
    return facts.op.num_points * sum(sizes) * team.copies / machine.home.read_bytes_per_cycle
