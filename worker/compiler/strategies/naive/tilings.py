"""Tilings of one layer that are worth a look: all places for operands and sums, searched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf
from typing import NamedTuple

from worker.compiler.cost.compute import engines_of
from worker.compiler.cost.fit import missing_engine, not_fusible, shortfall_of
from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Engine, Machine, Managed, MemoryLevel
from worker.compiler.options import Objective
from worker.compiler.strategies.naive.certificate import Certificate, Space
from worker.compiler.strategies.naive.descriptor import Idea, NaiveOptions, Tiles
from worker.compiler.tiling.nest.branch_bound import Proof, is_bounded, search_all
from worker.compiler.tiling.nest.facts import Facts, facts_of, homes_of_sums
from worker.compiler.tiling.nest.fusion import fused_facts
from worker.compiler.tiling.nest.measure import Measure
from worker.compiler.tiling.nest.plan import Plan, Stage, Team, footprint_terms, stages_of
from worker.compiler.tiling.nest.search import MOST_LEAVES, measured, score, search

NEAR = 1.2
"""Predictions that far apart are not simulated both (decision 0053: 1.5 finds no other winners)."""
ALONE_CYCLES = 1 << 18
"""Single operators that take longer are looked at with one copy of their result, too: products of
4096 on a100 gain 4 %, of 8192 28 % (longer programs included), shorter ones 0 to 5 % for a sixth
more of compile time (`benchmarks.operator_bounds`, decision 0053)."""
LONG_SUMS = 1 << 14
"""Where an engine sums up in registers, operators that take longer are looked at with one copy of
their result as well, for which registers have less room, and with sums in memory (decision 0056:
what it brings, and takes)."""
SHARED_LEAVES = 1 << 14
"""Where cores are served together, programs that execute more are often listed as if each were
alone (`lower.LISTED_ROWS`): the best tiling of fewer is offered, too."""
FAR = 2.0
"""Tiles for cores that load alone are not looked for where they take so many times what cores that
are served together take.  Of what was simulated on the presets with multicasts the better was
predicted to take up to 1.5 times as long (decision 0105)."""
STRIPS = (8, 1)
"""Strips per tile tried for an epilogue, ties to the first: more strips leave more scratchpad
to the first operator, fewer start fewer instructions."""


class Layer(NamedTuple):
    """What a kernel's tiles are searched for: its first operator, with what is fused behind it."""

    facts: Facts
    engine: Engine


def layer_of(unit: Graph, machine: Machine) -> Layer | Shortfall:
    """The layer of a kernel, or what the machine lacks for it."""
    engines = engines_of(unit.ops, unit.tensors, machine)
    if isinstance(engines, str):
        return missing_engine(unit.op(engines), unit.tensors, machine)
    first = unit.ops[0].name
    if len(unit.ops) == 1:
        return Layer(facts_of(unit.op(first), unit.tensors), engines[first])
    fused = fused_facts(unit, engines)
    if fused is None:
        return not_fusible(tuple(engines))
    return Layer(fused, engines[first])


@dataclass(frozen=True, slots=True)
class Offered:
    """Plans, the best guess first, and what is proven by cycles of all that was searched so far."""

    plans: tuple[Plan, ...]
    proofs: Mapping[Space, Proof]

    def notes(self) -> tuple[str, ...]:
        """For the summary, and whoever checks it."""
        if not self.proofs:
            return ()
        found = self.proofs.values()
        best, bound = (min(getattr(proof, name) for proof in found) for name in ("best", "bound"))
        boxes, cut, tilings = (
            sum(getattr(proof, name) for proof in found) for name in ("boxes", "cut", "tilings")
        )
        others = [proof.best for proof in found if proof.best > best]
        second = min([proof.second for proof in found] + others)
        told = Certificate(
            best, bound, None if second == inf else second, tuple(self.proofs), boxes, cut, tilings
        )
        return (str(told),)


