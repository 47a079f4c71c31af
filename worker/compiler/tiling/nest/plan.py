"""A tiling of one operator over memory levels, what it needs, and what it is predicted to cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from worker.compiler.cost.compute import engine_cycles
from worker.compiler.machine.machine import Engine, Machine, MemoryLevel
from worker.compiler.tiling.align import buffer_bytes
from worker.compiler.tiling.nest.facts import Facts, Operand


@dataclass(frozen=True, slots=True)
class Team:
    """The cores that run a nest together, and how many such teams work at the same time."""

    cores: int
    copies: int
    """Teams with work of the same shape, each on its own cores."""
    of: int
    """Teams the machine has: cores * of = all its cores."""

    @staticmethod
    def everyone(machine: Machine) -> Team:
        return Team(machine.num_cores, 1, 1)

    def instances(self, level: MemoryLevel) -> int:
        """Instances of `level` that the working teams are attached to."""
        return max(1, level.instances * self.copies // self.of)


@dataclass(frozen=True, slots=True)
class Stage:
    """One placed level with the units (clusters, then cores) its instances split work over."""

    level: MemoryLevel
    inside: frozenset[str]
    """Names of this level and the faster ones: what lives there is not placed here again."""
    capacity_bytes: int
    """What all buffers of the nest may take of one instance."""
    team: Team
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


def stages_of(
    machine: Machine,
    memories: tuple[MemoryLevel, ...],
    team: Team | None = None,
    limits: Mapping[str, int] | None = None,
) -> tuple[Stage, ...]:
    """How a team's work is split over the instances of `memories` (outer to inner).

    `limits`: bytes of one instance that are left to the nest, for levels it does not have alone.
    """
    team = team or Team.everyone(machine)
    stages: list[Stage] = []
    done = 1
    for k, level in enumerate(memories):
        is_last = k == len(memories) - 1
        own = max(1, level.instances // team.of)
        total = team.cores if is_last else max(done, own)
        total = max(total, done)
        units = total // done
        sharers = max(1, total // own)
        inside = frozenset(m.name for m in machine.levels[machine.level_index(level.name) :])
        room = min(level.usable_bytes, (limits or {}).get(level.name, level.usable_bytes))
        stages.append(Stage(level, inside, room, team, units, team.cores // total, sharers))
        done = total
    return tuple(stages)


def is_placed(base: str, stage: Stage) -> bool:
    """Whether an operand that lives in `base` gets a place of its own at `stage`.

    Not where it lives already, nor further out.
    """
    return base not in stage.inside


def placed_at(facts: Facts, stage: Stage, *, is_last: bool) -> tuple[Operand, ...]:
    """Operands that have a place at a stage, reads first."""
    made = facts.made(is_last=is_last)
    kept = [o for o in made[:-1] if is_last] + [
        o for o in made[-1:] if is_placed(facts.base.get(o.tensor, ""), stage)
    ]
    rims = facts.rims if is_last else frozenset()
    fetched = [
        o for o in facts.fetched
        if is_placed(facts.base.get(o.tensor, ""), stage) or o.tensor in rims
    ]  # fmt: skip
    return (*fetched, *kept)


def source_of(facts: Facts, tensor: str, stages: Sequence[Stage], k: int, home: str) -> str:
    """Memory that stage `k` takes an operand from, or brings a result to."""
    base = facts.base.get(tensor, home)
    for stage in reversed(stages[:k]):
        if is_placed(base, stage):
            return stage.level.name
    return base


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
    for operand in placed_at(facts, stage, is_last=is_last):
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
    for k, plan in enumerate(levels):
        inner = prod(plan.trips[name] for name in plan.order)
        out_trips = prod(plan.trips[name] for name in plan.order[: plan.num_out_loops])
        split = plan.units_used
        fill, waits, moves, early = _fill(facts, levels, k, machine, busy)
        drain, last = _drain(facts, levels, k, machine, busy, out_trips)
        if any(c > 1 for c in plan.copies.values()):
            slowest = max(slowest, entries * fill, entries * drain)
            waiting += entries * (fill + waits)
        else:
            slowest = max(slowest, entries * early)
            exposed += entries * (fill - early + waits + drain)
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
    at_home = home_cycles(facts, machine, levels[-1].stage.team)
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


def _path(machine: Machine, src: str, dst: str, sharers: int, team: Team) -> tuple[float, int]:
    """(bytes per cycle, latency) of one destination when `sharers` per team pull at once."""
    route = machine.route(src, dst)
    readers = sharers * team.copies
    rates = []
    for name in route[:-1]:
        level = machine.level(name)
        rates.append(level.read_bytes_per_cycle / max(1, -(-readers // team.instances(level))))
    last = machine.level(route[-1])
    rates.append(last.write_bytes_per_cycle / max(1, -(-readers // team.instances(last))))
    return max(min(rates), 1e-9), max(machine.level(n).latency_cycles for n in route)


def _fill(
    facts: Facts, levels: Sequence[LevelPlan], k: int, machine: Machine, busy: int
) -> tuple[float, float, int, float]:
    """(cycles of all fills, exposed cycles, moves, cycles of fills that may start early)."""
    plan, stages = levels[k], tuple(level.stage for level in levels)
    stage = plan.stage
    busy_time: dict[str, float] = {}
    first = early = 0.0
    waits = 0
    moves = 0
    for operand in facts.fetched:
        if operand.tensor not in plan.elems:
            continue
        source = source_of(facts, operand.tensor, stages, k, machine.home.name)
        rate, latency = _path(machine, source, stage.level.name, busy * plan.units_used, stage.team)
        size = plan.elems[operand.tensor] * operand.dtype.size_bytes
        loads = plan.loads(operand)
        busy_time[source] = busy_time.get(source, 0.0) + loads * size / rate
        if operand.tensor in facts.early and (loads == 1 or plan.copies[operand.tensor] > 1):
            early += loads * size / rate
        else:
            first += latency + size / rate
        moves += loads
        waits = max(waits, loads * latency)
    # Loads of different operands are in flight together: a step waits for the latency once.
    # One engine brings them all, so sources do not add their rates up.
    return sum(busy_time.values()), first + waits, moves, early


def _drain(
    facts: Facts, levels: Sequence[LevelPlan], k: int, machine: Machine, busy: int, trips: int
) -> tuple[float, float]:
    plan, stages = levels[k], tuple(level.stage for level in levels)
    stored = facts.stored
    if stored is None or stored.tensor not in plan.elems:
        return 0.0, 0.0
    target = source_of(facts, stored.tensor, stages, k, machine.home.name)
    if target == plan.stage.level.name:
        return 0.0, 0.0
    users = busy * plan.units_used
    rate, latency = _path(machine, plan.stage.level.name, target, users, plan.stage.team)
    size = plan.elems[stored.tensor]
    one = latency + size * facts.tensors[stored.tensor].dtype.size_bytes / rate
    return trips * one, one


def home_cycles(facts: Facts, machine: Machine, team: Team) -> float:
    """Time of operands read or written in place at home: every point touches one element."""
    sizes = [facts.tensors[facts.op.reads[k].tensor].dtype.size_bytes for k in facts.at_home]
    if facts.out is None:
        sizes.append(facts.tensors[facts.op.write.tensor].dtype.size_bytes)
    return facts.op.num_points * sum(sizes) * team.copies / machine.home.read_bytes_per_cycle
