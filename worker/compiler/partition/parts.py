"""Parts in execution order: regions, host work in as few pieces as possible, control flow alone.

The level of a host node is the number of times a path to it leaves the host and comes back: that
many host parts must run before it, so the longest such path is a lower bound on the number of host
parts, and one part per level reaches it.  A region has the level of the host part it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.compiler.partition.flow import Flow
from worker.compiler.partition.plan import HOST, Composite, Part
from worker.compiler.partition.quotient import contract, topological


@dataclass(frozen=True, slots=True)
class Region:
    """A convex set of nodes for one target; `nodes` are positions, ascending."""

    target: str
    nodes: tuple[int, ...]
    composites: tuple[Composite, ...] = ()


def build_parts(flow: Flow, regions: Sequence[Region]) -> tuple[Part, ...]:
    """Parts in execution order; every node outside `regions` is host work.

    The graph of regions (all contracted at once) must be acyclic.  Nodes with sub-graphs are host
    parts of exactly one node.
    Cost: near-linear.
    """
    num_nodes = len(flow.names)
    region_of = [-1] * num_nodes
    for number, region in enumerate(regions):
        for node in region.nodes:
            region_of[node] = number
    groups: list[tuple[int, ...]] = [region.nodes for region in regions]
    group_of = list(region_of)
    for node in range(num_nodes):
        if group_of[node] < 0:
            group_of[node] = len(groups)
            groups.append((node,))
    is_host = [False] * len(regions) + [
        not flow.is_control[nodes[0]] for nodes in groups[len(regions) :]
    ]
    successors = contract(flow.successors, group_of, len(groups))
    level = host_levels(successors, is_host)
    order = topological(successors, lambda g: (level[g], not is_host[g], groups[g][0]))
    parts: list[Part] = []
    waiting: list[int] = []
    waiting_level = 0
    for group in order:
        if waiting and (not is_host[group] or level[group] != waiting_level):
            parts.append(part_of(flow, HOST, tuple(sorted(waiting)), ()))
            waiting = []
        if is_host[group]:
            waiting += groups[group]
            waiting_level = level[group]
        elif group < len(regions):
            region = regions[group]
            parts.append(part_of(flow, region.target, region.nodes, region.composites))
        else:
            parts.append(part_of(flow, HOST, groups[group], ()))
    if waiting:
        parts.append(part_of(flow, HOST, tuple(sorted(waiting)), ()))
    return tuple(parts)


def host_levels(successors: Sequence[Sequence[int]], is_host: Sequence[bool]) -> list[int]:
    """Level of every group: how many host parts lie before it on the worst path.

    -1: a region (or control flow) that waits for no host part.  Host groups of one level can run
    together.  Cost: linear.
    """
    level = [0 if host else -1 for host in is_host]
    waiting = [0] * len(successors)
    for after in successors:
        for other in after:
            waiting[other] += 1
    ready = [group for group, count in enumerate(waiting) if not count]
    while ready:
        group = ready.pop()
        for other in successors[group]:
            least = level[group] + (is_host[other] and not is_host[group])
            if least > level[other]:
                level[other] = least
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return level


def part_of(
    flow: Flow, target: str, nodes: tuple[int, ...], composites: tuple[Composite, ...]
) -> Part:
    """The part of some nodes (ascending, convex): what it reads from and gives to the outside."""
    inside = set(nodes)
    inputs: dict[str, None] = {}
    outputs: list[str] = []
    for node in nodes:
        for number in flow.reads[node]:
            value = flow.activations[number]
            if value.producer not in inside:
                inputs[value.name] = None
        for number in flow.writes[node]:
            value = flow.activations[number]
            if value.is_output or any(user not in inside for user in value.consumers):
                outputs.append(value.name)
    return Part(target, nodes, tuple(inputs), tuple(outputs), composites)
