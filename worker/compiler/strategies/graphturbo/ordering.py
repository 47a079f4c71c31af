"""In which order a cluster runs the instances of a unit: breadth first, depth first, least peak.

Words: an instance's output is *live* from the task that writes it to the last task that reads it;
an output that no instance of the graph reads leaves the unit and is live during its own task only.

Source: GraphTurbo section 3.3, algorithm 3 and figures 6 and 7.  Deviates: a consumer that is
already in `ready` keeps its place (printed line 14 would push it twice); "memory utilization", by
which the paper chooses, is undefined there and is least peak, then fewest bytes spilled here; the
third order, where there is one, is ours (`tree_order`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from worker.compiler.errors import InternalError
from worker.compiler.memory.liveness import LiveTensor, live_bytes_by_task
from worker.compiler.memory.spill import SpillRule, choose_spills
from worker.compiler.strategies.graphturbo.summary import OrderName
from worker.compiler.strategies.graphturbo.tree_order import tree_order
from worker.compiler.strategies.graphturbo.values import InstanceGraph


@dataclass(frozen=True, slots=True)
class FoundOrder:
    """An order of instances, as positions in the graph, and what it does to a buffer."""

    name: OrderName
    order: tuple[int, ...]
    peak_bytes: int
    """Most bytes live at once, an output counted while the inputs of its task are still held."""
    spilled_bytes: int
    """Bytes of the outputs that do not stay in the buffer, the longest live ones first."""


def orders_of(graph: InstanceGraph, capacity_bytes: int) -> tuple[FoundOrder, ...]:
    """The different orders for a buffer of `capacity_bytes`: the best one first.

    Of orders that visit groups in the same sequence with equal figures the depth-first one stays,
    then the breadth-first one: instances of a group are equal, so that these differ in names only.
    Raises:
        InternalError: instances are not listed in topological order.
    Cost: O(n * (depth + log n)) for n instances.
    """
    named = [(OrderName.DFS, dfs_order(graph)), (OrderName.BFS, bfs_order(graph))]
    tree = tree_order(graph)
    if tree is not None:
        named.append((OrderName.EXACT, tree))
    found: dict[tuple[object, ...], FoundOrder] = {}
    for name, order in named:
        lives = live_tensors(graph, order)
        gone = choose_spills(lives, capacity_bytes, SpillRule.LONGEST_LIVENESS)
        peak = max(live_bytes_by_task(lives), default=0)
        spilled = sum(lives[k].size_bytes for k in gone)
        groups = tuple(graph.instances[k].group for k in order)
        found.setdefault((groups, peak, spilled), FoundOrder(name, order, peak, spilled))
    return tuple(sorted(found.values(), key=lambda o: (o.peak_bytes, o.spilled_bytes)))


def bfs_order(graph: InstanceGraph) -> tuple[int, ...]:
    """Group by group, the order in which the graph lists its instances.

    Raises:
        InternalError: an instance is listed before one of its producers.
    Cost: linear in instances and edges.
    """
    order = tuple(range(len(graph.instances)))
    if any(j >= i for i, some in enumerate(graph.producers) for j in some):
        raise InternalError(
            "TW-INT-001", "instances are not listed in topological order", stage="graphturbo"
        )
    return order


def dfs_order(graph: InstanceGraph) -> tuple[int, ...]:
    """Algorithm 3: always the instance that became a candidate last and has all its inputs.

    The printed scan from the tail of `ready` is a heap on the time of entry, which never changes.

    Raises:
        InternalError: the dependences have a cycle.
    Cost: O((n + e) log n) for n instances and e edges; the printed lists take O(n^2).
    """
    num_missing = [len(some) for some in graph.producers]
    consumers: list[list[int]] = [[] for _ in graph.producers]
    for i, some in enumerate(graph.producers):
        for j in some:
            consumers[j].append(i)
    entered_at = [k if missing == 0 else -1 for k, missing in enumerate(num_missing)]
    clock = len(num_missing)
    runnable = [(-at, i) for i, at in enumerate(entered_at) if at >= 0]
    heapify(runnable)
    order: list[int] = []
    while runnable:
        _, instance = heappop(runnable)
        order.append(instance)
        for consumer in consumers[instance]:
            if entered_at[consumer] < 0:
                entered_at[consumer] = clock
                clock += 1
            num_missing[consumer] -= 1
            if num_missing[consumer] == 0:
                heappush(runnable, (-entered_at[consumer], consumer))
    if len(order) < len(num_missing):
        raise InternalError("TW-INT-001", "dependences have a cycle", stage="graphturbo")
    return tuple(order)


def live_tensors(graph: InstanceGraph, order: Sequence[int]) -> tuple[LiveTensor, ...]:
    """Live range, in tasks of `order`, of every instance's output, by position in the graph.

    `order`: a topological order of all instances.  Cost: linear in instances and edges.
    """
    task = {instance: k for k, instance in enumerate(order)}
    last = [task[i] for i in range(len(graph.instances))]
    for i, some in enumerate(graph.producers):
        for j in some:
            last[j] = max(last[j], task[i])
    return tuple(
        LiveTensor(f"{x.group}.{x.number}", graph.output_bytes[i], task[i], last[i])
        for i, x in enumerate(graph.instances)
    )


def is_nest(graph: InstanceGraph, order: Sequence[int], factors: Sequence[int]) -> bool:
    """Whether `order` is, up to renaming equal instances, a nest of loops over the groups.

    In the nest, before an instance of a group come the instances of the groups before it that it
    covers: with factors (4, 2, 1), a a b a a b c.  Instances of a group are equal and the nest
    respects every dependence, so visiting groups in the nest's sequence is enough.
    Cost: linear in instances.
    """
    sequence: list[int] = []
    for i in range(factors[0]):
        for group, factor in enumerate(factors):
            if (i + 1) % (factors[0] // factor):
                break
            sequence.append(group)
    return [graph.instances[i].group for i in order] == sequence
