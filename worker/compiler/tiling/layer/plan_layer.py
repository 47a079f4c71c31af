"""Tiles of one layer: a nest around its anchor, or a row chain, on a team of cores.

Source: GraphTurbo, sections 3.4 (a cluster's cores share a layer) and 4.1 (tiles follow the
anchor).  Deviation: the paper takes the largest tile that divides and fits; here a few hundred
predictions choose tiles, core split and whether weights pass the global buffer.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import TypeAlias, assert_never

from worker.compiler.errors import InternalError, Shortfall
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.region import Cuts
from worker.compiler.machine.machine import Engine, Machine, Managed, MemoryLevel
from worker.compiler.schedule.nodes import Box, Compute, Loop, Move, Node, Pipe, Place, Seq, Span
from worker.compiler.schedule.walk import reach_memory
from worker.compiler.tiling.chain.emit import emit_chain
from worker.compiler.tiling.chain.plan import ChainPlan
from worker.compiler.tiling.chain.plan_chain import plan_chain
from worker.compiler.tiling.layer.layers import Layer
from worker.compiler.tiling.nest.emit import emit
from worker.compiler.tiling.nest.facts import Facts, facts_of, homes_of_sums, sliced
from worker.compiler.tiling.nest.fusion import fused_facts
from worker.compiler.tiling.nest.plan import Plan, Stage, Team, footprint_terms, stages_of
from worker.compiler.tiling.nest.search import search
from worker.compiler.tiling.nest.split_search import search_split
from worker.compiler.tiling.nest.splits import ranked_splits
from worker.compiler.tiling.nest.structural_key import named, numbered

STRIPS = (8, 1)
"""Strips per tile tried for an epilogue."""

STAGING_BONUS = 0.05
"""How much slower a layer may be predicted whose weights can be fetched further ahead."""
MAX_SPLITS = 3
"""Splits over the cores for which tiles are searched, besides the one that follows from tiles."""

Tiles: TypeAlias = "Plan | ChainPlan"


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One layer with its tiles."""

    layer: Layer
    tiles: Tiles
    at: Mapping[str, Affine]
    """Where the instance's part of the anchor's domain stands, per axis (nests only)."""
    recompute: bool

    @property
    def predicted_cycles(self) -> int:
        return self.tiles.predicted_cycles

    def tree(self, home: str, number: Mapping[str, Affine], prefix: str) -> Node:
        """The layer's part of the unit's tree; `number` gives the variables of the slices."""
        if isinstance(self.tiles, ChainPlan):
            chain = emit_chain(self.tiles, prefix, recompute=self.recompute)
            return bound(chain, number)
        at = {name: start.substitute(dict(number)) for name, start in self.at.items()}
        return emit(self.tiles, home, at, prefix, recompute=self.recompute)


def bound(node: Node, values: Mapping[str, Affine]) -> Node:
    """A tree with variables replaced in all of its boxes.  Cost: linear."""

    def boxed(box: Box) -> Box:
        return tuple(Span(span.start.substitute(dict(values)), span.extent) for span in box)

    match node:
        case Loop():
            return replace(node, body=bound(node.body, values))
        case Seq(parts):
            return Seq(tuple(bound(part, values) for part in parts))
        case Place():
            return replace(node, tile=boxed(node.tile), body=bound(node.body, values))
        case Move() | Compute():
            return replace(node, box=boxed(node.box))
        case Pipe():
            raise InternalError("plan", "a layer has no pipe")
        case _:
            assert_never(node)


def global_buffer(machine: Machine, engine_memory: str) -> MemoryLevel | None:
    """The slowest scratchpad between home and the engines that several cores share."""
    last = machine.level_index(engine_memory)
    for level in machine.levels[1 : last + 1]:
        if level.managed is Managed.SCRATCHPAD and level.instances < machine.num_cores:
            return level
    return None


def layer_facts(layer: Layer, cuts: Cuts, engines: Mapping[str, Engine]) -> Facts | None:
    """What tiling needs to know of a layer with an anchor; None when it makes no nest."""
    op = cuts.op(layer.ops[0])
    if len(layer.ops) == 1:
        return facts_of(op, cuts.graph.tensors)
    return fused_facts(cuts.piece(layer.ops), {name: engines[name] for name in layer.ops})


def plan_nest(
    facts: Facts,
    domain: Box | None,
    engine: Engine,
    machine: Machine,
    team: Team,
    limits: Mapping[str, int],
    *,
    direct: bool = False,
) -> Plan | None:
    """The best tiles for a layer with an anchor; None when nothing fits.

    `facts.base` says where its operands live, `domain` is the instance's part of the anchor's
    domain, `limits` the bytes it may use of a level that others use as well.  `direct`: tiles go
    straight into the local buffer.
    Layers of equal structure are searched once.  Cost: a few hundred predictions.
    """
    extents = dict(facts.extents)
    if domain is not None:
        names = [a.name for a in facts.op.domain]
        extents = {n: min(s.extent, facts.extents[n]) for n, s in zip(names, domain, strict=True)}
    facts = sliced(facts, extents)
    alike, key = numbered(facts)
    team = replace(team, overlaps=True)
    whole = (key, engine.name, team, tuple(limits.items()), direct)
    question = _Question(whole, machine, alike, engine)
    plan = _answer(question)
    return None if plan is None else named(plan, facts)


