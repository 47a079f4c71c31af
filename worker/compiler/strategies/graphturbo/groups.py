"""Groups of a unit's layers (Algorithm 2), and into how many instances each is cut.

A cluster is what the paper schedules: capacities are those of all clusters that share the samples,
so that a factor counts the instances of one cluster.
Source: GraphTurbo, sections 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.region import Cuts
from worker.compiler.strategies.graphturbo.grouping import group
from worker.compiler.strategies.graphturbo.split_info import VAR, factor_of
from worker.compiler.strategies.graphturbo.summary import GroupSummary
from worker.compiler.strategies.graphturbo.values import LayerGroup
from worker.compiler.tiling.layer.layers import Layer, layer_edges
from worker.compiler.tiling.slices.footprint import peak_bytes_of_slices, piece_outputs
from worker.compiler.tiling.slices.propagate import propagate


@dataclass(frozen=True, slots=True)
class Grouped:
    """What Algorithms 1 and 2 say of a unit."""

    groups: tuple[LayerGroup, ...]
    """In topological order."""
    summaries: tuple[GroupSummary, ...]


def group_layers(graph: Graph, layers: Sequence[Layer], capacity_bytes: int) -> Grouped:
    """Group layers by the instances that they need; every group is cut along samples.

    `capacity_bytes`: LB of all cores that share an instance.
    Cost: Algorithm 1 for every group that is tried.
    """
    cuts = Cuts.of(graph)

    def ops_of(members: Sequence[int]) -> list[TensorOp]:
        names = (n for k in members for n in layers[k].ops)
        return [cuts.op(n) for n in sorted(names, key=lambda n: cuts.position[n])]

    def factor(members: tuple[int, ...]) -> int | None:
        ops = ops_of(members)
        return factor_of(graph, ops, piece_outputs(graph, ops), capacity_bytes)

    sizes = [
        sum(graph.tensors[t].num_elems for t in piece_outputs(graph, ops_of((k,))))
        for k in range(len(layers))
    ]
    groups = group(len(layers), layer_edges(graph, layers), factor, sizes=sizes)
    return Grouped(groups, tuple(_summary(graph, ops_of(g.layers), g) for g in groups))


def _summary(graph: Graph, ops: Sequence[TensorOp], group: LayerGroup) -> GroupSummary:
    if group.factor is None:
        return GroupSummary(group.layers, None, 0)
    slices = propagate(graph, ops, piece_outputs(graph, ops), 0, group.factor, VAR)
    peak = 0 if slices is None else peak_bytes_of_slices(graph, ops, slices)
    return GroupSummary(group.layers, group.factor, peak)
