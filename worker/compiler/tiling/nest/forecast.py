"""What many tilings of one layer are predicted to cost, as arrays.

The same model as `price.predict`, one array element per tiling; a test holds them against each
other.  A few hundred array operations replace a thousand predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.cost.compute import engine_cycles_of
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.tiling.nest.facts import Facts, Operand
from worker.compiler.tiling.nest.plan import Team, comes_early, source_of
from worker.compiler.tiling.nest.price import home_cycles
from worker.compiler.tiling.nest.tilings import Ints, Tilings, strips, widths

Reals: TypeAlias = "npt.NDArray[np.float64]"


class Forecast:
    """Many tilings of one layer, priced for one order of loops after the other.

    Only how often operands are filled depends on the order; the rest is worked out once.
    Cost: a few array operations per operand and axis.
    """

    def __init__(
        self, facts: Facts, engine: Engine, levels: Sequence[Tilings], machine: Machine
    ) -> None:
        innermost = levels[-1]
        one = np.ones_like(innermost.units_used)
        entries, busy, results, self._leaves = one, one, one, one * 0
        number = strips(facts, innermost.tile)[1]
        self._reduce_axes = facts.reduce_axes
        self._none = np.zeros(len(one))
        self._moves: list[_Moves] = []
        for k, level in enumerate(levels):
            out_trips = _product(level, facts.out_axes, one)
            drain, last = _drain(facts, levels, k, machine, busy, out_trips)
            double = one > 1
            for copies in level.copies.values():
                double = double | (copies > 1)
            used = busy * level.units_used
            fills = _fills(facts, levels, k, machine, used)
            self._moves.append(
                _Moves(level, fills, drain, last, double, entries, entries * used, out_trips)
            )
            results = entries * out_trips * number
            entries = entries * _product(level, (*facts.out_axes, *facts.reduce_axes), one)
            busy = used
        extents = tuple(innermost.tile[a.name] for a in facts.op.domain)
        one_tile = engine_cycles_of(facts.op, extents, engine, facts.tensors)
        compute = (entries * one_tile).astype(np.float64)
        if facts.epilogue:
            compute = _fused(facts, engine, compute, results, innermost)
            self._leaves = self._leaves + results * busy * len(facts.epilogue)
        self._leaves = self._leaves + entries * busy
        self._compute: Reals = compute
        self._at_home = home_cycles(facts, machine, levels[-1].stage.team)

    def of(self, order: tuple[str, ...]) -> tuple[Ints, Ints]:
        """(cycles, executed leaves) per tiling, output loops in `order`: see `price.predict`."""
        loops = (*order, *self._reduce_axes)
        slowest = exposed = waiting = self._none
        leaves = self._leaves
        for level in self._moves:
            fill = _filled(level, loops, self._none)
            entries, drain, double = level.entries, level.drain, level.double
            slowest = np.where(
                double,
                np.maximum(slowest, entries * np.maximum(fill.all, drain)),
                np.maximum(slowest, entries * fill.early),
            )
            waiting = waiting + np.where(double, entries * (fill.all + fill.waits), 0.0)
            alone = entries * (fill.all - fill.early + fill.waits + drain)
            exposed = exposed + np.where(double, 0.0, alone) + level.last
            leaves = leaves + level.runs * (fill.moves + level.out_trips)
        paired = (waiting + self._compute) / 2
        longest = np.maximum(np.maximum(slowest, self._compute), np.maximum(self._at_home, paired))
        return (longest + exposed).astype(np.int64), leaves


def _product(level: Tilings, names: Sequence[str], one: Ints) -> Ints:
    for name in names:
        one = one * level.trips[name]
    return one


def _loads(level: Tilings, operand: Operand, loops: Sequence[str]) -> Ints:
    """How often a Place is filled: all loops up to the last one that its box depends on."""
    running = found = np.ones_like(level.units_used)
    for name in loops:
        running = running * level.trips[name]
        if name in operand.axes:
            found = np.where(level.trips[name] > 1, running, found)
    return found


def _path(machine: Machine, src: str, dst: str, sharers: Ints, team: Team) -> tuple[Reals, int]:
    route = machine.route(src, dst)
    readers = sharers * team.copies
    slowest = np.full(len(sharers), np.inf)
    for k, name in enumerate(route):
        level = machine.level(name)
        rate = level.write_bytes_per_cycle if k + 1 == len(route) else level.read_bytes_per_cycle
        pulling = np.maximum(1, -(-readers // team.instances(level)))
        slowest = np.minimum(slowest, rate / pulling)
    return np.maximum(slowest, 1e-9), max(machine.level(n).latency_cycles for n in route)


@dataclass(frozen=True, slots=True)
class _Fill:
    """Cycles of all fills, exposed ones, of those that may start early; number of fills."""

    all: Reals
    waits: Reals
    early: Reals
    moves: Ints


class _Way(NamedTuple):
    """How one operand comes to a level."""

    operand: Operand
    source: str
    size: Ints
    rate: Reals
    latency: int
    first: Reals
    """Cycles of one fill."""
    is_early: bool
    is_double: npt.NDArray[np.bool_]


class _Moves(NamedTuple):
    """What one level moves, whatever the order of loops."""

    level: Tilings
    fills: tuple[_Way, ...]
    drain: Reals
    last: Reals
    double: npt.NDArray[np.bool_]
    entries: Ints
    runs: Ints
    """Entries of all units that are busy."""
    out_trips: Ints


def _fills(
    facts: Facts, levels: Sequence[Tilings], k: int, machine: Machine, users: Ints
) -> tuple[_Way, ...]:
    level, stages = levels[k], tuple(each.stage for each in levels)
    stage = level.stage
    paths: dict[str, tuple[Reals, int]] = {}
    found: list[_Way] = []
    for operand in facts.fetched:
        if operand.tensor not in level.elems:
            continue
        source = source_of(facts, operand.tensor, stages, k, machine.home.name)
        if source not in paths:
            paths[source] = _path(machine, source, stage.level.name, users, stage.team)
        rate, latency = paths[source]
        size = level.elems[operand.tensor] * operand.dtype.size_bytes
        found.append(
            _Way(
                operand, source, size, rate, latency, latency + size / rate,
                comes_early(facts, operand.tensor, stages, k, machine),
                level.copies[operand.tensor] > 1,
            )
        )  # fmt: skip
    return tuple(found)


def _filled(moves: _Moves, loops: Sequence[str], none: Reals) -> _Fill:
    busy_time: dict[str, Reals] = {}
    first = early = none
    waits = number = np.zeros_like(moves.entries)
    for way in moves.fills:
        loads = _loads(moves.level, way.operand, loops)
        time = loads * way.size / way.rate
        busy_time[way.source] = busy_time.get(way.source, none) + time
        if way.is_early:
            ahead = (loads == 1) | way.is_double
            early = early + np.where(ahead, time, 0.0)
            first = first + np.where(ahead, 0.0, way.first)
        else:
            first = first + way.first
        number = number + loads
        waits = np.maximum(waits, loads * way.latency)
    return _Fill(sum(busy_time.values(), none), first + waits, early, number)


def _drain(
    facts: Facts,
    levels: Sequence[Tilings],
    k: int,
    machine: Machine,
    busy: Ints,
    trips: Ints,
) -> tuple[Reals, Reals]:
    level, stages = levels[k], tuple(each.stage for each in levels)
    none = np.zeros(len(busy))
    stored = facts.stored
    if stored is None or stored.tensor not in level.elems:
        return none, none
    target = source_of(facts, stored.tensor, stages, k, machine.home.name)
    memory = level.stage.level.name
    if target == memory:
        return none, none
    rate, latency = _path(machine, memory, target, busy * level.units_used, level.stage.team)
    size = level.elems[stored.tensor] * facts.tensors[stored.tensor].dtype.size_bytes
    one: Reals = latency + size / rate
    return trips * one, one


def _fused(facts: Facts, engine: Engine, anchor: Reals, results: Ints, level: Tilings) -> Reals:
    """Cycles of all engines of a core: side by side if the accumulators have a second copy."""
    busy = {engine.name: anchor}
    along, number = strips(facts, level.tile)
    for step in facts.epilogue:
        whole = widths(step.out, level.tile, facts.extents)
        part = [np.where(along == dim, w // number, w) for dim, w in enumerate(whole)]
        one = np.ones_like(results)
        extents = tuple(one if dim is None else part[dim] for dim in step.dim_of_axis)
        cycles = engine_cycles_of(step.op, extents, step.engine, facts.tensors)
        before = busy.get(step.engine.name, np.zeros(len(one)))
        busy[step.engine.name] = before + results * cycles
    assert facts.out is not None
    times = np.stack(list(busy.values()))
    is_beside = level.copies[facts.out.tensor] > 1
    found: Reals = np.where(is_beside, times.max(axis=0), times.sum(axis=0))
    return found
