"""Predicted cycles of a row chain on one of its cores, from what one tile needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod

from worker.compiler.cost.compute import engine_cycles
from worker.compiler.cost.feeds import feeds_of
from worker.compiler.cost.streams import HeldAs
from worker.compiler.ir.op import Tensor
from worker.compiler.isa.program import PASSED
from worker.compiler.machine.bursts import (
    Sizes,
    counted_at,
    pitch_of,
    sizes_of_tile,
)
from worker.compiler.machine.dma import dma_engine, issuing_rate
from worker.compiler.machine.engine_ports import shared_memory, taken_cycles
from worker.compiler.machine.links import crossing_of, num_ports_of
from worker.compiler.machine.machine import Engine, Machine, MemoryLevel
from worker.compiler.tiling.chain.cut import Cut, Held


@dataclass(frozen=True, slots=True)
class Flow:
    """A tensor that is fetched from, or stored to, a memory, tile by tile."""

    held: Held
    memory: str
    sizes: Sizes
    """Of one tile."""

    @staticmethod
    def of(held: Held, memory: str, tensor: Tensor, machine: Machine) -> Flow:
        """At home, rows of the tensor are moved in whole bursts."""
        item = tensor.dtype.size_bytes
        payload = prod(span.extent for span in held.box) * item
        if memory != machine.home.name:
            return Flow(held, memory, Sizes(payload, payload, payload))
        extents = [span.extent for span in held.box]
        pitches = [pitch_of(span.start) for span in held.box]
        sizes = sizes_of_tile(payload, extents, tensor.shape, item, pitches, machine)
        return Flow(held, memory, sizes)


@dataclass(frozen=True, slots=True)
class Busy:
    """Cores at work: `groups` groups, each of `cores` neighbouring ones."""

    cores: int
    groups: int

    def sharers(self, level: MemoryLevel, machine: Machine) -> int:
        """How many of them share one instance of a level."""
        attached = max(1, machine.num_cores // level.instances)
        return min(self.cores, attached) * -(-self.groups // level.instances)


@dataclass(frozen=True, slots=True)
class Timing:
    """What one tile costs, whatever the split."""

    computes: tuple[tuple[tuple[int, ...], int], ...]
    """Per operator: row axes it moves with, cycles of one instruction."""
    home_bytes: tuple[tuple[tuple[int, ...], int], ...]
    """Per operator that reads tables at home: row axes, bytes of one instruction."""
    fetched: tuple[Flow, ...]
    stored: tuple[Flow, ...]
    at_ports: tuple[tuple[tuple[int, ...], MemoryLevel, tuple[int, int]], ...] = ()
    """Per operator whose engine shares its memory's ports with transfers: row axes, the memory,
    cycles of one instruction at its read and at its write port."""


def timing_of(
    cut: Cut,
    engines: Mapping[str, Engine],
    tensors: Mapping[str, Tensor],
    flows: tuple[tuple[Flow, ...], tuple[Flow, ...]],
    held: HeldAs,
    machine: Machine,
) -> Timing:
    """Measure the instructions of one tile.  Cost: linear in the chain.

    `held`: in what types tensors stand in the local buffer.
    """
    computes: list[tuple[tuple[int, ...], int]] = []
    tables: list[tuple[tuple[int, ...], int]] = []
    ports: list[tuple[tuple[int, ...], MemoryLevel, tuple[int, int]]] = []
    for part in cut.ops:
        extents = tuple(
            min(span.extent, axis.extent)
            for span, axis in zip(part.box, part.op.domain, strict=True)
        )
        engine = engines[part.op.name]
        cycles = engine_cycles(part.op, extents, engine, tensors, held=held)
        memory = shared_memory(engine, machine)
        if memory is not None:
            moved = feeds_of(part.op, engine, tensors, held=held).of(extents)
            taken = taken_cycles(memory, *moved)
            ports.append((part.rows, memory, taken))
            cycles = max(cycles, int(memory.port_cycles(*taken)))
        computes.append((part.rows, cycles))
        size = sum(
            tensors[a.tensor].dtype.size_bytes for a in part.op.reads if a.tensor in cut.at_home
        )
        if size:
            tables.append((part.rows, prod(extents) * size))
    return Timing(tuple(computes), tuple(tables), *flows, tuple(ports))


def predict(
    timing: Timing,
    trips: tuple[int, ...],
    busy: Busy,
    memory: str,
    machine: Machine,
    *,
    overlaps: bool,
) -> tuple[float, int]:
    """(cycles, instructions of one core) when `busy` cores work at once.

    With double buffers the slowest of computing, fetching, storing and both on a port that they
    share counts, plus the first fetch and the last store, which nothing hides; without, they add
    up.  The engines of a core work on one tile one after the other, since what lies between them
    has one copy.
    """
    compute = float(sum(_times(rows, trips) * cycles for rows, cycles in timing.computes))
    leaves = sum(_times(rows, trips) for rows, _ in timing.computes)
    rate = machine.home.read_bytes_per_cycle / (busy.cores * busy.groups)
    compute += sum(_times(rows, trips) * size / rate for rows, size in timing.home_bytes)
    sums: list[float] = []
    first: list[float] = []
    waits = 0.0
    turns: dict[tuple[str, str], float] = {}
    """Cycles of ports that serve both directions, or engines, by level and direction (of both:
    none)."""
    for rows, level, taken in timing.at_ports:
        for end, at_port in zip(("read", "write"), taken, strict=True):
            key = level.name, "" if level.half_duplex else end
            spent = float(_times(rows, trips) * at_port * busy.sharers(level, machine))
            turns[key] = turns.get(key, 0.0) + spent
    for flows, inward in ((timing.fetched, True), (timing.stored, False)):
        total = once = 0.0
        paths: dict[str, Path] = {}
        for flow in flows:
            if flow.memory not in paths:
                ends = (flow.memory, memory) if inward else (memory, flow.memory)
                paths[flow.memory] = path(machine, *ends, busy)
            way = paths[flow.memory]
            passing = way.cycles(flow.sizes)
            times = _times(flow.held.rows, trips)
            leaves += times
            total += times * max(passing, way.setup_cycles)
            for name, is_read in ((flow.memory, inward), (memory, not inward)):
                level = machine.level(name)
                if level.half_duplex or level.serves_engines:
                    key = name, "" if level.half_duplex else "read" if is_read else "write"
                    port = level.read_bytes_per_cycle if is_read else level.write_bytes_per_cycle
                    size = flow.sizes[PASSED.index(counted_at(level, machine))]
                    spent = times * size * busy.sharers(level, machine) / port
                    turns[key] = turns.get(key, 0.0) + spent
            once = max(once, way.latency_cycles) + passing
            waits = max(waits, float(times * way.latency_cycles))
        sums.append(total)
        first.append(once)
    if not overlaps or prod(trips) == 1:
        return compute + sum(sums) + waits * 2, leaves
    # Two copies: a pair of steps takes at least one load with its latency and one computation.
    paired = (waits + sums[0] + compute) / 2
    # First fetch and last store are among what a port of both directions takes one by one.
    in_turns = max(turns.values(), default=0.0)
    return max(max(compute, *sums, paired) + sum(first), in_turns), leaves


def _times(rows: tuple[int, ...], trips: tuple[int, ...]) -> int:
    """How often one core does what moves with `rows`: once per iteration of the loops around."""
    for k in reversed(rows):
        if trips[k] > 1:
            return prod(trips[: k + 1])
    return 1


@dataclass(frozen=True, slots=True)
class Path:
    """A way of one core's transfers when others move there, too."""

    rates: tuple[float, ...]
    """Bytes per cycle of the slowest port that passes each of `Sizes`."""
    latency_cycles: int
    """To who waits."""
    setup_cycles: int
    """Of its engine at least."""

    def cycles(self, sizes: Sizes) -> float:
        return max(size / rate for size, rate in zip(sizes, self.rates, strict=True))


