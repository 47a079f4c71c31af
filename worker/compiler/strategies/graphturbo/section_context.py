"""A section's layers with what its parts and the machine say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from worker.compiler.ir.affine import Affine
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Engine
from worker.compiler.schedule.grid import Ints
from worker.compiler.schedule.nodes import Box, Span
from worker.compiler.strategies.graphturbo.handover_cut import EnclosingInstance
from worker.compiler.strategies.graphturbo.layer_uses import LayerUses
from worker.compiler.strategies.graphturbo.site import Site, instance_var
from worker.compiler.tiling.layer.layers import Layer


class SectionContext:
    """What every step of planning a section asks of it."""

    def __init__(
        self, graph: Graph, layers: Sequence[Layer], engines: Mapping[str, Engine], site: Site
    ) -> None:
        self.graph = graph
        self.layers = tuple(layers)
        self.engines = engines
        self.site = site
        self.uses = LayerUses(graph, self.layers, engines, site.buffer, site.facts)
        self.part_of = {k: n for n, part in enumerate(site.parts) for k in part.layers}

    def around(self, number: int) -> EnclosingInstance:
        """The instance that layer `number` is computed in."""
        part = self.part_of[number]
        count = self.site.spread.clusters * self.site.runs(part)
        return EnclosingInstance(self.site.parts[part].slices, instance_var(part), count)

    def near(self, number: int, held: frozenset[str]) -> frozenset[str]:
        """Tensors among those held in GB that a layer on one cluster exchanges there."""
        uses = self.uses
        return held.intersection(uses.touched(number)) - uses.constants - uses.at_home[number]

    def instances(self, number: int) -> dict[str, Ints]:
        """Variables of the instances around a layer, with their values in each run of it."""
        parts, first = self.site.parts, self.part_of[number]
        turn = np.arange(self.site.spread.clusters * self.site.runs(first))
        found: dict[str, Ints] = {}
        for part in range(first, len(parts)):
            found[instance_var(part)] = turn
            turn = turn // parts[part].trips
        return found

    def domains(self, number: int) -> Mapping[str, Box] | None:
        """What an instance computes of a layer's operators; None: everything."""
        slices = self.site.parts[self.part_of[number]].slices
        return None if slices is None else slices.domains

    def box(self, tensor: str) -> Box:
        """What an instance around its place holds of a tensor."""
        whole = tuple(Span(Affine(), size) for size in self.graph.tensors[tensor].shape)
        slices = self.site.parts[self._place(tensor)].slices
        if slices is None or tensor not in slices.boxes:
            return whole
        # Only the dimension that instances share out is cut: elsewhere tiles may hang over what is
        # read, and inner instances write what nobody reads.
        return tuple(
            span if span.start.variables() else full
            for span, full in zip(slices.boxes[tensor], whole, strict=True)
        )

    def _place(self, tensor: str) -> int:
        """Part around whose instances a tensor lives: the last one that uses it."""
        used = self.uses.users(tensor)
        return max(self.part_of[n] for n in used)

    def _home_part(self, tensor: str) -> int:
        """Part after whose instances a tensor is complete for its share."""
        return max(self.part_of[n] for n in self.uses.writers[tensor])
