"""The GraphTurbo strategy: groups of layers, and schedules with fewer and fewer hand-overs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from worker.compiler.cost.compute import engines_of
from worker.compiler.cost.fit import missing_engine, not_fusible
from worker.compiler.errors import Shortfall
from worker.compiler.heuristics import Heuristic
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.rewrite.compose_region import compose_region
from worker.compiler.rewrite.cut_units import cut_units
from worker.compiler.rewrite.lockstep import in_lockstep
from worker.compiler.rewrite.two_stages import in_two_stages
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.stages import Group, Grouping
from worker.compiler.strategies.base import Budget
from worker.compiler.strategies.graphturbo.describe import describe
from worker.compiler.strategies.graphturbo.descriptor import (
    DESCRIPTOR,
    GraphTurboOptions,
    Idea,
    Variant,
)
from worker.compiler.strategies.graphturbo.emit import emit_unit
from worker.compiler.strategies.graphturbo.handover import EAGER, SURE
from worker.compiler.strategies.graphturbo.loosen import poor_anchors
from worker.compiler.strategies.graphturbo.paper import paper_plans
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.sections import (
    UnitContext,
    best_sections,
    same_borders,
    with_handovers,
)
from worker.compiler.strategies.graphturbo.summary import OrderSummary
from worker.compiler.strategies.graphturbo.variants import Features, features_of
from worker.compiler.tiling.layer.layers import Layer, form_layers
from worker.compiler.tiling.layer.plan_layer import global_buffer

Draft: TypeAlias = tuple[UnitContext, tuple[SectionPlan, ...]]

READINESS = (EAGER, SURE, 0.0)
"""How ready candidates are to keep tensors in the cores' local buffers, in turn: what hand-overs
save is small against the model's error, and they fill the local buffers to the brim."""


DEFAULTS = GraphTurboOptions()
AS_MANY_AS_THERE_ARE = Budget(candidates=len(READINESS))


