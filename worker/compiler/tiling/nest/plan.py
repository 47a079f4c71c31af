"""A tiling of one operator over memory levels, what it needs, and what it is predicted to cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from worker.compiler.machine.machine import Engine, Machine, Managed, MemoryLevel
from worker.compiler.tiling.align import buffer_bytes
from worker.compiler.tiling.nest.facts import Facts, Operand
from worker.compiler.tiling.nest.measure import LATENCY, Measure


@dataclass(frozen=True, slots=True)
class Team:
    """The cores that run a nest together, and how many such teams work at the same time."""

    cores: int
    copies: int
    """Teams with work of the same shape, each on its own cores."""
    of: int
    """Teams the machine has: cores * of = all its cores."""
    joins: bool = False
    """Whether what several cores load alike may come to them as one transfer: in kernels of one
    operator.  Of those whose layers overlap lowering hardly tries (decision 0045)."""
    overlaps: bool = False
    """Whether other layers run meanwhile: they fill what a layer alone would wait for at its ends,
    and ask for the ports whenever a unit does."""

    @staticmethod
    def everyone(machine: Machine, *, joins: bool = False) -> Team:
        return Team(machine.num_cores, 1, 1, joins)

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


class LevelPlan(NamedTuple):
    """Tiles at one stage.  Mappings are by axis name."""

    stage: Stage
    tile: Mapping[str, int]
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


@dataclass(frozen=True, slots=True)
class Plan:
    """Tiles at every stage, outer to inner, with the prediction."""

    facts: Facts
    engine: Engine
    levels: tuple[LevelPlan, ...]
    predicted_cycles: int
    num_leaves: int
    charge: float = 0.0
    """By `measure`, for what moves."""
    measure: Measure = LATENCY
    """What it was searched by."""


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
    """Operands that have a place at a stage, reads first; of the innermost also in registers."""
    made = facts.made(is_last=is_last)
    kept = [o for o in made[:-1] if is_last] + [
        o for o in made[-1:] if is_placed(facts.base.get(o.tensor, ""), stage)
    ]
    padded_locals = facts.padded_locals if is_last else frozenset()
    fetched = [
        o for o in facts.fetched
        if is_placed(facts.base.get(o.tensor, ""), stage) or o.tensor in padded_locals
    ]  # fmt: skip
    return (*fetched, *kept)


def memory_of(facts: Facts, operand: Operand, stage: Stage, *, is_last: bool) -> str:
    """Name of the level in which a stage has an operand's place."""
    if is_last and facts.registers is not None and operand is facts.in_registers:
        return facts.registers.name
    return stage.level.name


def source_of(facts: Facts, tensor: str, stages: Sequence[Stage], k: int, home: str) -> str:
    """Memory that stage `k` takes an operand from, or brings a result to."""
    base = facts.base.get(tensor, home)
    for stage in reversed(stages[:k]):
        if is_placed(base, stage):
            return stage.level.name
    return base


def comes_early(
    facts: Facts, tensor: str, stages: Sequence[Stage], k: int, machine: Machine
) -> bool:
    """Whether what ran before hides the first fills of an operand at stage `k`.

    The innermost memory's share a queue with the activations, which wait for the layer before;
    outer scratchpads have one of their own.  Without such a memory the queue is filled ahead.
    """
    if tensor not in facts.early:
        return False
    if k < len(stages) - 1:
        return True
    outer = machine.levels[1 : machine.level_index(stages[k].level.name)]
    return all(level.managed is not Managed.SCRATCHPAD for level in outer)


def footprint_terms(
    facts: Facts,
    stage: Stage,
    tile: Mapping[str, int],
    copies: Mapping[str, int],
    *,
    is_last: bool = True,
) -> tuple[tuple[str, int], ...]:
    """(tensor, bytes) of every buffer in the memory of one stage, largest first."""
    terms = []
    for operand in placed_at(facts, stage, is_last=is_last):
        if is_last and operand is facts.in_registers:
            continue
        extents = facts.placed_widths(operand, tile, is_last=is_last)
        size = buffer_bytes(extents, operand.dtype, stage.level, copies.get(operand.tensor, 1))
        terms.append((operand.tensor, size))
    return tuple(sorted(terms, key=lambda term: (-term[1], term[0])))
