"""Cycles expected of many tilings of one operator at once, and cycles that none of them beats.

An estimate orders the mappings that are worth simulating; a bound says what the others could reach
at best.  Only what every version of the clock charges is in a bound: work at the engine's rate,
starts of instructions, and bytes through each port at its full rate; of the home memory behind a
cache only what must cross it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from math import prod
from typing import NamedTuple, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from worker.compiler.cost.compute import pace_of
from worker.compiler.cost.traffic import compulsory_bytes
from worker.compiler.ir.graph import Graph
from worker.compiler.isa.program import PASSED
from worker.compiler.machine.bursts import burst_units, counted_at, sizes_of_tile
from worker.compiler.machine.machine import Engine, Machine, Managed, MemoryLevel
from worker.compiler.tiling.nest.facts import Facts, Operand

Ints: TypeAlias = "npt.NDArray[np.int64]"
Floats: TypeAlias = "npt.NDArray[np.float64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"
Tilings: TypeAlias = Mapping[str, Ints]
"""Per axis one number for each tiling."""


class Copies(StrEnum):
    """How many copies of its buffers a mapping has, where loops move them."""

    ONE = "one copy"
    OPERANDS = "two copies of operands"
    """One of the result."""
    ALL = "two copies"

    def of(self, *, is_result: bool) -> int:
        """Copies of one buffer."""
        return 1 if self is Copies.ONE or (self is Copies.OPERANDS and is_result) else 2


class Batch(NamedTuple):
    """Tilings side by side.  Every table is by axis, every array by tiling."""

    tile: Tilings
    number: Tilings
    """Tiles along the axis."""
    ways: Tilings
    """Cores along the axis; axes that are not split are left out."""
    trips: Tilings
    """Tiles along the axis of the busiest core."""
    cycles: Ints
    """Of one tile on the engine."""

    def __len__(self) -> int:
        return len(next(iter(self.tile.values())))

    @property
    def tiles(self) -> Ints:
        """Instructions that compute, of all cores."""
        return product_of(self.number.values(), len(self))

    @property
    def cores(self) -> Ints:
        return product_of(self.ways.values(), len(self))

    def where(self, kept: Flags | Ints) -> Batch:
        """Some of the tilings."""
        tile, number, ways, trips = (
            {name: numbers[kept] for name, numbers in table.items()}
            for table in (self.tile, self.number, self.ways, self.trips)
        )
        return Batch(tile, number, ways, trips, self.cycles[kept])


def product_of(factors: Iterable[Ints], length: int) -> Ints:
    """The product, one where there are no factors."""
    found: Ints = np.ones(length, dtype=np.int64)
    for factor in factors:
        found = found * factor
    return found


def elements(operand: Operand, tile: Tilings, length: int) -> Ints:
    """Elements of an operand's buffer."""
    widths: list[Ints] = []
    for terms, extra, (_, most) in zip(operand.linear, operand.extra, operand.limits, strict=True):
        width: Ints = np.full(length, 1 + extra, dtype=np.int64)
        for name, coefficient in terms or ():
            width = width + coefficient * (tile[name] - 1)
        widths.append(np.minimum(width, most))
    return product_of(widths, length)


def distinct_rows(
    columns: Sequence[Ints], length: int
) -> tuple[list[tuple[int, ...]], npt.NDArray[np.intp]]:
    """The different rows of a table of `length` rows, and which of them each row is.

    Columns have few different values, so rows are numbered by those: sorting numbers is many times
    as fast as sorting rows.
    """
    numbers = np.zeros(length, np.int64)
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        numbers = numbers * len(values) + place
    _, first, where = np.unique(numbers, return_index=True, return_inverse=True)
    if not columns:
        return [()], where
    return list(zip(*(column[first].tolist() for column in columns), strict=True)), where


