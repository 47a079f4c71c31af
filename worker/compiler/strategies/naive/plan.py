"""A tiling of one operator over memory levels, what it needs, and what it is predicted to cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from worker.compiler.cost.compute import engine_cycles
from worker.compiler.machine.machine import Engine, Machine, MemoryLevel
from worker.compiler.strategies.naive.facts import Facts, Operand
from worker.compiler.tiling.align import buffer_bytes


@dataclass(frozen=True, slots=True)
class Stage:
    """One placed level with the units (clusters, then cores) its instances split work over."""

    level: MemoryLevel
    source: str
    """Where its operands come from: the stage before, or home."""
    units: int
    """How many ways the work may be split here."""
    stride: int
    """Distance in core ids between two units."""
    sharers: int
    """Private buffers per instance when all units are busy."""


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """Tiles at one stage.  Mappings are by axis name."""

    stage: Stage
    tile: Mapping[str, int]
    counts: Mapping[str, int]
    """Tiles per axis inside the tile of the stage before (or the domain)."""
    splits: Mapping[str, int]
    """Ways each output axis is split over units."""
    trips: Mapping[str, int]
    """Iterations left to each unit per axis."""
    order: tuple[str, ...]
    """Looped output axes outermost first, then looped REDUCE axes."""
    num_out_loops: int
    copies: Mapping[str, int]
    """Copies per placed tensor."""
    elems: Mapping[str, int]
    """Elements of one copy, per placed tensor."""

    @property
    def units_used(self) -> int:
        return prod(self.splits.values())

    def depth(self, operand: Operand) -> int:
        """Number of loops of `order` outside the operand's Place: up to the last it depends on."""
        found = 0
        for k, name in enumerate(self.order):
            if name in operand.axes:
                found = k + 1
        return found

    def loads(self, operand: Operand) -> int:
        """How often its Place is filled each time this level is entered, per unit."""
        return prod(self.trips[name] for name in self.order[: self.depth(operand)])


@dataclass(frozen=True, slots=True)
class Plan:
    """Tiles at every stage, outer to inner, with the prediction."""

    facts: Facts
    engine: Engine
    levels: tuple[LevelPlan, ...]
    predicted_cycles: int
    num_leaves: int