def bytes_in(plan: Plan, memory: str, tensors: Collection[str] | None = None) -> int:
    """What a nest keeps in one instance of a memory, in bytes; of some `tensors` only, if given."""
    total = 0
    for k, level in enumerate(plan.levels):
        if level.stage.level.name == memory:
            is_last = k == len(plan.levels) - 1
            terms = footprint_terms(
                plan.facts, level.stage, level.tile, level.copies, is_last=is_last
            )
            sharers = min(level.stage.sharers, max(1, level.units_used))
            total += sharers * sum(
                size for name, size in terms if tensors is None or name in tensors
            )
    return total


@dataclass(frozen=True, slots=True)
class _Question:
    """A layer to find tiles for; equal questions have equal answers."""

    key: tuple[Hashable, str, Team, tuple[tuple[str, int], ...], bool]
    """The layer's structure, its engine, the team, the limits, and whether no buffer of several
    cores may be passed."""
    machine: Machine = field(hash=False)
    facts: Facts = field(compare=False)
    engine: Engine = field(compare=False)


@lru_cache(maxsize=4096)
def _answer(question: _Question) -> Plan | None:
    """The best tiles over paths through memory, splits over the cores and ways of the epilogue."""
    facts, engine, machine = question.facts, question.engine, question.machine
    _, _, team, limits, direct = question.key
    facts_ways = homes_of_sums(facts, engine, machine)
    if facts.epilogue:
        strips = STRIPS if len(facts.epilogue) > 1 else STRIPS[1:]
        facts_ways = tuple(
            replace(home, max_strips=number, is_overlapped=overlapped)
            for home, overlapped, number in product(facts_ways, (False, True), strips)
        )
    paths = [
        stages_of(machine, chain, team, dict(limits))
        for chain in _paths(machine, engine.memory, facts)
        if len(chain) == 1 or not direct
    ]
    ranked = ranked_splits(facts, engine, machine, team)[:MAX_SPLITS]
    splits = (None, {}) if direct else (None, *ranked)

    def found(way: Facts, path: tuple[Stage, ...], ways: Mapping[str, int] | None) -> Plan | None:
        if ways is None:
            return search(way, engine, path, machine)
        return search_split(way, engine, path, machine, ways)

    tried = [
        (plan, path, ways)
        for path, ways in product(paths, splits)
        if (plan := found(facts_ways[0], path, ways)) is not None
    ]
    if not tried:
        return None
    best, path, ways = min(tried, key=_ranked)
    for other in facts_ways[1:]:
        plan = found(other, path, ways)
        if plan is not None and plan.predicted_cycles < best.predicted_cycles:
            best = plan
    return best


def _ranked(found: tuple[Plan, tuple[Stage, ...], object]) -> float:
    """Predicted cycles, a little less where weights pass a buffer outside of the cores.

    They come on an engine of their own there, which runs ahead of the activations' transfers.
    """
    plan, path, _ = found
    return plan.predicted_cycles * (1.0 if len(path) == 1 else 1 - STAGING_BONUS)


def plan_rows(
    layer: Layer,
    cuts: Cuts,
    location_of: Mapping[str, str],
    domains: Mapping[str, Box] | None,
    machine: Machine,
    team: Team,
    engine: Engine,
    budget_bytes: int | None = None,
) -> ChainPlan | None:
    """The best tiles for a row chain; None when it has none.

    `budget_bytes`: what it may take of a core's local buffer, if not all.
    """
    ops = tuple(cuts.op(name) for name in layer.ops)
    own = None if domains is None else {name: domains[name] for name in layer.ops}
    memory = machine.level(reach_memory(engine.name, machine))
    found = plan_chain(
        cuts.graph, ops, own, location_of, machine, num_cores=team.cores,
        budget_bytes=memory.usable_bytes if budget_bytes is None else budget_bytes,
        num_groups=team.copies,
    )  # fmt: skip
    return None if isinstance(found, Shortfall) else found


def _paths(machine: Machine, memory: str, facts: Facts) -> tuple[tuple[MemoryLevel, ...], ...]:
    """Scratchpads a layer's operands pass: the engine's alone, or one more outside of it."""
    last = machine.level_index(memory)
    pads = [m for m in machine.levels[1 : last + 1] if m.managed is Managed.SCRATCHPAD]
    if not pads:
        return ()
    inner = pads[-1]
    if facts.out is None or not facts.reduce_axes:
        return ((inner,),)
    return ((inner,), *((outer, inner) for outer in pads[:-1]))
