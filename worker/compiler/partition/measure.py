"""What a region amounts to: operators, MACs, weights, boundary, tensors that live together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir

from worker.compiler.frontend.model_summary import node_macs
from worker.compiler.partition.flow import Flow
from worker.compiler.partition.parts import Region
from worker.compiler.partition.plan import Action, Composite, RegionDecision


@dataclass(frozen=True, slots=True)
class Measured:
    """A set of nodes in numbers."""

    num_ops: int
    """A composite counts as one operator."""
    macs: int
    weight_bytes: int
    """Every constant once."""
    boundary_bytes: int
    """Activations that enter and leave, each once; 0 where run time decides the size."""


class Ruler:
    """Measures sets of nodes of one model.  MACs are counted once per node, when asked for."""

    def __init__(self, flow: Flow, nodes: Sequence[onnx_ir.Node]) -> None:
        self._flow = flow
        self._nodes = nodes
        self._macs: dict[int, int] = {}

    def macs(self, nodes: Sequence[int]) -> int:
        """Multiply-accumulates of `nodes`; 0 for dynamic shapes."""
        total = 0
        for node in nodes:
            if node not in self._macs:
                self._macs[node] = node_macs(self._nodes[node])
            total += self._macs[node]
        return total

    def weights(self, nodes: Sequence[int]) -> dict[str, int]:
        """Bytes of the constants `nodes` read, by name."""
        found: dict[str, int] = {}
        for node in nodes:
            found.update(self._flow.weights[node])
        return found

    def tensors(self, nodes: Sequence[int]) -> dict[str, int]:
        """Bytes of all tensors `nodes` read or write, constants included, by name: what must fit
        when everything stays in one memory."""
        flow = self._flow
        found = self.weights(nodes)
        for node in nodes:
            for number in (*flow.reads[node], *flow.writes[node]):
                value = flow.activations[number]
                found[value.name] = value.size_bytes or 0
        return found

    def measure(self, region: Region) -> Measured:
        """Cost: linear in the region's operands."""
        flow = self._flow
        inside = set(region.nodes)
        crossing: set[int] = set()
        for node in region.nodes:
            crossing.update(
                n for n in flow.reads[node] if flow.activations[n].producer not in inside
            )
            for number in flow.writes[node]:
                value = flow.activations[number]
                if value.is_output or any(user not in inside for user in value.consumers):
                    crossing.add(number)
        return Measured(
            num_ops(region),
            self.macs(region.nodes),
            sum(self.weights(region.nodes).values()),
            sum(flow.activations[number].size_bytes or 0 for number in crossing),
        )

    def decide(
        self, region: Region, measured: Measured, action: Action, rule: str, sentence: str
    ) -> RegionDecision:
        """A decision row about `region`, not weighed."""
        return RegionDecision(
            first_node=self._flow.names[region.nodes[0]],
            target=region.target,
            action=action,
            num_ops=measured.num_ops,
            macs=measured.macs,
            weight_bytes=measured.weight_bytes,
            boundary_bytes=measured.boundary_bytes,
            rule=rule,
            sentence=sentence,
        )


def num_ops(region: Region) -> int:
    """Operators of a region, a composite counting as one."""
    covered = {node for composite in region.composites for node in composite.nodes}
    return len(region.nodes) - len(covered) + len(region.composites)


def shared_nodes(composites: Sequence[Composite]) -> frozenset[int]:
    """Nodes in several composites: they run in each, and are no operators of their own."""
    counts = Counter(node for composite in composites for node in composite.nodes)
    return frozenset(node for node, count in counts.items() if count > 1)
