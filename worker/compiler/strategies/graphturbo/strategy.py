"""The GraphTurbo strategy's three steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from worker.compiler.cost.fit import missing_engine, not_fusible
from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.region import subgraph
from worker.compiler.ir.signature import canonicalize
from worker.compiler.ir.text import print_graph
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.options import Variant
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.stages import Arrangement, Group, Grouping
from worker.compiler.strategies.graphturbo.compose_region import compose_region
from worker.compiler.strategies.graphturbo.cut_units import cut_units
from worker.compiler.strategies.graphturbo.describe import describe, read_summary
from worker.compiler.strategies.graphturbo.emit import emit_unit
from worker.compiler.strategies.graphturbo.handover import EAGER, SURE
from worker.compiler.strategies.graphturbo.layers import Layer, engines_of, form_layers
from worker.compiler.strategies.graphturbo.lockstep import in_lockstep
from worker.compiler.strategies.graphturbo.loosen import poor_anchors
from worker.compiler.strategies.graphturbo.plan import global_buffer
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.sections import (
    Workshop,
    best_sections,
    same_borders,
    with_handovers,
)
from worker.compiler.strategies.graphturbo.two_stages import in_two_stages
from worker.compiler.strategies.graphturbo.variants import FEATURES, Features

Draft: TypeAlias = tuple[Workshop, tuple[SectionPlan, ...]]


@dataclass(slots=True)
class Drafts:
    """The unit planned last, up to hand-overs: the strategy's plainer forms ask for it again."""

    unit: tuple[str, Machine, Variant] | None = None
    found: tuple[Draft, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphTurboStrategy:
    """Units of many layers; see the package docstring."""

    variant: Variant = Variant.FULL
    name: str = "graphturbo"
    version: str = "24"
    spans_regions: bool = True
    handover: float = EAGER
    """How ready it is to keep tensors in the cores' local buffers, where the variant does that."""
    drafts: Drafts = field(default_factory=Drafts, compare=False, repr=False)

    @property
    def features(self) -> Features:
        """What the variant may do."""
        features = FEATURES[self.variant]
        return replace(features, handover=min(features.handover, self.handover))

    def plainer(self, schedule: Schedule | None) -> GraphTurboStrategy | None:
        """The same with fewer hand-overs in LB, or none, if there are any: what they save is small
        against the model's error, and they fill the local buffers to the brim."""
        now = self.features.handover
        if not now:
            return None
        if schedule is not None and not any(read_summary(n).num_handed for n in schedule.notes):
            return None
        version = self.version.split("-", maxsplit=1)[0]
        if now > SURE and schedule is not None:
            return replace(self, handover=SURE, version=f"{version}-sure")
        return replace(self, handover=0, version=f"{version}-gb")

    def group(
        self, graph: Graph, machine: Machine, together: Sequence[tuple[str, ...]] = ()
    ) -> Grouping:
        composed = compose_region(graph, machine)
        if self.features.instances:
            composed = self._with_stages(composed, machine)
        if self.features.across_layers:
            return Grouping(composed, tuple(Group(names) for names in cut_units(composed)))
        layers = form_layers(composed, machine, chains=False)
        return Grouping(composed, tuple(Group(layer.ops) for layer in layers))

    def _with_stages(self, graph: Graph, machine: Machine) -> Graph:
        """Reductions of what one core cannot keep twice in two stages, where clusters gain."""
        engines = engines_of(graph, machine)
        if isinstance(engines, str) or not engines:
            return graph
        memory = next(iter(engines.values())).memory
        buffer = global_buffer(machine, memory)
        if buffer is None:
            return graph
        return in_two_stages(graph, buffer.instances, machine.level(memory).usable_bytes // 2)

    def halves(self, graph: Graph) -> tuple[tuple[str, ...], ...]:
        """Units of half the size."""
        return cut_units(graph, -(-len(graph.ops) // 2))

    def schedule(self, grouping: Grouping, index: int, machine: Machine) -> Arrangement | Shortfall:
        graph = canonicalize(subgraph(grouping.graph, grouping.groups[index].ops)).graph
        engines = engines_of(graph, machine)
        if isinstance(engines, str):
            return missing_engine(engines)
        pairs = tuple((name, engine.name) for name, engine in engines.items())
        return Arrangement(graph, pairs, machine.num_cores)

    def tile(self, arrangement: Arrangement, machine: Machine) -> Schedule | Shortfall:
        graph = arrangement.graph
        engines = {name: machine.engine(e) for name, e in arrangement.engine_of_op}
        unit = (print_graph(graph, with_origin=False), machine, self.variant)
        if self.drafts.unit != unit:
            self.drafts.unit, self.drafts.found = unit, self._drafts(graph, engines, machine)
        if not self.drafts.found:
            return not_fusible(tuple(engines))
        gain = self.features.handover
        handed = [(shop, with_handovers(shop, plan, gain)) for shop, plan in self.drafts.found]
        shop, sections = min(handed, key=lambda draft: _cycles(draft[1]))
        cycles = _cycles(sections) + machine.launch_overhead_cycles
        notes = (describe(shop, sections),)
        ahead = self.features.prefetch
        return Schedule(graph, emit_unit(sections), self.name, cycles, ahead, notes)

    def _drafts(
        self, graph: Graph, engines: Mapping[str, Engine], machine: Machine
    ) -> tuple[Draft, ...]:
        """Sections over layers with all their epilogues, and over layers without the poor ones.

        The latter meet where the former do, so that the search for places is made once.
        """
        chains = self.features.row_chains
        layers = self._layers(graph, machine)
        shop = Workshop(graph, layers, engines, machine, self.features)
        sections = best_sections(shop)
        if sections is None:
            return ()
        found = ((shop, sections),)
        alone = poor_anchors(sections, engines, machine)
        if not alone or not chains:
            return found
        layers = self._layers(graph, machine, alone)
        other = Workshop(
            graph, layers, engines, machine, self.features, shop.tiles, shop.facts, shop.floors
        )
        looser = best_sections(other, same_borders(sections, layers))
        return found if looser is None else (*found, (other, looser))

    def _layers(
        self, graph: Graph, machine: Machine, alone: Collection[str] = ()
    ) -> tuple[Layer, ...]:
        """Layers in the order in which they run."""
        layers = form_layers(graph, machine, chains=self.features.row_chains, alone=alone)
        return in_lockstep(graph, layers) if self.features.across_layers else layers


def _cycles(sections: Sequence[SectionPlan]) -> int:
    return sum(section.predicted_cycles for section in sections)
