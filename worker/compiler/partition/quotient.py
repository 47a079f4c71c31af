"""Graphs of groups: what is left of a graph when every group of nodes becomes one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush


def units_of(num_nodes: int, glued: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Give (unit of every node, nodes of every unit): each glued group is one unit, every other
    node a unit of its own, and so is a node that several groups share.  Units are numbered by
    their first node."""
    glue_of = [-1] * num_nodes
    shared: set[int] = set()
    for number, group in enumerate(glued):
        for node in group:
            if glue_of[node] >= 0:
                shared.add(node)
            glue_of[node] = number
    for node in shared:
        glue_of[node] = -1
    unit_of = [-1] * num_nodes
    members: list[list[int]] = []
    seen: dict[int, int] = {}
    for node in range(num_nodes):
        glue = glue_of[node]
        if glue >= 0 and glue in seen:
            unit = seen[glue]
            members[unit].append(node)
        else:
            unit = len(members)
            members.append([node])
            if glue >= 0:
                seen[glue] = unit
        unit_of[node] = unit
    return unit_of, members


def contract(
    successors: Sequence[Sequence[int]], group_of: Sequence[int], num_groups: int
) -> list[list[int]]:
    """Successors of every group, each once, in order of first edge."""
    found: list[dict[int, None]] = [{} for _ in range(num_groups)]
    for node, after in enumerate(successors):
        group = group_of[node]
        own = found[group]
        for other in after:
            target = group_of[other]
            if target != group:
                own[target] = None
    return [list(own) for own in found]


def reverse(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Predecessors of every node, ascending."""
    found: list[list[int]] = [[] for _ in successors]
    for node, after in enumerate(successors):
        for other in after:
            found[other].append(node)
    return found


def topological(
    successors: Sequence[Sequence[int]], key: Callable[[int], tuple[int, ...]]
) -> list[int]:
    """Nodes in topological order, the smallest key first among those that are ready.

    Nodes on or behind a cycle are left out: fewer nodes than asked for means there is one.
    Cost: near-linear.
    """
    waiting = [0] * len(successors)
    for after in successors:
        for other in after:
            waiting[other] += 1
    ready = [(key(n), n) for n, count in enumerate(waiting) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, node = heappop(ready)
        order.append(node)
        for other in successors[node]:
            waiting[other] -= 1
            if not waiting[other]:
                heappush(ready, (key(other), other))
    return order
