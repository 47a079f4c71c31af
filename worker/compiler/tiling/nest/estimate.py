"""What many tilings of one layer cost at least, all at once.

`price.Pricer` says what one tiling costs; this module says the same of a whole grid of tiles by
array operations, but never more: an array is taken to be fed at once and to take no loads, strips
of an epilogue to start for nothing.  So whoever looks at tilings in rising order of these figures
may stop at the first that is above a price that was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.cost.compute import EngineRate
from worker.compiler.cost.folds import granule
from worker.compiler.machine.bursts import burst_units, strides_of
from worker.compiler.machine.machine import Machine
from worker.compiler.tiling.nest.facts import Facts, Operand
from worker.compiler.tiling.nest.levels import StageFrame
from worker.compiler.tiling.nest.price import Pricer
from worker.compiler.tiling.nest.route import Route

MOST_LEAVES = 2_000_000
"""Executed leaves that a kernel of one nest should stay below: its program has loops, but the
audit looks at all that runs, a million in 1.5 CPU s (decisions 0037, 0053)."""
Ints: TypeAlias = "npt.NDArray[np.int64]"
_SLACK = 1e-12
"""What sums in another order may be off by."""
Floats: TypeAlias = "npt.NDArray[np.float64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"
Tiles: TypeAlias = Mapping[str, Ints]
"""Tile size per axis; the arrays broadcast to the shape of the grid."""


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
    slowest: Floats
    exposed: Floats
    waiting: Floats
    turns: Mapping[int, Floats]
    leaves: Ints
    charge: Floats


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

    @property
    def used(self) -> Ints:
        return all_of(self.ways.values())


class _Fill(NamedTuple):
    axes: frozenset[str]
    one: Floats
    """Cycles of one transfer."""
    latency_cycles: int
    turns: list[tuple[int, Floats]]
    charge: Floats | float
    """Of one, to all units."""


class _Moved(NamedTuple):
    """What the innermost level moves, whatever the order of loops."""

    trips: Tiles
    fills: tuple[_Fill, ...]
    last: Floats
    """Of one drain."""
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
        units = contexts.units * contexts.used
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
        found_contexts = Contexts(tiles, ways, entries, contexts.units * contexts.used, arounds)
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
        outer, ways = contexts.outer, contexts.ways
        trips = {name: _over(_over(outer[name], n), ways[name]) for name, n in tiles.items()}
        elems = {h.operand.tensor: tile_elems(h.operand, tiles) for h in self.stand.held}
        looped = {name: number > 1 for name, number in trips.items()}
        copies = {
            held.operand.tensor: 1 + _any(looped, held.operand.axes, double and not held.is_lone)
            for held in self.stand.held
        }
        fits = self._fits(tiles, elems, copies, contexts.used)
        facts, busy = self.facts, contexts.units * contexts.used
        fills: list[_Fill] = []
        for way in self.port.fills:
            name = way.operand.tensor
            if name not in elems:
                continue
            reads = self._reads(way.route, contexts, way.operand.axes)
            sizes = self._sizes(way.operand, tiles, elems[name], way.route)
            fills.append(
                _Fill(
                    way.operand.axes, _moving(way.route, sizes, busy, reads),
                    way.route.latency_cycles, _turns(way.route, sizes, busy, reads),
                    way.route.charge(sizes, busy, reads),
                )
            )  # fmt: skip
        last: Floats = np.zeros(())
        drain_charge: Floats | float = 0.0
        drain_turns: list[tuple[int, Floats]] = []
        if self.port.drain is not None and self.port.drain[0].tensor in elems:
            operand, route = self.port.drain
            sizes = self._sizes(operand, tiles, elems[operand.tensor], route)
            last = route.latency_cycles + _moving(route, sizes, busy, busy)
            drain_turns = _turns(route, sizes, busy, busy)
            drain_charge = route.charge(sizes, busy, busy)
        out_trips = all_of(trips[n] for n in facts.out_axes)
        is_double: Flags = np.zeros((), np.bool_)
        for number in copies.values():
            is_double = is_double | (number > 1)
        moved = _Moved(
            trips, tuple(fills), last, drain_turns, drain_charge, out_trips, is_double, copies
        )
        return moved, fits

    def _reads(self, route: Route, contexts: Contexts, axes: frozenset[str]) -> Ints:
        """`Route.reads` of every context."""
        if route.reach == 1:
            return contexts.units * contexts.used
        out = self.facts.out_axes
        units, *ways = np.broadcast_arrays(contexts.units, *(contexts.ways[n] for n in out))
        columns = (each.ravel().tolist() for each in (units, *ways))
        found = [
            route.reads(busy, {n: w for n, w in zip(out, each, strict=True) if w > 1}, axes)
            for busy, *each in zip(*columns, strict=True)
        ]
        return np.array(found, np.int64).reshape(units.shape)

    def _advanced(self, contexts: Contexts, around: Around, moved: _Moved) -> Around:
        """With what this level costs."""
        order = (*around.order, *self.facts.reduce_axes)
        turns = dict(around.turns)
        fill = first = waits = np.zeros(())
        moves: Ints = np.zeros((), np.int64)
        times = contexts.entries
        charge = around.charge
        if self.pricer.measure.ports:
            charge = charge + times * moved.out_trips * moved.drain_charge
        for way in moved.fills:
            loads = _loads(order, way.axes, moved.trips)
            fill = fill + loads * way.one
            first = first + (way.latency_cycles + way.one)
            waits = np.maximum(waits, loads * way.latency_cycles)
            moves = moves + loads
            if self.pricer.measure.ports:
                charge = charge + times * loads * way.charge
            for memory, cycles in way.turns:
                turns[memory] = turns.get(memory, np.zeros(())) + times * loads * cycles
        for memory, cycles in moved.drain_turns:
            taken = times * moved.out_trips * cycles
            turns[memory] = turns.get(memory, np.zeros(())) + taken
        drain = moved.out_trips * moved.last
        waits, double = first + waits, moved.is_double
        hidden, alone = drain, np.zeros(())
        if self.is_alone:
            is_alone = moved.out_trips > 1
            hidden = np.where(is_alone, 0.0, drain)
            alone = np.where(is_alone, times * drain - moved.last, 0.0)
        slowest = np.where(double, times * np.maximum(fill, hidden), 0.0)
        waiting = np.where(double, times * (fill + waits), 0.0)
        exposed = np.where(double, alone, times * (fill + waits + drain)) + moved.last
        leaves = contexts.units * contexts.used * times * (moves + moved.out_trips)
        return Around(
            around.order, np.maximum(slowest, around.slowest), around.exposed + exposed,
            around.waiting + waiting, turns, around.leaves + leaves, charge,
        )  # fmt: skip

    def _score(self, around: Around, compute: Floats, leaves: Ints) -> Floats:
        longest = np.maximum(np.maximum(around.slowest, compute), (around.waiting + compute) / 2)
        cycles = np.maximum(longest, self.pricer.at_home) + around.exposed
        for turning in around.turns.values():
            cycles = np.maximum(cycles, turning)
        measure = self.pricer.measure
        cost = measure.cost(np.floor(cycles * (1 - _SLACK)), around.charge * (1 - _SLACK))
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
        widths = _widths(facts.out, tiles)
        for step, pace in pricer.after:
            box = [np.ones((), np.int64) if d is None else widths[d] for d in step.dim_of_axis]
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
            np.minimum(w, n) for w, n in zip(_widths(operand, tiles), operand.shape, strict=True)
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


def least_cycles(pace: EngineRate, box: Sequence[Ints]) -> Floats:
    """`EngineRate.cycles` of boxes, but for loads and ports of an array."""
    points = all_of(box)
    passing: Floats | float = 0.0
    if pace.streams is not None:
        streams = pace.streams
        inward = sum(
            (all_of(box[i] for i in axes) * size
             for axes, size in streams.reads), start=np.zeros((), np.int64),
        )  # fmt: skip
        outward: Ints = np.zeros((), np.int64)
        if streams.result is not None:
            axes, size = streams.result
            outward = all_of(box[i] for i in axes) * size
            partial: Flags = np.zeros((), np.bool_)
            for i, whole in streams.reduced:
                partial = partial | (box[i] < whole)
            inward = inward + np.where(partial, outward, 0)
        for num_bytes, rate in ((inward, streams.feed), (outward, streams.drain)):
            if rate:
                passing = np.maximum(passing, np.ceil(num_bytes / rate))
    if pace.roles is None:
        plain, special = pace.ops
        cycles = points * plain / pace.speed
        if special:
            cycles = cycles + points * special / pace.special_speed
        return np.asarray(pace.startup_cycles + np.maximum(np.ceil(cycles), passing))
    roles = pace.roles
    m, n, k, b = (
        all_of(box[i] for i in group)
        for group in (roles.rows, roles.columns, roles.depth, roles.batch)
    )
    cells = granule(pace.array, None) if pace.folding is None else pace.folding.cells
    padded = b * _up(m, cells.rows) * _up(n, cells.columns) * _up(k, cells.depth)
    cycles = np.ceil(padded / pace.speed * (1 - _SLACK))
    if pace.folding is not None:
        return np.asarray(pace.startup_cycles + cycles + passing)
    return np.asarray(pace.startup_cycles + np.maximum(cycles, passing))


def burst_arrays(
    extents: Sequence[Ints],
    shape: Sequence[int],
    item_bytes: int,
    pitches: Sequence[Ints],
    align_bytes: int,
    burst: int,
) -> Ints:
    """`machine.bursts.burst_bytes` of many boxes, none of them empty."""
    strides = strides_of(shape, item_bytes)

    def known_of(number: int) -> Ints:
        known: Ints = np.array(align_bytes, np.int64)
        for pitch, stride in zip(pitches[:number], strides[:number], strict=True):
            known = np.gcd(known, pitch * stride)
        return known

    found = _taken(extents, strides, item_bytes, known_of(len(shape)), burst)
    around: list[Ints] = list(extents)
    for d in reversed(range(len(shape))):
        is_cut = around[d] < shape[d]
        if np.any(is_cut):
            around[d] = np.full((), shape[d], np.int64)
            wide = _taken(around, strides, item_bytes, known_of(d), burst)
            found = np.where(is_cut, np.minimum(found, wide), found)
    return found


def _taken(
    extents: Sequence[Ints], strides: Sequence[int], item_bytes: int, pitch: Ints, burst: int
) -> Ints:
    known: Ints = np.gcd(pitch, burst)
    pitches: list[Ints] = []
    for extent, stride in zip(extents, strides, strict=True):
        pitches.append(known)
        known = np.where(extent > 1, np.gcd(known, stride), known)
    span: Ints = np.array(item_bytes, np.int64)
    taken: Ints = -(-(item_bytes + burst - known) // burst) * burst
    for extent, stride, before in zip(
        reversed(extents), reversed(strides), reversed(pitches), strict=True
    ):
        span = span + (extent - 1) * stride
        taken = np.minimum(taken * extent, -(-(span + burst - before) // burst) * burst)
    return taken


def tile_elems(operand: Operand, tiles: Tiles) -> Ints:
    return all_of(_widths(operand, tiles))


def _widths(operand: Operand, tiles: Tiles) -> list[Ints]:
    found: list[Ints] = []
    for terms, extra, (_, most) in zip(operand.linear, operand.extra, operand.limits, strict=True):
        assert terms is not None
        width: Ints = np.ones((), np.int64)
        for name, factor in terms:
            width = width + factor * (tiles[name] - 1)
        found.append(np.minimum(width + extra, most))
    return found


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


def _moving(route: Route, sizes: tuple[Ints, Ints, Ints], sharers: Ints, reads: Ints) -> Floats:
    """Cycles of one transfer."""
    sharers, reads = np.broadcast_arrays(sharers, reads)
    pairs = zip(sharers.ravel().tolist(), reads.ravel().tolist(), strict=True)
    rates = np.array([route.port_rates(*pair) for pair in pairs], np.float64)
    found: Floats = np.array(float(route.issuing[1]))
    for count, passing in enumerate(sizes):
        found = np.maximum(found, passing / rates[:, count].reshape(sharers.shape))
    return found


def _turns(
    route: Route, sizes: tuple[Ints, Ints, Ints], sharers: Ints, reads: Ints
) -> list[tuple[int, Floats]]:
    """(memory, cycles of one transfer) of the ports that serve both directions."""
    found: list[tuple[int, Floats]] = []
    for port in route.shared:
        many = (reads if port.is_source else sharers) * route.team.copies
        waiting = np.maximum(1, -(-many // port.instances))
        found.append((port.memory, sizes[port.size] * waiting / port.rate))
    return found


def all_of(numbers: Iterable[Ints]) -> Ints:
    """Their product."""
    return prod(numbers, start=np.ones((), np.int64))


def _over(value: Ints, divisor: Ints) -> Ints:
    """The quotient, rounded up."""
    return -(-value // divisor)


def _up(value: Ints, multiple: int) -> Ints:
    return -(-value // multiple) * multiple