def offers(
    layer: Layer, machine: Machine, options: NaiveOptions, measures: Sequence[Objective]
) -> Iterator[Offered]:  # fmt: skip
    """Plans worth simulating, the best guess first; nothing where nothing fits.

    Every chain of scratchpads that ends where the engine works is tried, at most one of them
    outside the innermost.
    """
    facts, engine = layer
    near: list[Plan] = []
    proofs: dict[Space, Proof] = {}
    homes = homes_of_sums(facts, engine, machine)
    if Idea.REGISTERS in options.without:
        homes = homes[-1:]
    may_skip = Idea.ONE_TEAM not in options.without
    served = inf
    for number, team in enumerate(_teams(facts, machine, options)):
        grown: list[tuple[Plan, Mapping[tuple[Stage, ...], Facts]]] = []
        for sums in homes:
            if not grown or grown[0][0].predicted_cycles >= LONG_SUMS:
                best, ways = _grown(sums, engine, machine, team)
                grown += [(best, ways)] if best is not None else []
        if not grown:
            return
        first = min((best for best, _ in grown), key=_cycles)
        if options.tiles is Tiles.GROWN or not is_bounded(facts):
            yield Offered((first,), proofs)
            continue
        within = FAR * served if may_skip else inf
        own = () if number or Idea.MEASURES in options.without else measures
        asked = tuple(dict.fromkeys((*own, Objective.LATENCY)))
        found = [
            {
                objective: _bounded(
                    best, ways, machine, Measure.of(objective, machine), options, within
                )
                for objective in asked
            }
            for best, ways in grown
        ]
        for home in found:
            proofs.update(home[Objective.LATENCY].proofs)
        found.sort(key=lambda home: score(home[asked[0]].plans[0], MOST_LEAVES))
        firsts = tuple(found[0][objective].plans[0] for objective in asked)
        if firsts[-1].predicted_cycles > within:
            break
        yield Offered(firsts, dict(proofs))
        least = found[0][Objective.LATENCY].plans[0].predicted_cycles
        others = [plan for home in found for plan in home[Objective.LATENCY].plans]
        near += [plan for plan in (*others, first) if plan.predicted_cycles <= NEAR * least]
        if team.joins:
            short = (plan for plan in (*others, first) if plan.num_leaves <= SHARED_LEAVES)
            served = min((plan.predicted_cycles for plan in short), default=inf)
    yield Offered(tuple(near), proofs)


def _teams(facts: Facts, machine: Machine, options: NaiveOptions) -> tuple[Team, ...]:
    """All cores: served together as far as links can, or each for itself: where lowering cannot
    serve them together after all, tiles for that are bad ones."""
    alone = Team.everyone(machine)
    if Idea.JOINED in options.without or not any(link.multicast for link in machine.links):
        return (alone,)
    if Idea.ONE_TEAM not in options.without and not _may_share(facts):
        return (alone,)
    return Team.everyone(machine, joins=True), alone


def _may_share(facts: Facts) -> bool:
    """Whether cores with different parts of the result may read the same part of an operand."""
    split = [name for name in facts.out_axes if facts.extents[name] > 1]
    return any(name not in operand.axes for operand in facts.fetched for name in split)


def _grown(
    facts: Facts, engine: Engine, machine: Machine, team: Team
) -> tuple[Plan | None, dict[tuple[Stage, ...], Facts]]:
    """The best of the tilings that grow on every chain, and the way that is the best on each."""
    found: dict[tuple[Stage, ...], tuple[Plan, Facts]] = {}
    for way, chain in product(_ways(facts), chains(machine, engine.memory, facts)):
        stages = stages_of(machine, chain, team)
        plan = search(way, engine, stages, machine)
        if plan is None:
            continue
        if stages not in found or _cycles(plan) < _cycles(found[stages][0]):
            found[stages] = plan, way
    best = min((plan for plan, _ in found.values()), key=_cycles, default=None)
    return best, {stages: way for stages, (_, way) in found.items()}


