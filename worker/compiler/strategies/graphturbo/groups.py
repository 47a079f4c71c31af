"""Groups of a unit's layers (Algorithm 2), their instances, and the orders of these.

A cluster is what the paper schedules: capacities are those of all clusters that share the samples,
so that a factor counts the instances of one cluster.
Source: GraphTurbo, sections 3.1 to 3.3; orders beyond the paper's two in `exact_order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from worker.compiler.cost.compute import engine_cycles, pick_engine
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.region import Cuts
from worker.compiler.machine.machine import Machine
from worker.compiler.strategies.graphturbo.exact_order import exact_order
from worker.compiler.strategies.graphturbo.footprint import (
    peak_bytes_of_slices,
    piece_outputs,
)
from worker.compiler.strategies.graphturbo.grouping import group
from worker.compiler.strategies.graphturbo.instances import (
    GroupEdge,
    GroupShape,
    SliceRead,
    instance_graph,
)
from worker.compiler.strategies.graphturbo.layers import Layer, layer_edges
from worker.compiler.strategies.graphturbo.ordering import (
    OrderMetrics,
    as_nest,
    bfs_order,
    dfs_order,
    measure,
)
from worker.compiler.strategies.graphturbo.propagate import Slices, propagate
from worker.compiler.strategies.graphturbo.split_info import best_split, splits_of
from worker.compiler.strategies.graphturbo.summary import (
    GroupSummary,
    OrderName,
    OrderSummary,
)
from worker.compiler.strategies.graphturbo.values import InstanceGraph, LayerGroup, SplitTuple

VAR = "g"
MAX_INSTANCES = 512
"""More are not ordered one by one."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """What Algorithms 1 to 3 say of a unit."""

    groups: tuple[LayerGroup, ...]
    summaries: tuple[GroupSummary, ...]
    instances: InstanceGraph | None
    """None: a group has no factor, or there are too many instances."""
    orders: tuple[OrderSummary, ...]
    trips: tuple[int, ...] | None
    """The chosen order as a loop nest: instances of each group inside one of the next."""


def group_layers(
    graph: Graph,
    layers: Sequence[Layer],
    machine: Machine,
    capacity_bytes: int,
    *,
    dim: int | None = None,
) -> Grouped:
    """Group layers by SplitInfo, order their instances.

    `capacity_bytes`: LB of all cores that share an instance.  `dim`: the only dimension groups may
    be cut along (samples), else any.  Cost: Algorithm 1 for every group that is tried.
    """
    cuts = Cuts.of(graph)

    def ops_of(members: Sequence[int]) -> list[TensorOp]:
        names = sorted((n for k in members for n in layers[k].ops), key=lambda n: cuts.position[n])
        return [op for op in (cuts.op(n) for n in names) if isinstance(op, TensorOp)]

    def split_of(members: tuple[int, ...]) -> SplitTuple | None:
        ops = ops_of(members)
        infos = splits_of(graph, ops, piece_outputs(graph, ops), capacity_bytes)
        return best_split(i for i in infos if dim is None or i.dim == dim)

    sizes = [
        sum(graph.tensors[t].num_elems for t in piece_outputs(graph, ops_of((k,))))
        for k in range(len(layers))
    ]
    edges = layer_edges(graph, layers)
    groups = group(len(layers), edges, split_of, sizes=sizes)
    sliced = [_slices(graph, ops_of(g.layers), g.split) for g in groups]
    summaries = tuple(
        _summary(graph, ops_of(g.layers), g, s) for g, s in zip(groups, sliced, strict=True)
    )
    if any(g.split is None for g in groups) or sum(_factor(g) for g in groups) > MAX_INSTANCES:
        return Grouped(groups, summaries, None, (), None)
    shapes = [_shape(graph, ops_of(g.layers), g, machine) for g in groups]
    owner = {k: n for n, g in enumerate(groups) for k in g.layers}
    pairs = dict.fromkeys((owner[a], owner[b]) for a, b in edges if owner[a] != owner[b])
    links = [
        GroupEdge(a, b, _read(graph, ops_of(groups[a].layers), groups[a], groups[b], sliced[b]))
        for a, b in sorted(pairs)
    ]
    instances = instance_graph(shapes, links)
    orders, chosen = _orders(instances, capacity_bytes)
    return Grouped(groups, summaries, instances, orders, as_nest(instances, chosen))


def _factor(group: LayerGroup) -> int:
    return 1 if group.split is None else group.split.factor


def _slices(graph: Graph, ops: Sequence[TensorOp], split: SplitTuple | None) -> Slices | None:
    if split is None:
        return None
    exits = piece_outputs(graph, ops)
    return propagate(graph, ops, exits, split.dim - 1, split.factor, VAR)


def _summary(
    graph: Graph, ops: Sequence[TensorOp], group: LayerGroup, slices: Slices | None
) -> GroupSummary:
    peak = 0 if slices is None else peak_bytes_of_slices(graph, ops, slices)
    split = group.split
    if split is None:
        return GroupSummary(group.layers, None, None, None, peak)
    return GroupSummary(group.layers, split.factor, split.dim, split.num_ops, peak)


def _shape(
    graph: Graph, ops: Sequence[TensorOp], group: LayerGroup, machine: Machine
) -> GroupShape:
    cycles = 0
    for op in ops:
        engine = pick_engine(op, machine, graph.tensors)
        assert engine is not None
        extents = tuple(a.extent for a in op.domain)
        cycles += ceil(engine_cycles(op, extents, engine, graph.tensors) / machine.num_cores)
    size = sum(graph.tensors[t].size_bytes for t in piece_outputs(graph, ops))
    return GroupShape(_factor(group), size, cycles)


def _read(
    graph: Graph,
    maker: Sequence[TensorOp],
    producer: LayerGroup,
    consumer: LayerGroup,
    slices: Slices | None,
) -> SliceRead | None:
    """Which part of the producer's cut dimension an instance of the consumer reads."""
    if slices is None or producer.split is None or consumer.split is None:
        return None
    exits = piece_outputs(graph, maker)
    dim = producer.split.dim - 1
    tensor = next((t for t in exits if t in slices.boxes), None)
    if tensor is None or dim >= len(slices.boxes[tensor]):
        return None
    span = slices.boxes[tensor][dim]
    extent = graph.tensors[tensor].shape[dim]
    step = span.start.coeff(VAR)
    if step == 0 and consumer.split.factor > 1:
        return None
    if max(producer.split.factor, consumer.split.factor) > extent:
        return None  # the producer is cut along another result of its own
    scale = Fraction(step * consumer.split.factor or extent, extent)
    before = -span.start.const
    return SliceRead(extent, extent, scale, before, span.extent - step - before if step else 0)


