"""The cheapest way through a region, changing between strategies where they meet.

Every strategy covers a region with groups in an order of its own, over a graph of its own.  Between
two groups stands a state: the tensors that were written and are still read, or are results.  Where
two strategies have the same state, the rest of either one's groups goes on from it, since what a
strategy keeps of the user's graph keeps name and value.  So the states of all strategies are nodes,
their groups are edges, and the shortest path from nothing written to all results is the best
mixture over the smallest sets of operators that both cover whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

from worker.compiler.ir.op import Tensor
from worker.compiler.schedule.stages import Grouping

State: TypeAlias = "frozenset[Tensor]"
Cost: TypeAlias = tuple[float, ...]
"""Compared in order, added by component."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """One group of the best mixture."""

    entrant: int
    group: int


def states_of(grouping: Grouping) -> tuple[State | None, ...]:
    """The state before each group and after the last: len(groups) + 1.  Cost: linear.

    None where a tensor is written only in part: no other strategy can go on from there.
    """
    graph = grouping.graph
    group_of = {name: k for k, group in enumerate(grouping.groups) for name in group.ops}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    used = dict.fromkeys(graph.outputs, len(grouping.groups))  # read by whoever comes after
    for op in graph.ops:
        number = group_of[op.name]
        tensor = op.write.tensor
        first[tensor] = min(first.get(tensor, number), number)
        last[tensor] = max(last.get(tensor, number), number)
        for tensor in op.input_names():
            used[tensor] = max(used.get(tensor, number), number)
    size = len(grouping.groups) + 1
    begins: list[list[str]] = [[] for _ in range(size + 1)]
    ends: list[list[str]] = [[] for _ in range(size + 1)]
    partial = [0] * (size + 1)
    for tensor, written in last.items():
        partial[first[tensor] + 1] += 1
        partial[written + 1] -= 1
        if used.get(tensor, -1) > written:
            begins[written + 1].append(tensor)
            ends[used[tensor] + 1].append(tensor)
    found: list[State | None] = []
    alive: dict[str, Tensor] = {}
    num_partial = 0
    for position in range(size):
        num_partial += partial[position]
        alive.update((tensor, graph.tensors[tensor]) for tensor in begins[position])
        for tensor in ends[position]:
            alive.pop(tensor, None)
        found.append(None if num_partial else frozenset(alive.values()))
    return tuple(found)


def cheapest(
    states: Sequence[Sequence[State | None]], costs: Sequence[Sequence[Cost]]
) -> tuple[Chosen, ...]:
    """The path of least cost; equal ones go to the strategy that stands first.

    `states` and `costs` are by entrant: states_of's answer, and the cost of every group.
    Cost: sorts as many entries as there are groups.
    """
    ids: dict[State | tuple[int, int], int] = {}
    edges: dict[int, list[tuple[int, Cost, Chosen]]] = {}

    def node(entrant: int, position: int) -> int:
        state = states[entrant][position]
        return ids.setdefault((entrant, position) if state is None else state, len(ids))

    ends = set()
    for entrant, own in enumerate(costs):
        for number, cost in enumerate(own):
            start, end = node(entrant, number), node(entrant, number + 1)
            edges.setdefault(start, []).append((end, cost, Chosen(entrant, number)))
        ends.add(node(entrant, len(own)))
    start = node(0, 0)
    width = len(next((own[0] for own in costs if own), ()))
    reached: dict[int, tuple[int, Chosen] | None] = {}
    queue: list[tuple[Cost, int, int, tuple[int, Chosen] | None]] = []
    heappush(queue, ((0.0,) * width, 0, start, None))
    pushed = 0
    while queue:
        cost, _, at, came = heappop(queue)
        if at in reached:
            continue
        reached[at] = came
        if at in ends:
            return _path(reached, at)
        for end, more, chosen in edges.get(at, ()):
            pushed += 1
            total = tuple(a + b for a, b in zip(cost, more, strict=True))
            heappush(queue, (total, pushed, end, (at, chosen)))
    raise AssertionError("every entrant's own groups are a path")


def _path(reached: dict[int, tuple[int, Chosen] | None], end: int) -> tuple[Chosen, ...]:
    found: list[Chosen] = []
    at = end
    while (came := reached[at]) is not None:
        at, chosen = came
        found.append(chosen)
    return tuple(reversed(found))