def path(machine: Machine, src: str, dst: str, busy: Busy) -> Path:
    """The way from `src` to `dst` when `busy` cores move there at once."""
    route = machine.route(src, dst)
    latency = max(machine.level(n).latency_cycles for n in route)
    is_outward = machine.level_index(src) > machine.level_index(dst)
    engine = dma_engine(machine, src if is_outward else dst, outward=is_outward)
    crossing = crossing_of(machine, src, dst)
    if crossing is not None:
        latency += crossing.latency_cycles
    rates = [issuing_rate(engine, latency), inf, inf]
    if crossing is not None:
        asking = min(busy.cores * busy.groups, len(crossing.crowds) - 1)
        crowd = max(1, crossing.crowds[asking])
        rates[0] = min(rates[0], crossing.link.bytes_per_cycle / crowd)
    for k, name in enumerate(route):
        level = machine.level(name)
        is_last = k == len(route) - 1
        rate = level.write_bytes_per_cycle if is_last else level.read_bytes_per_cycle
        count = PASSED.index(counted_at(level, machine))
        if crossing is not None and (many := num_ports_of(level, machine)) > level.instances:
            rates[count] = min(rates[count], rate / many / crowd)
        else:
            rates[count] = min(rates[count], rate / busy.sharers(level, machine))
    waits = latency + engine.setup_cycles + machine.engine_signal_cycles
    return Path(tuple(max(rate, 1e-9) for rate in rates), waits, engine.setup_cycles)