class Estimator:
    """Prices the tilings of one operator on one engine that works from one memory."""

    def __init__(
        self, graph: Graph, facts: Facts, engine: Engine, machine: Machine, whole: frozenset[str]
    ) -> None:
        self._graph = graph
        self._facts = facts
        self._engine = engine
        self._machine = machine
        self._home = machine.home
        self._whole = whole
        stays = facts.registers is not None
        self._pace = pace_of(facts.op, engine, facts.tensors, stays=stays, held=facts.held)
        names = machine.route(machine.home.name, engine.memory)
        self._passed: tuple[MemoryLevel, ...] = tuple(machine.level(name) for name in names[1:])
        self._left = facts.registers or self._passed[-1]
        """What results leave."""
        self._latency = max(level.latency_cycles for level in (machine.home, *self._passed))
        assert facts.out is not None
        self._out = facts.out
        self._positions: dict[tuple[str, int, int], int] = {}
        self._stretches: dict[str, dict[tuple[int, ...], list[float]]] = {}
        """Tensor -> tile along its axes -> what passes ports: the searches meet tiles again."""

    def tile_cycles(self, tile: Tilings) -> Ints:
        """Cycles of one instruction for each tile."""
        boxes = zip(*(tile[axis.name].tolist() for axis in self._facts.op.domain), strict=True)
        return np.array([self._pace.cycles(box) for box in boxes], dtype=np.int64)

    def price(self, batch: Batch, order: tuple[str, ...], copies: Copies) -> tuple[Floats, Floats]:
        """(estimates, bounds) of cycles, output loops in this order.

        Cost: a few dozen array operations.
        """
        length, cores = len(batch), batch.cores
        inward: Floats = np.zeros(length)
        brought: Floats = np.zeros((3, length))
        first: Floats = np.zeros(length)
        latency = self._latency * product_of((batch.trips[a] for a in order), length)
        for operand in self._facts.reads:
            size = operand.dtype.size_bytes
            times = self._refetched(operand, batch, order)
            moved = self._covered(operand, batch.tile) * times * size
            inward += moved
            brought += moved * self._stretch(operand, batch.tile, length)
            first += elements(operand, batch.tile, length) * size * cores
        size = self._facts.tensors[self._out.tensor].dtype.size_bytes
        outward = self._covered(self._out, batch.tile) * size
        taken = outward * self._stretch(self._out, batch.tile, length)
        busy, least = self._compute(batch)
        ports = self._rates(cores)
        fill, drain = (brought / ports[0]).max(axis=0), (taken / ports[1]).max(axis=0)
        into, out = (port.min(axis=0) for port in ports)
        turns = self._taking_turns(brought, taken, cores)
        last = elements(self._out, batch.tile, length) * size * cores / out
        match copies:
            case Copies.ALL:
                # Two tiles are on their way at a time, so half of what one takes is not hidden.
                estimate = np.maximum(np.maximum(busy, fill), np.maximum(drain, turns))
                estimate = np.maximum(estimate, (busy + fill + drain) / 2 + latency)
                estimate += first / into + batch.cycles + last
            case Copies.OPERANDS:
                # Sums wait until those before have left their buffer.
                estimate = np.maximum(busy + drain + latency, np.maximum(fill, turns))
                estimate += first / into
            case Copies.ONE:
                estimate = busy + fill + drain + 2 * latency
            case _:
                assert_never(copies)
        # Between mappings alike, the one of fewer instructions.
        estimate += batch.tiles / cores
        bound = np.maximum(least, self._least_moving(inward, outward, cores))
        return np.ceil(estimate), np.floor(bound)

    def _compute(self, batch: Batch) -> tuple[Ints, Floats]:
        """Cycles of the busiest core, and what cores need at least on average."""
        pace = self._pace
        steps = product_of(batch.trips.values(), len(batch))
        if pace.folding is not None or pace.rows is not None or pace.streams is not None:
            least = float(pace.least(tuple(axis.extent for axis in self._facts.op.domain)))
        else:
            work = self._facts.op.num_points
            plain, special = (1, 0) if pace.roles is not None else pace.ops
            least = work * plain / pace.speed
            if special:
                least += work * special / pace.special_speed
        started = batch.tiles * pace.startup_cycles
        return steps * batch.cycles, (started + least) / batch.cores

    def _stretch(self, operand: Operand, tile: Tilings, length: int) -> Floats:
        """[3, tilings] What passes ports that count payload, bursts of home and of caches, of what
        is moved: by a tile of full size."""
        if burst_units(self._machine) == (1, 1):
            return np.ones((3, length))
        axes = sorted(operand.axes)
        rows, where = distinct_rows([tile[name] for name in axes], length)
        known = self._stretches.setdefault(operand.tensor, {})
        for kind in rows:
            if kind in known:
                continue
            one = {**self._facts.extents, **dict(zip(axes, kind, strict=True))}
            widths = operand.widths(one, self._facts.extents)
            item = operand.dtype.size_bytes
            payload = prod(map(min, widths, operand.shape)) * item
            sizes = sizes_of_tile(
                payload, widths, operand.shape, item,
                operand.pitches(one, self._facts.extents), self._machine,
            )  # fmt: skip
            known[kind] = [size / payload for size in sizes]
        return np.array([known[kind] for kind in rows]).T[:, where]

    def _rates(self, cores: Ints) -> tuple[Floats, Floats]:
        """[3, tilings] Bytes per cycle into the engines' memories, all cores together, and out of
        them, through ports that count payload, bursts of home and of caches."""
        inner = self._passed[-1]
        used = np.minimum(cores, inner.instances)
        into, out = np.full((2, 3, len(cores)), np.inf)
        into[0] = used * inner.write_bytes_per_cycle
        out[0] = used * self._left.read_bytes_per_cycle
        for level in (self._home, *self._passed[:-1]):
            at = PASSED.index(counted_at(level, self._machine))
            into[at] = np.minimum(into[at], level.read_bytes_per_cycle * level.instances)
            out[at] = np.minimum(out[at], level.write_bytes_per_cycle * level.instances)
        return into, out

    def _taking_turns(self, inward: Floats, outward: Floats, cores: Ints) -> Floats:
        """Cycles of the busiest port of both directions, which fills and drains share; 0 if none.

        Bytes that pass a cache take its one port both ways; it is no end of a transfer.
        """
        inner = self._passed[-1]
        used = np.minimum(cores, inner.instances)
        turns: Floats = np.zeros(len(cores))
        for level, there, back, instances in (
            (self._home, inward, outward, np.full(len(cores), self._home.instances)),
            (inner, outward if self._left is inner else np.zeros_like(outward), inward, used),
        ):
            if level.half_duplex:
                at = PASSED.index(counted_at(level, self._machine))
                reading = there[at] / (level.read_bytes_per_cycle * instances)
                writing = back[at] / (level.write_bytes_per_cycle * instances)
                turns = np.maximum(turns, reading + writing)
        return turns

    def _least_moving(self, inward: Floats, outward: Floats, cores: Ints) -> Floats:
        """Cycles of the busiest port, if a cache between catches all that can be caught."""
        inner = self._passed[-1]
        used = np.minimum(cores, inner.instances)
        leaving = outward / (used * self._left.read_bytes_per_cycle)
        coming = inward / (used * inner.write_bytes_per_cycle)
        if self._left is inner:
            least = _port_cycles(inner, leaving, coming)
        else:
            least = np.maximum(leaving, coming)
        read: Floats = inward
        written: Floats = outward
        for level in (*reversed(self._passed[:-1]), self._home):
            reading = read / (level.read_bytes_per_cycle * level.instances)
            writing = written / (level.write_bytes_per_cycle * level.instances)
            least = np.maximum(least, _port_cycles(level, reading, writing))
            if level.managed is Managed.CACHE:
                once = compulsory_bytes(self._graph)
                read, written = (np.full(len(cores), float(size)) for size in once)
        return least

    def _refetched(self, operand: Operand, batch: Batch, order: tuple[str, ...]) -> Floats:
        """How often each element is brought in: by every core that needs it, and again in every
        step of a loop outside of the last one that the operand depends on."""
        loops = (*order, *self._facts.reduce_axes)
        length = len(batch)
        innermost: Ints = np.full(length, -1)
        for depth, name in enumerate(loops):
            if name in operand.axes:
                innermost = np.where(batch.trips[name] > 1, depth, innermost)
        times: Floats = np.ones(length)
        for name in self._facts.extents:
            if name in operand.axes:
                continue
            if name in batch.ways:
                times = times * -(-batch.number[name] // batch.trips[name])
            if name in loops:
                times = times * np.where(loops.index(name) < innermost, batch.trips[name], 1)
        return times

    def _covered(self, operand: Operand, tile: Tilings) -> Floats:
        """Elements of all its tiles, halos as often as they are fetched."""
        total: Floats = np.ones(len(next(iter(tile.values()))))
        for dim, index in enumerate(operand.index):
            cut = [name for name in index.variables() if name not in self._whole]
            assert len(cut) <= 1, "one axis of a dimension is cut at most"
            if not cut:
                total = total * self._along(operand, dim, None, 1)
                continue
            sizes, where = np.unique(tile[cut[0]], return_inverse=True)
            sums = [self._along(operand, dim, cut[0], size) for size in sizes.tolist()]
            total = total * np.array(sums, dtype=np.float64)[where.ravel()]
        return total

    def _along(self, operand: Operand, dim: int, cut: str | None, tile: int) -> int:
        """Positions of one dimension inside the tensor, summed over the tiles of an axis."""
        key = (operand.tensor, dim, tile)
        if key not in self._positions:
            self._positions[key] = self._counted(operand, dim, cut, tile)
        return self._positions[key]

    def _counted(self, operand: Operand, dim: int, cut: str | None, tile: int) -> int:
        extents, index = self._facts.extents, operand.index[dim]
        begin: Ints = np.arange(0, 1 if cut is None else extents[cut], tile)
        low: Ints = np.full(len(begin), index.const)
        high = low
        for name in index.variables():
            first, last = (
                (begin, np.minimum(begin + tile, extents[name]) - 1)
                if name == cut
                else (0 * begin, 0 * begin + extents[name] - 1)
            )
            low = low + index.coeff(name) * first
            high = high + index.coeff(name) * last
        highest = operand.shape[dim] - 1
        width = np.minimum(high + operand.extra[dim], highest) - np.maximum(low, 0) + 1
        return int(np.maximum(width, 0).sum())


def _port_cycles(level: MemoryLevel, reading: Floats, writing: Floats) -> Floats:
    """`MemoryLevel.port_cycles` of many at once."""
    both: Floats = reading + writing if level.half_duplex else np.maximum(reading, writing)
    return both
