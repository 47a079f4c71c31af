"""Seconds of a partitioned model without scheduling it: rooflines on both sides, and transfers."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir

from worker.compiler.cost.bounds import bound_cycles
from worker.compiler.frontend.express import express_region
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.qdq import QdqCluster, find_clusters
from worker.compiler.machine.machine import LaunchUnit, Machine
from worker.compiler.partition.flow import Flow, read_flow
from worker.compiler.partition.host_work import host_flops
from worker.compiler.partition.instructions import with_instructions
from worker.compiler.partition.measure import num_ops
from worker.compiler.partition.parts import Region
from worker.compiler.partition.plan import CompositeKind, Part, Partitioning


def estimated_seconds(model: OnnxModel, machine: Machine, parts: Partitioning) -> float:
    """Estimated seconds of one run, parts one after another.

    Host parts: roofline of the host at its sustained rates, plus an invocation each.  Regions: the
    lower bound of their operators on the target's engines and of their compulsory traffic, plus
    launches.  Every activation that crosses between host (or caller) and accelerator is copied
    once.  Optimistic for both sides alike, so good for comparing partitionings, not for latency.

    Cost: one expression per region.
    """
    nodes = list(model.ir.graph)
    flow = read_flow(model)
    side: list[int | None] = [None] * len(nodes)
    for number, part in enumerate(parts.parts):
        for k in part.nodes:
            side[k] = None if part.is_host else number
    seconds = sum(machine.host.copy_s(size) for size in _copies(flow, side))
    for part in parts.parts:
        if part.is_host:
            flops, memory_bytes = host_flops([nodes[k] for k in part.nodes])
            seconds += machine.host.work_s(flops, memory_bytes) + machine.host.launch_overhead_s
        else:
            seconds += _region_cycles(model, machine, part, nodes) / machine.clock_hz
    return seconds


def _region_cycles(
    model: OnnxModel, machine: Machine, part: Part, nodes: Sequence[onnx_ir.Node]
) -> int:
    target = machine.target(part.target)
    own = [nodes[k] for k in part.nodes]
    expressed = with_instructions(
        express_region(own, part.outputs, model.opset, _clusters(part, own)), part, nodes, machine
    )
    launches = 1
    if target.launch_unit is LaunchUnit.KERNEL:
        launches = num_ops(Region(part.target, part.nodes, part.composites))
    work = bound_cycles(expressed.graph, machine.restricted(target))
    launching = machine.launch_latency(target) + (launches - 1) * machine.launch_gap(target)
    return work + launching + target.region_overhead_cycles


def _clusters(part: Part, own: Sequence[onnx_ir.Node]) -> tuple[QdqCluster, ...]:
    """The clusters of the part, by position in the part."""
    accepted = {c.nodes for c in part.composites if c.kind is CompositeKind.CLUSTER}
    if not accepted:
        return ()
    return tuple(
        cluster
        for cluster in find_clusters(own, part.outputs)
        if tuple(part.nodes[k] for k in cluster.nodes) in accepted
    )


def _copies(flow: Flow, side: Sequence[int | None]) -> list[int]:
    """Bytes of every copy over the host link; `side` gives a node's region, None for the host.

    A value computed on the host (or given) is copied once to each region that reads it; one
    computed in a region is copied once when anything outside all regions reads it.
    """
    found: list[int] = []
    for value in flow.activations:
        readers = [side[k] for k in value.consumers]
        home = side[value.producer] if value.producer >= 0 else None
        if home is None:
            count = len({number for number in readers if number is not None})
        else:
            count = int(value.is_output or None in readers)
        found += [value.size_bytes or 0] * count
    return found