def stages_of(machine: Machine, memories: tuple[MemoryLevel, ...]) -> tuple[Stage, ...]:
    """How work is split over the instances of `memories` (outer to inner)."""
    stages: list[Stage] = []
    source = machine.home.name
    done = 1
    for k, level in enumerate(memories):
        is_last = k == len(memories) - 1
        total = machine.num_cores if is_last else max(done, level.instances)
        total = max(total, done)
        units = total // done
        sharers = max(1, total // max(level.instances, 1))
        stages.append(Stage(level, source, units, machine.num_cores // total, sharers))
        source, done = level.name, total
    return tuple(stages)


def footprint_terms(
    facts: Facts,
    stage: Stage,
    tile: Mapping[str, int],
    copies: Mapping[str, int],
    *,
    is_last: bool = True,
) -> tuple[tuple[str, int], ...]:
    """(tensor, bytes) of every buffer at one stage, largest first."""
    terms = []
    for operand in (*facts.fetched, *facts.made(is_last=is_last)):
        extents = facts.placed_widths(operand, tile, is_last=is_last)
        size = buffer_bytes(extents, operand.dtype, stage.level, copies.get(operand.tensor, 1))
        terms.append((operand.tensor, size))
    return tuple(sorted(terms, key=lambda term: (-term[1], term[0])))


def predict(
    facts: Facts, engine: Engine, levels: tuple[LevelPlan, ...], machine: Machine
) -> tuple[int, int]:
    """(cycles, executed leaves) of a plan.

    Per level the slowest of computing, filling and draining counts, plus the first fill and the
    last drain, which nothing hides.  Bandwidth of a shared source is divided by its busy readers.
    """
    innermost = levels[-1].tile
    entries = results = 1
    strips = facts.strips(innermost)[1]
    busy = 1
    leaves = 0
    slowest = 0.0
    exposed = 0.0
    waiting = 0.0
    for plan in levels:
        inner = prod(plan.trips[name] for name in plan.order)
        out_trips = prod(plan.trips[name] for name in plan.order[: plan.num_out_loops])
        split = plan.units_used
        fill, waits, moves = _fill(facts, plan, machine, busy, split)
        drain, last = _drain(facts, plan, machine, busy, split, out_trips)
        if any(c > 1 for c in plan.copies.values()):
            slowest = max(slowest, entries * fill, entries * drain)
            waiting += entries * (fill + waits)
        else:
            exposed += entries * (fill + waits + drain)
        exposed += last
        leaves += entries * busy * split * (moves + out_trips)
        results = entries * out_trips * strips
        entries *= inner
        busy *= split
    extents = tuple(innermost[a.name] for a in facts.op.domain)
    compute: float = entries * engine_cycles(facts.op, extents, engine, facts.tensors)
    if facts.epilogue:
        compute = _fused_cycles(facts, engine, compute, results, levels[-1])
        leaves += results * busy * len(facts.epilogue)
    at_home = _home_cycles(facts, machine)
    leaves += entries * busy
    # Two copies: while one is computed on the other is on its way, so a pair of steps takes at
    # least one load with its latency and one computation.
    paired = (waiting + compute) / 2
    return int(max(slowest, compute, at_home, paired) + exposed), leaves


def _fused_cycles(
    facts: Facts, engine: Engine, anchor: float, results: int, plan: LevelPlan
) -> float:
    """Cycles of all engines of a core: side by side if the accumulators have a second copy."""
    busy = {engine.name: anchor}
    for step in facts.epilogue:
        widths = list(step.out.widths(plan.tile, facts.extents))
        if widths:
            along, number = facts.strips(plan.tile)
            widths[along] //= number
        extents = tuple(1 if dim is None else widths[dim] for dim in step.dim_of_axis)
        one = engine_cycles(step.op, extents, step.engine, facts.tensors)
        busy[step.engine.name] = busy.get(step.engine.name, 0.0) + results * one
    assert facts.out is not None
    if plan.copies[facts.out.tensor] > 1:
        return max(busy.values())
    return sum(busy.values())


def _path(machine: Machine, src: str, dst: str, sharers: int) -> tuple[float, int]:
    """(bytes per cycle, latency) of one destination when `sharers` of them pull at once."""
    route = machine.route(src, dst)
    rates = []
    for name in route[:-1]:
        level = machine.level(name)
        rates.append(level.read_bytes_per_cycle / max(1, -(-sharers // max(1, level.instances))))
    last = machine.level(route[-1])
    rates.append(last.write_bytes_per_cycle / max(1, -(-sharers // max(1, last.instances))))
    return max(min(rates), 1e-9), max(machine.level(n).latency_cycles for n in route)


def _fill(
    facts: Facts, plan: LevelPlan, machine: Machine, busy: int, split: int
) -> tuple[float, float, int]:
    rate, latency = _path(machine, plan.stage.source, plan.stage.level.name, busy * split)
    total = first = 0.0
    moves = steps = 0
    for operand in facts.fetched:
        size = plan.elems[operand.tensor] * operand.dtype.size_bytes
        loads = plan.loads(operand)
        one = latency + size / rate
        total += loads * (one - latency)
        first += one
        moves += loads
        steps = max(steps, loads)
    # Loads of different operands are in flight together: a step waits for the latency once.
    return total, first + steps * latency, moves


def _drain(
    facts: Facts, plan: LevelPlan, machine: Machine, busy: int, split: int, trips: int
) -> tuple[float, float]:
    stored = facts.stored
    if stored is None:
        return 0.0, 0.0
    rate, latency = _path(machine, plan.stage.level.name, plan.stage.source, busy * split)
    size = plan.elems[stored.tensor]
    one = latency + size * facts.tensors[stored.tensor].dtype.size_bytes / rate
    return trips * one, one


def _home_cycles(facts: Facts, machine: Machine) -> float:
    """Time of operands read or written in place at home: every point touches one element."""
    sizes = [facts.tensors[facts.op.reads[k].tensor].dtype.size_bytes for k in facts.at_home]
    if facts.out is None:
        sizes.append(facts.tensors[facts.op.write.tensor].dtype.size_bytes)
    return facts.op.num_points * sum(sizes) / machine.home.read_bytes_per_cycle