@dataclass(frozen=True, slots=True)
class GraphTurboStrategy:
    """Units of many layers; see the package docstring."""

    name: str = DESCRIPTOR.name
    version: str = DESCRIPTOR.version
    spans_regions: bool = True

    def group(
        self,
        graph: Graph,
        machine: Machine,
        options: GraphTurboOptions = DEFAULTS,
        together: Sequence[tuple[str, ...]] = (),
    ) -> Grouping:
        """Units of at most `MAX_OPS` composed operators, or one per layer."""
        del together  # layers hold what the target runs as one, and more
        features = features_of(options)
        is_ablation = options.variant is not Variant.FULL
        composed = compose_region(graph, machine) if features.uses(Idea.COMPOSE) else graph
        if features.instances and features.uses(Idea.TWO_STAGES):
            composed = self._with_stages(composed, machine)
        if features.across_layers:
            units = tuple(Group(names) for names in cut_units(composed))
            return Grouping(composed, units, is_ablation)
        layers = form_layers(composed, machine, chains=False)
        return Grouping(composed, tuple(Group(layer.ops) for layer in layers), is_ablation)

    def candidates(
        self,
        unit: Graph,
        machine: Machine,
        options: GraphTurboOptions = DEFAULTS,
        budget: Budget = AS_MANY_AS_THERE_ARE,
    ) -> Iterator[Schedule | Shortfall]:
        """The plan with fewer and fewer hand-overs in LB, as long as there are any.

        A budget for more than these also buys the plans of its ablations, with less and less on
        chip.
        """
        engines = engines_of(unit.ops, unit.tensors, machine)
        if isinstance(engines, str):
            yield missing_engine(unit.op(engines), unit.tensors, machine)
            return
        is_ablation = options.variant is not Variant.FULL
        variants = [options.variant]
        if not is_ablation and budget.candidates > len(READINESS):
            variants += [Variant.V3, Variant.V2, Variant.V1, Variant.ASTITCH]
        for variant in variants:
            yield from self._planned(unit, machine, engines, features_of(options, variant))

    def _planned(
        self, unit: Graph, machine: Machine, engines: Mapping[str, Engine], features: Features
    ) -> Iterator[Schedule | Shortfall]:
        """Plans with some features, the readiest to hand tensors over first."""
        if features.ordered:
            yield from self._in_orders(unit, machine, engines, features)
            return
        drafts = self._drafts(unit, engines, machine, features)
        if not drafts:
            yield not_fusible(tuple(engines))
            return
        for readiness in READINESS:
            if readiness > features.handover:
                continue
            handed = [(ctx, with_handovers(ctx, plan, readiness)) for ctx, plan in drafts]
            ctx, sections = min(handed, key=lambda draft: _cycles(draft[1]))
            yield self._schedule(ctx, sections)
            if not any(run.handed for section in sections for run in section.runs):
                return

    def _in_orders(
        self, unit: Graph, machine: Machine, engines: Mapping[str, Engine], features: Features
    ) -> Iterator[Schedule | Shortfall]:
        """Plans of the paper's orders, each with all that can stay in LB, then with nothing."""
        layers = _layers(unit, machine, features)
        ctx = UnitContext(unit, layers, engines, machine, features)
        has_plan = False
        for plan, orders in paper_plans(ctx):
            has_plan = True
            ctx.offers.clear()
            handed = with_handovers(ctx, (plan,), features.handover)
            ways = (handed, (plan,)) if handed != (plan,) else (handed,)
            for sections in ways:
                yield self._schedule(ctx, sections, orders)
        if not has_plan:
            yield not_fusible(tuple(engines))

    def _schedule(
        self,
        ctx: UnitContext,
        sections: Sequence[SectionPlan],
        orders: tuple[OrderSummary, ...] = (),
    ) -> Schedule:
        """Of planned sections; its note says what was planned."""
        cycles = _cycles(sections) + ctx.machine.launch_latency_cycles
        without = () if ctx.features.prefetch else (Heuristic.AHEAD,)
        notes = (describe(ctx, sections, orders),)
        return Schedule(ctx.graph, emit_unit(sections), self.name, cycles, without, notes)

    def _with_stages(self, graph: Graph, machine: Machine) -> Graph:
        """Reductions of what one core cannot keep twice in two stages, where clusters gain."""
        engines = engines_of(graph.ops, graph.tensors, machine)
        if isinstance(engines, str) or not engines:
            return graph
        memory = next(iter(engines.values())).memory
        buffer = global_buffer(machine, memory)
        if buffer is None:
            return graph
        return in_two_stages(graph, buffer.instances, machine.level(memory).usable_bytes // 2)

    def _drafts(
        self, graph: Graph, engines: Mapping[str, Engine], machine: Machine, features: Features
    ) -> tuple[Draft, ...]:
        """Sections over layers with all their epilogues, and over layers without the poor ones.

        The latter meet where the former do, so that the search for places is made once.
        """
        layers = _layers(graph, machine, features)
        ctx = UnitContext(graph, layers, engines, machine, features)
        sections = best_sections(ctx)
        if sections is None:
            return ()
        found = ((ctx, sections),)
        if not features.uses(Idea.LOOSEN):
            return found
        alone = poor_anchors(sections, engines, machine)
        if not alone or not features.row_chains:
            return found
        layers = _layers(graph, machine, features, alone)
        other = UnitContext(
            graph, layers, engines, machine, features, ctx.tiles, ctx.facts, ctx.floors
        )
        looser = best_sections(other, same_borders(sections, layers))
        return found if looser is None else (*found, (other, looser))


def _layers(
    graph: Graph, machine: Machine, features: Features, alone: Collection[str] = ()
) -> tuple[Layer, ...]:
    """Layers in the order in which they run."""
    layers = form_layers(graph, machine, chains=features.row_chains, alone=alone)
    is_leveled = features.across_layers and features.uses(Idea.LOCKSTEP)
    return in_lockstep(graph, layers) if is_leveled else layers


def _cycles(sections: Sequence[SectionPlan]) -> int:
    return sum(section.predicted_cycles for section in sections)


GRAPHTURBO = GraphTurboStrategy()
"""What the entry point loads."""