class _Bounded(NamedTuple):
    """By one measure, with sums in one place."""

    plans: tuple[Plan, ...]
    """The best, then the best on other chains of memories, and of short programs."""
    proofs: Mapping[Space, Proof]


def _bounded(
    grown: Plan, ways: Mapping[tuple[Stage, ...], Facts], machine: Machine, measure: Measure,
    options: NaiveOptions, within: float,
) -> _Bounded:  # fmt: skip
    """The best plan by a measure on any of the stages, or the one that tiles grew into."""
    best = measured(grown, machine, measure)
    plans, proofs = [best], {}
    may_be_alone, may_walk = (idea not in options.without for idea in (Idea.ALONE, Idea.WALKS))
    bounded = partial(
        search_all, engine=grown.engine, machine=machine, may_walk=may_walk, within=within
    )
    for stages, way in ways.items():
        found, proofs[Space.of(way, stages)] = bounded(way, stages=stages, plan=best)
        least = ALONE_CYCLES if way.registers is None else LONG_SUMS
        if may_be_alone and not way.epilogue and found.predicted_cycles >= least:
            alone = replace(way, is_alone=True)
            found, proofs[Space.of(alone, stages)] = bounded(alone, stages=stages, plan=found)
        if found is not best:
            best = found
            plans.append(best)
    others = [] if Idea.CHAINS in options.without else plans[-2:0:-1]
    is_joined = any(stages[-1].team.joins for stages in ways)
    may_be_short = is_joined and Idea.SHORT not in options.without
    if may_be_short and best.num_leaves > SHARED_LEAVES:
        short = plans[0]
        for stages, way in ways.items():
            short, _ = bounded(way, stages=stages, plan=short, most=SHARED_LEAVES)
        others.insert(0, short)
    return _Bounded((best, *others), proofs)


def _cycles(plan: Plan) -> int:
    return plan.predicted_cycles


def _ways(facts: Facts) -> tuple[Facts, ...]:
    """How a fused group may share the scratchpad between its sums and its epilogue."""
    if not facts.epilogue:
        return (facts,)
    strips = STRIPS if len(facts.epilogue) > 1 else STRIPS[1:]
    return tuple(
        replace(facts, max_strips=number, is_overlapped=overlapped)
        for overlapped, number in product((False, True), strips)
    )


def chains(machine: Machine, memory: str, facts: Facts) -> tuple[tuple[MemoryLevel, ...], ...]:
    """Scratchpads to place operands in, outer to inner: the engine's alone, or one more outside."""
    pads = reachable(machine, memory)
    if not pads:
        return ()
    inner = pads[-1]
    if facts.out is None or not facts.reduce_axes:
        return ((inner,),)
    outside = [pad for pad in pads[:-1] if pad.instances <= inner.instances]
    return ((inner,), *((outer, inner) for outer in outside))


def reachable(machine: Machine, memory: str) -> tuple[MemoryLevel, ...]:
    """Scratchpads from home (excluded) down to the one that serves an engine at `memory`."""
    last = machine.level_index(memory)
    return tuple(
        level for level in machine.levels[1 : last + 1] if level.managed is Managed.SCRATCHPAD
    )


def shortfall(layer: Layer, machine: Machine) -> Shortfall:
    """What a layer lacks of which nothing fits."""
    facts, memory = layer.facts, layer.engine.memory
    pads = reachable(machine, memory)
    if not pads:
        return Shortfall(
            "memory", 1, 0, "scratchpads", ((facts.op.name, 1),),
            (f"mark a level between home and {memory} as a scratchpad",),
        )  # fmt: skip
    stage = stages_of(machine, pads[-1:])[0]
    smallest = {
        name: extent if name in facts.whole else 1 for name, extent in facts.extents.items()
    }
    terms = footprint_terms(facts, stage, smallest, {})
    found = shortfall_of(stage.level, terms) or shortfall_of(stage.level, terms, stage.sharers)
    assert found is not None, "the search refuses only what does not fit"
    return found
