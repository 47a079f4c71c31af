"""What many tilings of one layer cost at least, all at once.

`price.Pricer` says what one tiling costs; this module says the same of a whole grid of tiles by
array operations, but never more: an array is taken to be fed at once and to take no loads, strips
of an epilogue to start for nothing.  So whoever looks at tilings in rising order of these figures
may stop at the first that is above a price that was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from worker.compiler.machine.bursts import burst_units
from worker.compiler.machine.machine import Machine
from worker.compiler.tiling.nest.facts import Facts, Operand
from worker.compiler.tiling.nest.grid_boxes import (
    SLACK,
    Flags,
    Floats,
    Ints,
    Tiles,
    all_of,
    burst_arrays,
    least_cycles,
    over,
    tile_elems,
    widths,
)
from worker.compiler.tiling.nest.levels import StageFrame
from worker.compiler.tiling.nest.price import Pricer
from worker.compiler.tiling.nest.route import Route

MOST_LEAVES = 2_000_000
"""Executed leaves that a kernel of one nest should stay below: its program has loops, but the
audit looks at all that runs, a million in 1.5 CPU s (decisions 0037, 0053)."""


def is_estimated(facts: Facts) -> bool:
    """Whether the estimate knows the layer: every index is linear, nothing comes early."""
    operands = [*facts.fetched, *(step.out for step in facts.epilogue)]
    if facts.out is None or facts.early or facts.padded_locals:
        return False
    return all(terms is not None for o in (*operands, facts.out) for terms in o.linear)


@dataclass(frozen=True, slots=True)
class Around:
    """What the levels outside of the innermost one cost, in one order of their loops.

    Shapes: [contexts, 1, ..], as all arrays of `Contexts`.
    """

    order: tuple[str, ...]
    """Of output axes."""
    busy: tuple[tuple[Floats, Floats, Floats, Ints], ...]
    """Of every level: cycles of its ports, until the last fill is there, of `serial` up to it, and
    times that its inside is begun."""
    serial: Floats
    stored: Floats
    first: Floats
    tail: Floats
    lag: Floats
    waiting: Floats
    draining: Floats
    turns: Mapping[int, Floats]
    leaves: Ints
    charge: Floats

    @staticmethod
    def nothing(order: tuple[str, ...], zero: Floats) -> Around:
        """No levels outside."""
        none = zero.astype(np.int64)
        return Around(
            order, (), serial=zero, stored=zero, first=zero, tail=zero, lag=zero, waiting=zero,
            draining=zero, turns={}, leaves=none, charge=zero,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Contexts:
    """Where an innermost level may stand: splits, and tiles around it, along the first dimension.

    Shapes: [contexts, 1, ..], with one more dimension for every axis.
    """

    outer: Tiles
    """Extents of the tile around."""
    ways: Tiles
    """Into how many parts each axis is split, once more, at the innermost stage."""
    entries: Ints
    """Times that the innermost level is begun, on every unit."""
    units: Ints
    """Units outside of it that are busy."""
    arounds: tuple[Around, ...]


class _Fill(NamedTuple):
    axes: frozenset[str]
    one: Floats
    """Cycles of one transfer, while all units fill."""
    alone: Floats
    """While no other unit does."""
    latency_cycles: int
    turns: list[tuple[int, Floats]]
    charge: Floats | float
    """Of one, to all units."""
    carries: Flags | None
    """Of sums that loops of an outer stage go on with: where there are such loops."""


class _Moved(NamedTuple):
    """What the innermost level moves, whatever the order of loops."""

    trips: Tiles
    used: Ints
    """Units that are busy, those outside times those inside."""
    fills: tuple[_Fill, ...]
    drain: Floats
    """Cycles of one drain, while all units drain."""
    drain_alone: Floats
    """With its latency, while no other unit does."""
    last: Floats
    """With its latency, while all do."""
    drain_turns: list[tuple[int, Floats]]
    drain_charge: Floats | float
    """Of one drain."""
    out_trips: Ints
    is_double: Flags
    copies: Tiles


class Estimate:
    """The innermost level of one layer on given stages."""

    def __init__(self, frame: StageFrame, k: int, pricer: Pricer, machine: Machine) -> None:
        self.facts = frame.facts
        self.pricer = pricer
        self.machine = machine
        self.stand = frame.stands[k]
        self.port = pricer.ports[k]
        self.units = burst_units(machine)
        self.is_alone = frame.facts.is_alone and k == len(frame.stands) - 1

    def of(self, contexts: Contexts, tiles: Tiles, *, double: bool) -> Floats:
        """The least score in any of the orders, of every tiling; inf where buffers do not fit.

        Of the innermost stage.
        """
        moved, fits = self._moved(contexts, tiles, double=double)
        entries = contexts.entries * all_of(moved.trips.values())
        results = contexts.entries * moved.out_trips
        units = moved.used
        compute = self._compute(tiles, entries, results, moved.copies)
        after = units * (entries + results * len(self.facts.epilogue))
        best: Floats | None = None
        for around in contexts.arounds:
            whole = self._advanced(contexts, around, moved)
            found = self._score(whole, compute, whole.leaves + after)
            best = found if best is None else np.minimum(best, found)
        assert best is not None
        return np.where(fits, best, np.inf)

    def inside(self, contexts: Contexts, tiles: Tiles, *, double: bool) -> tuple[Contexts, Floats]:
        """Where the next stage may stand, its ways all 1, and what each costs at least; inf where
        buffers do not fit."""
        moved, fits = self._moved(contexts, tiles, double=double)
        arounds = tuple(self._advanced(contexts, a, moved) for a in contexts.arounds)
        best: Floats | None = None
        for around in arounds:
            found = self._score(around, np.zeros(()), around.leaves)
            best = found if best is None else np.minimum(best, found)
        assert best is not None
        ways = {name: np.ones((), np.int64) for name in tiles}
        entries = contexts.entries * all_of(moved.trips.values())
        found_contexts = Contexts(tiles, ways, entries, moved.used, arounds)
        return found_contexts, np.where(fits, best, np.inf)

    def _fits(self, tiles: Tiles, elems: Mapping[str, Ints], copies: Tiles, used: Ints) -> Flags:
        stage = self.stand.stage
        budget = stage.capacity_bytes // np.minimum(stage.sharers, used)
        total: Ints = np.zeros((), dtype=np.int64)
        fits: Flags = np.ones((), np.bool_)
        for held in self.stand.held:
            name = held.operand.tensor
            size = 0 if held.is_strip else elems[name] * held.item_bytes
            taken = -(-size // held.unit_bytes) * held.unit_bytes * copies[name]
            if held.room is None:
                total = total + taken
            else:
                fits = fits & (taken <= held.room)
        fits = fits & (total <= budget)
        extents = self.facts.extents
        for name, below in self.facts.below.items():
            for inner in below:
                fits = fits & ((tiles[name] == 1) | (tiles[inner] >= extents[inner]))
        return fits

    def _moved(self, contexts: Contexts, tiles: Tiles, *, double: bool) -> tuple[_Moved, Flags]:
        """What a level moves, and where its buffers fit."""
        outer = contexts.outer
        counts = {name: over(outer[name], n) for name, n in tiles.items()}
        trips = {name: over(number, contexts.ways[name]) for name, number in counts.items()}
        ways = {name: over(number, trips[name]) for name, number in counts.items()}  # with work
        used = contexts.units * all_of(ways[name] for name in self.facts.out_axes)
        elems = {h.operand.tensor: tile_elems(h.operand, tiles) for h in self.stand.held}
        looped = {name: number > 1 for name, number in trips.items()}
        copies = {
            held.operand.tensor: 1 + _any(looped, held.operand.axes, double and not held.is_lone)
            for held in self.stand.held
        }
        fits = self._fits(tiles, elems, copies, used // contexts.units)
        facts, busy = self.facts, used
        zero: Ints = np.zeros((), np.int64)
        fills: list[_Fill] = []
        carried = self.port.carried
        for way in (carried, *self.port.fills) if carried is not None else self.port.fills:
            name = way.operand.tensor
            if name not in elems:
                continue
            carries: Flags | None = None
            if way is carried:
                cut = [outer[n] < facts.extents[n] for n in facts.reduce_axes]
                carries = np.logical_or.reduce(np.broadcast_arrays(*cut))
            reads = self._reads(way.route, contexts.units, ways, way.operand.axes)
            sizes = self._sizes(way.operand, tiles, elems[name], way.route)
            one = way.route.cycles_of(sizes, busy, reads)
            alone = way.route.cycles_of(sizes, zero, zero) if self.port.is_apart else one
            fills.append(
                _Fill(
                    way.operand.axes, one, alone, way.route.latency_cycles,
                    way.route.turns_of(sizes, busy, reads), way.route.charge(sizes, busy, reads),
                    carries,
                )
            )  # fmt: skip
        drain = drain_alone = last = np.zeros(())
        drain_charge: Floats | float = 0.0
        drain_turns: list[tuple[int, Floats]] = []
        if self.port.drain is not None and self.port.drain[0].tensor in elems:
            operand, route = self.port.drain
            sizes = self._sizes(operand, tiles, elems[operand.tensor], route)
            drain = route.cycles_of(sizes, busy, busy)
            last = route.latency_cycles + drain
            drain_alone = last
            if self.port.is_apart:
                drain_alone = route.latency_cycles + route.cycles_of(sizes, zero, zero)
            drain_turns = route.turns_of(sizes, busy, busy)
            drain_charge = route.charge(sizes, busy, busy)
        out_trips = all_of(trips[n] for n in facts.out_axes)
        is_double: Flags = np.zeros((), np.bool_)
        for number in copies.values():
            is_double = is_double | (number > 1)
        moved = _Moved(
            trips, used, tuple(fills), drain, drain_alone, last, drain_turns, drain_charge,
            out_trips, is_double, copies,
        )  # fmt: skip
        return moved, fits

    def _reads(self, route: Route, units: Ints, ways: Tiles, axes: frozenset[str]) -> Ints:
        """`Route.reads` of every tiling."""
        used = all_of(ways.values())
        if route.reach == 1:
            return units * used
        if route.reach >= int(used.max()):
            return units * all_of(number for name, number in ways.items() if name in axes)
        out = self.facts.out_axes
        arrays = np.broadcast_arrays(units, *(ways[name] for name in out))
        columns = np.stack([each.ravel() for each in arrays])
        distinct, which = np.unique(columns, axis=1, return_inverse=True)
        found = [
            route.reads(busy, {n: w for n, w in zip(out, each, strict=True) if w > 1}, axes)
            for busy, *each in distinct.T.tolist()
        ]
        return np.array(found, np.int64)[which.ravel()].reshape(arrays[0].shape)

    def _advanced(self, contexts: Contexts, around: Around, moved: _Moved) -> Around:
        """With what this level costs."""
        order = (*around.order, *self.facts.reduce_axes)
        turns = dict(around.turns)
        fill = waited = first = arrival = skew = waits = carried = np.zeros(())
        carries: Flags = np.zeros((), np.bool_)
        last: Ints = np.zeros((), np.int64)
        moves: Ints = np.zeros((), np.int64)
        times = contexts.entries
        charge = around.charge
        if self.pricer.measure.ports:
            charge = charge + times * moved.out_trips * moved.drain_charge
        for way in moved.fills:
            loads = _loads(order, way.axes, moved.trips)
            if way.carries is not None:
                carries, loads = way.carries, loads * way.carries
                carried = loads * (way.latency_cycles + way.one)
            else:
                apart = np.maximum(0, loads - last)  # as `price._filled`
                last = np.maximum(last, loads)
                waited = waited + (apart * way.alone + (loads - apart) * way.one)
                first = first + (way.latency_cycles + way.one)
                skew = skew + (way.one - way.alone)
                waits = np.maximum(waits, loads * way.latency_cycles)
            lands = way.latency_cycles + np.maximum(0.0, way.alone - way.one / moved.used)
            if way.carries is not None:
                lands = np.where(way.carries, lands, 0.0)
            arrival = np.maximum(arrival, lands)
            fill = fill + loads * way.one
            moves = moves + loads
            if self.pricer.measure.ports:
                charge = charge + times * loads * way.charge
            for memory, cycles in way.turns:
                turns[memory] = turns.get(memory, np.zeros(())) + times * loads * cycles
        for memory, cycles in moved.drain_turns:
            taken = times * moved.out_trips * cycles
            turns[memory] = turns.get(memory, np.zeros(())) + taken
        double = moved.is_double
        drains = moved.out_trips * moved.drain_alone
        is_hidden = double & ~carries
        if self.is_alone:
            is_hidden = is_hidden & (moved.out_trips == 1)
        ports: Floats = np.maximum(fill, moved.out_trips * moved.drain) * times
        serial = around.serial + np.where(double, 0.0, times * (waited + waits) + skew)
        waited_for = np.where(is_hidden, 0.0, (times - 1 / moved.out_trips) * drains)
        waited_for = waited_for + times * carried
        serial = serial + waited_for
        steps = times * all_of(moved.trips.values())
        leaves = moved.used * times * (moves + moved.out_trips)
        return Around(
            around.order, (*around.busy, (ports, arrival, serial, steps)), serial,
            around.stored + np.where(double, waited_for, 0.0),
            around.first + np.where(double, first, 0.0), around.tail + moved.last,
            around.lag + (moved.last - moved.drain),
            around.waiting + np.where(double, times * (fill + first + waits), 0.0),
            around.draining + np.where(is_hidden, times * drains, 0.0),
            turns, around.leaves + leaves, charge,
        )  # fmt: skip

    def _score(self, around: Around, compute: Floats, leaves: Ints) -> Floats:
        done = compute + around.serial
        paired = (np.maximum(around.waiting, around.draining) + done + around.stored) / 2
        longest = np.maximum(np.maximum(done + around.first, paired), self.pricer.at_home)
        behind: Floats = np.zeros(())
        for ports, arrival, before, steps in around.busy:
            behind = arrival + (done - before) / steps
            longest = np.maximum(longest, ports + behind)
        cycles = longest + around.tail
        behind = np.maximum(0.0, behind - (around.tail - around.lag)) + around.lag
        for turning in around.turns.values():
            cycles = np.maximum(cycles, turning + behind)
        measure = self.pricer.measure
        cost = measure.cost(np.floor(cycles * (1 - SLACK)), around.charge * (1 - SLACK))
        excess = np.maximum(1.0, leaves / MOST_LEAVES)
        return np.asarray(cost * excess + leaves * 1e-3 * measure.per_cycle)

    def _compute(self, tiles: Tiles, entries: Ints, results: Ints, copies: Tiles) -> Floats:
        """Cycles of a core's engines at least."""
        facts, pricer = self.facts, self.pricer
        anchor = entries * least_cycles(pricer.pace, [tiles[a.name] for a in facts.op.domain])
        if not facts.epilogue:
            return np.asarray(anchor)
        assert facts.out is not None
        busy: dict[str, Floats] = {pricer.engine.name: np.asarray(anchor)}
        shape = widths(facts.out, tiles)
        for step, pace in pricer.after:
            box = [np.ones((), np.int64) if d is None else shape[d] for d in step.dim_of_axis]
            own = busy.get(step.engine.name, np.zeros(()))
            busy[step.engine.name] = own + results * least_cycles(pace, box)
        together = copies[facts.out.tensor] > 1
        longest = np.zeros(())
        for cycles in busy.values():
            longest = np.maximum(longest, cycles)
        return np.where(together, longest, sum(busy.values()))

    def _sizes(
        self, operand: Operand, tiles: Tiles, elems: Ints, route: Route
    ) -> tuple[Ints, Ints, Ints]:
        """(payload, bytes at home, bytes at caches) of a tile of an operand on its way."""
        item = operand.dtype.size_bytes
        payload = elems * item
        if self.units == (1, 1) or not route.is_at_home:
            return payload, payload, payload
        inside = [
            np.minimum(w, n) for w, n in zip(widths(operand, tiles), operand.shape, strict=True)
        ]
        pitches = [self._pitch(operand, d, tiles) for d in range(len(operand.shape))]
        home, cache = (
            payload if unit == 1 else np.maximum(
                payload,
                burst_arrays(inside, operand.shape, item, pitches,
                             self.machine.home.align_bytes, unit),
            )
            for unit in self.units
        )  # fmt: skip
        return payload, home, cache

    def _pitch(self, operand: Operand, dim: int, tiles: Tiles) -> Ints:
        """`Operand.pitches` of one dimension."""
        expr, extents = operand.index[dim], self.facts.extents
        step: Ints = np.zeros((), np.int64)
        phase: Ints = np.array(expr.const, np.int64)
        for name in expr.variables():
            factor, size = expr.coeff(name), tiles[name]
            step = np.gcd(step, abs(factor) * np.where(size < extents[name], size, 0))
            phase = phase + (factor * (size - 1) if factor < 0 else 0)
        return np.gcd(step, phase)


def _any(looped: Mapping[str, Flags], axes: frozenset[str], may: bool) -> Ints:
    found: Flags = np.zeros((), np.bool_)
    if may:
        for name, flag in looped.items():
            if name in axes:
                found = found | flag
    return found.astype(np.int64)


def _loads(order: Sequence[str], axes: frozenset[str], trips: Tiles) -> Ints:
    """How often an operand is brought: its Place stands inside the loops up to the last that its
    box depends on."""
    loads: Ints = np.ones((), np.int64)
    running: Ints = np.ones((), np.int64)
    for name in order:
        running = running * trips[name]
        if name in axes:
            loads = np.where(trips[name] > 1, running, loads)
    return loads