def _orders(
    instances: InstanceGraph, capacity_bytes: int
) -> tuple[tuple[OrderSummary, ...], tuple[int, ...]]:
    """The three orders with the chosen one: least peak, then fewest bytes spilled.

    Deviation: the paper leaves open what memory utilisation is; occupancy does not decide here.
    """
    if len(instances.instances) < 2:
        return (), tuple(range(len(instances.instances)))
    bfs, dfs = bfs_order(instances), dfs_order(instances)
    exact = exact_order(instances, capacity_bytes)
    rows = [
        (OrderName.BFS, bfs, measure(instances, bfs, capacity_bytes)),
        (OrderName.DFS, dfs, measure(instances, dfs, capacity_bytes)),
        (OrderName.EXACT, exact.order, measure(instances, exact.order, capacity_bytes)),
    ]
    best = 1  # of equal orders the depth-first one: it is a nest of loops
    for k in (0, 2):
        if _need(rows[k][2]) < _need(rows[best][2]):
            best = k
    summaries = tuple(
        _order(
            name,
            metrics,
            k == best,
            exact.gap if k == 2 else None,
            exact.proven and metrics.peak_bytes == exact.peak_bytes,
        )
        for k, (name, _, metrics) in enumerate(rows)
    )
    return summaries, rows[best][1]


def _need(metrics: OrderMetrics) -> tuple[int, int]:
    return metrics.peak_bytes, metrics.spilled_bytes


def _order(
    name: OrderName, metrics: OrderMetrics, chosen: bool, gap: float | None, proven: bool
) -> OrderSummary:
    return OrderSummary(
        name, metrics.peak_bytes, metrics.spilled_bytes, metrics.latency_cycles, gap, proven, chosen
    )
