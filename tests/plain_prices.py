"""What one tiling of a layer costs, in plain Python: the price, read off its description.

Slow, one tiling at a time, with nothing of the compiled loop (`tiling/nest/price_loop`) but what it
is given: how operands come and go (`ports`), what an engine takes for a tile, and bursts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import NamedTuple, TypeAlias

import numpy as np

from worker.compiler.cost.compute import pace_of
from worker.compiler.cost.feeds import Feeds, feeds_of
from worker.compiler.machine.bursts import Sizes, sizes_of_tile
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.machine.mesh import TREE_SIZES
from worker.compiler.tiling.nest.facts import Facts, Operand
from worker.compiler.tiling.nest.measure import LATENCY, Measure
from worker.compiler.tiling.nest.plan import LevelPlan, Stage
from worker.compiler.tiling.nest.ports import Port, Way, ports_of
from worker.compiler.tiling.nest.price import home_cycles
from worker.compiler.tiling.nest.route import Route
from worker.compiler.tiling.nest.shared_memory import SharedMemory

Turns: TypeAlias = tuple[tuple[int, float], ...]
"""(number of a memory, cycles) of ports that serve both directions."""


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
        self.moves, self.turns = moves, turns
        self.overlaps = overlaps
        """Whether other layers fill what this one alone would wait for at its ends."""
        self.compute = compute
        self.at_home = at_home
        self.leaves = leaves
        self.fed = fed
        """What engines are charged for what they draw and return."""

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


class PlainPricer:
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
        self.after_shared = [
            (SharedMemory.of(step.engine, machine, stages[-1].team),
             feeds_of(step.op, step.engine, facts.tensors, held=facts.held))
            for step in facts.epilogue
        ]  # fmt: skip
        self.pace = pace_of(facts.op, engine, facts.tensors, stays=stays, held=facts.held)
        self.after = [
            (step, pace_of(step.op, step.engine, facts.tensors, held=facts.held))
            for step in facts.epilogue
        ]
        self._axes = tuple(axis.name for axis in facts.op.domain)
        self._machine = machine
        self.at_home = home_cycles(facts, machine, stages[-1].team)
        self.overlaps = stages[-1].team.overlaps
        self.ports = ports_of(facts, stages, machine, measure)

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
            one = max(one, take(self.shared, self.feeds.of(box), entries, busy, turns))
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
        # What cells take for each multiply-accumulate is the same for every tiling.
        lines = feeds.inside(box) - feeds.per_mac * prod(box)
        bus = self.engine.bus_energy_pj_per_byte * lines
        return drawn * prices[memory, "read"] + returned * prices[memory, "write"] + bus

    def _moves(self, k: int, plan: LevelPlan, entries: int, busy: int, *, carries: bool) -> _Moves:
        """What stage `k` moves, begun so many times by so many units outside of it.

        `carries`: it goes on with sums that stand around it.
        """
        port = self.ports[k]
        used = busy * plan.units_used
        out_trips = prod(plan.trips[name] for name in plan.order[: plan.num_out_loops])
        drain = drain_alone = last = drain_charge = 0.0
        drain_turns: Turns = ()
        if port.drain is not None and port.drain.operand.tensor in plan.elems:
            operand, route = port.drain.operand, port.drain.route
            sizes = self._sizes(operand, plan, route)
            one = cycles_of(route, sizes, used, used)
            drain = out_trips * one
            last = route.latency_cycles + drain / out_trips
            alone = cycles_of(route, sizes, 0, 0) if port.is_apart else one
            drain_alone = out_trips * (route.latency_cycles + alone)
            drain_turns = turns_of(route, sizes, out_trips, used, used)
            drain_charge = out_trips * charge_of(route, sizes, used, used)
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

    def _fill(self, port: Port, way: Way, plan: LevelPlan, used: int) -> _Fill:
        """What a tile takes to come, on its way to each of `used` units."""
        operand, route = way.operand, way.route
        reads = used
        if route.reach > 1:
            reads = reads_of(route, used // plan.units_used, plan.splits, operand.axes)
        sizes = self._sizes(operand, plan, route)
        cycles = cycles_of(route, sizes, used, reads)
        alone = cycles_of(route, sizes, 0, 0) if port.is_apart else cycles
        arrival = route.latency_cycles + max(0.0, alone - cycles / used)
        return _Fill(
            operand.axes, cycles, alone, arrival, route.latency_cycles, way.is_early,
            plan.copies[operand.tensor] > 1, way is port.carried,
            turns_of(route, sizes, 1, used, reads), charge_of(route, sizes, used, reads),
        )  # fmt: skip

    def _sizes(self, operand: Operand, plan: LevelPlan, route: Route) -> Sizes:
        """Bytes of a tile of an operand on a way."""
        payload = plan.elems[operand.tensor] * operand.dtype.size_bytes
        if not route.is_at_home:
            return Sizes(payload, payload, payload)
        tile, extents = plan.tile, self.facts.extents
        return sizes_of_tile(
            payload, operand.widths(tile, extents), operand.shape, operand.dtype.size_bytes,
            operand.pitches(tile, extents), self._machine,
        )  # fmt: skip

    def _fused_cycles(
        self, anchor: float, results: int, plan: LevelPlan, strips: tuple[int, int], units: int,
        turns: dict[int, float],
    ) -> float:  # fmt: skip
        """Cycles of all engines of a core: side by side if the accumulators have a second copy."""
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
                one = max(one, take(shared, feeds.of(box), results, units, turns))
            busy[step.engine.name] = busy.get(step.engine.name, 0.0) + results * one
        if plan.copies[facts.out.tensor] > 1:
            return max(busy.values())
        return sum(busy.values())


def take(
    memory: SharedMemory, moved: tuple[int, int], times: int, units: int, turns: dict[int, float]
) -> int:
    """Cycles of one instruction that draws and returns so many bytes, at its ports.

    Adds to `turns`, by port, what so many instructions of `units` a team take.
    """
    *each, least = memory.taken(moved)
    waiting = max(1, -(-units * memory.copies // memory.instances))
    for port, cycles in zip(memory.ports, each, strict=True):
        turns[port] = turns.get(port, 0.0) + times * cycles * waiting
    return least


def reads_of(route: Route, busy: int, splits: Mapping[str, int], axes: frozenset[str]) -> int:
    """Transfers of an operand of `axes` that its source serves, while it goes to all units.

    `busy`: units of stages outside; `splits`: ways of every axis at this one, outermost first.
    """
    used = busy * prod(splits.values())
    if route.reach == 1:
        return used
    ways = tuple((number, axis in axes) for axis, number in splits.items())
    return busy * _pieces(ways, route.reach)


def charge_of(route: Route, sizes: Sizes, used: int, reads: int) -> float:
    """What one transfer to each of `used` units is charged, in so many `reads` of their
    source."""
    if route.weights is None:
        return 0.0
    source, other = route.weights
    found = reads * sum(w * size for w, size in zip(source, sizes, strict=True) if w)
    found = found + used * sum(w * size for w, size in zip(other, sizes, strict=True) if w)
    return found * route.team.copies


def cycles_of(route: Route, sizes: Sizes, sharers: int, reads: int) -> float:
    """Cycles of one transfer when `sharers` per team move as much, in `reads` reads of their
    source; sharers: none, for one that nobody disturbs.

    A port is held for whole cycles; of what a cache brings in for several, each has a part.
    """
    rate, setup = route.issuing
    found = max(sizes.payload / rate, setup)
    is_one = reads < sharers
    if is_one:
        found = max(found, sizes.payload / route.shared_rate)
    for k, ((rate, instances), count) in enumerate(zip(route.ports, route.counts, strict=True)):
        size, many = float(sizes[count]), sharers
        if is_one and k == 0:
            size, many = (size, reads) if route.is_read_once else (size * reads / sharers, many)
        waiting = max(1, -(-many * route.team.copies // instances))
        trees = route.trunks[k]
        if is_one and trees is not None:  # what is served together passes it once
            asking = reads * route.team.copies
            receivers = -(-sharers // reads)
            waiting = max(1, -(-asking // instances))
            if trees:
                size_of_tree = (receivers - 1).bit_length()
                waiting = trees[asking * TREE_SIZES + size_of_tree]
        elif route.crowds[k]:
            waiting = max(1, route.crowds[k][many * route.team.copies])
        found = max(found, waiting * (ceil(size / rate) if route.is_rounded else size / rate))
    return found


def turns_of(route: Route, sizes: Sizes, times: int, sharers: int, reads: int) -> Turns:
    """What so many transfers take of ports that serve both directions, when `sharers` per team
    move as much, in `reads` reads of their source."""
    found: list[tuple[int, float]] = []
    for port in route.shared:
        size, many = float(sizes[port.size]), sharers
        if port.is_source and reads < sharers:
            size, many = (size, reads) if route.is_read_once else (size * reads / sharers, many)
        waiting = max(1, -(-many * route.team.copies // port.instances))
        one = ceil(size / port.rate) if route.is_rounded else size / port.rate
        found.append((port.memory, times * one * waiting))
    return tuple(found)


def _pieces(ways: tuple[tuple[int, bool], ...], reach: int) -> int:
    """How many transfers bring the pieces of an operand to neighbouring units, one to each.

    `ways`: of every axis that is split, outermost first, into how many parts, and whether the
    operand has it.  A transfer serves the units of one block of `reach` that need the same piece.
    """
    if reach >= prod(number for number, _ in ways):
        return prod(number for number, is_own in ways if is_own)
    unit = np.arange(prod(number for number, _ in ways))
    piece, left = np.zeros_like(unit), unit
    for number, is_own in reversed(ways):
        piece = piece * (number if is_own else 1) + (left % number if is_own else 0)
        left = left // number
    return len(set(zip(piece.tolist(), (unit // reach).tolist(), strict=True)))
