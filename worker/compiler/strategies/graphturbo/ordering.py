"""In which order a cluster runs the instances of a unit: breadth first, depth first, the better.

Words: an instance's output is *live* from the task that writes it to the last task that reads it;
an output that no instance of the graph reads leaves the unit and is live during its own task only.

Source: GraphTurbo section 3.3, algorithm 3 and figures 6 and 7.  Deviates: a consumer that is
already in `ready` keeps its place (printed line 14 would push it twice); "memory utilization", by
which the paper chooses, is undefined there and is `better` here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

from worker.compiler.errors import InternalError
from worker.compiler.strategies.graphturbo.liveness import LiveTensor, live_bytes_by_task
from worker.compiler.strategies.graphturbo.spill import SpillRule, choose_spills
from worker.compiler.strategies.graphturbo.values import InstanceGraph


@dataclass(frozen=True, slots=True)
class OrderCosts:
    """What an order costs beyond the work of its instances; all zero unless given."""

    cycles_per_spilled_byte: int = 0
    """Cycles to write a byte to a slower memory and to read it back."""
    entry_cycles: tuple[int, ...] = ()
    """Per group, cycles spent when the order comes to it from another group: its weights return."""


@dataclass(frozen=True, slots=True)
class OrderMetrics:
    """What an order does to a local buffer."""

    peak_bytes: int
    """Most bytes live at once, an output counted while the inputs of its task are still held."""
    peak_after_bytes: int
    """Most bytes live between two tasks, after the inputs no longer needed are released."""
    spilled_bytes: int
    """Bytes of the tensors that do not stay in the local buffer."""
    mean_occupancy: float
    """Share of the buffer in use by what stays, averaged over tasks; 0..1."""
    latency_cycles: int
    """Work, entries into groups and spills, one after the other."""


NO_COSTS = OrderCosts()


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
    return tuple(step[0] for step in _dfs(graph))


def dfs_trace(graph: InstanceGraph) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The instance that each step of algorithm 3 runs, and the list `ready` after it (figure 7).

    Cost: `dfs_order` plus the length of `ready` per step.
    """
    ready = [i for i, some in enumerate(graph.producers) if not some]
    for instance, entered in _dfs(graph):
        ready.remove(instance)
        ready += entered
        yield instance, tuple(ready)


def _dfs(graph: InstanceGraph) -> Iterator[tuple[int, list[int]]]:
    """Per step, the instance run and the consumers that enter `ready` behind it."""
    num_missing = [len(some) for some in graph.producers]
    consumers = consumers_of(graph)
    entered_at = [-1] * len(num_missing)
    clock = 0
    runnable: list[tuple[int, int]] = []
    for i, missing in enumerate(num_missing):
        if missing == 0:
            entered_at[i] = clock
            clock += 1
            runnable.append((-entered_at[i], i))
    heapify(runnable)
    num_run = 0
    while runnable:
        _, instance = heappop(runnable)
        num_run += 1
        entered: list[int] = []
        for consumer in consumers[instance]:
            if entered_at[consumer] < 0:
                entered_at[consumer] = clock
                clock += 1
                entered.append(consumer)
            num_missing[consumer] -= 1
            if num_missing[consumer] == 0:
                heappush(runnable, (-entered_at[consumer], consumer))
        yield instance, entered
    if num_run < len(num_missing):
        raise InternalError("TW-INT-001", "dependences have a cycle", stage="graphturbo")


def consumers_of(graph: InstanceGraph) -> tuple[tuple[int, ...], ...]:
    """Per instance, positions of the instances that read its output, ascending."""
    consumers: list[list[int]] = [[] for _ in graph.producers]
    for i, some in enumerate(graph.producers):
        for j in some:
            consumers[j].append(i)
    return tuple(tuple(some) for some in consumers)


def live_tensors(graph: InstanceGraph, order: Sequence[int]) -> tuple[LiveTensor, ...]:
    """Live range, in tasks of `order`, of every instance's output, by position in the graph.

    Raises:
        InternalError: `order` is not a topological order of all instances.
    Cost: linear in instances and edges.
    """
    task = {instance: k for k, instance in enumerate(order)}
    count = len(graph.instances)
    if len(order) != count or any(i not in task for i in range(count)):
        raise InternalError("TW-INT-001", "an order misses instances", stage="graphturbo")
    last = [task[i] for i in range(count)]
    for i, some in enumerate(graph.producers):
        for j in some:
            if task[j] >= task[i]:
                raise InternalError(
                    "TW-INT-001", "an order runs an instance before its input", stage="graphturbo"
                )
            last[j] = max(last[j], task[i])
    return tuple(
        LiveTensor(f"{x.group}.{x.number}", graph.output_bytes[i], task[i], last[i])
        for i, x in enumerate(graph.instances)
    )


def measure(
    graph: InstanceGraph,
    order: Sequence[int],
    capacity_bytes: int,
    costs: OrderCosts = NO_COSTS,
    rule: SpillRule = SpillRule.LONGEST_LIVENESS,
) -> OrderMetrics:
    """Peaks, spills under `rule`, occupancy and cycles of an order in a buffer of `capacity_bytes`.

    Raises:
        InternalError: see `live_tensors`.
    Cost: O((n + e) log n).
    """
    lives = live_tensors(graph, order)
    gone = set(choose_spills(lives, capacity_bytes, rule))
    during = live_bytes_by_task(lives)
    staying = live_bytes_by_task([t for k, t in enumerate(lives) if k not in gone])
    released = [0] * len(order)
    for tensor in lives:
        released[tensor.last] += tensor.size_bytes
    spilled = sum(lives[k].size_bytes for k in gone)
    whole = capacity_bytes * len(order)
    return OrderMetrics(
        peak_bytes=max(during, default=0),
        peak_after_bytes=max((d - r for d, r in zip(during, released, strict=True)), default=0),
        spilled_bytes=spilled,
        mean_occupancy=sum(staying) / whole if whole else 0.0,
        latency_cycles=order_cycles(graph, order, costs) + spilled * costs.cycles_per_spilled_byte,
    )


def order_cycles(graph: InstanceGraph, order: Sequence[int], costs: OrderCosts) -> int:
    """Cycles of the work and of entering groups, spills not counted."""
    total = sum(graph.cycles)
    if costs.entry_cycles and order:
        groups = [graph.instances[i].group for i in order]
        total += costs.entry_cycles[groups[0]]
        total += sum(costs.entry_cycles[b] for a, b in pairwise(groups) if a != b)
    return total


def better(a: OrderMetrics, b: OrderMetrics) -> bool:
    """Whether `a` is the better order: least peak, then least spilled, then the fuller buffer.

    The last tie, fewer cycles, is ours.
    """
    return _rank(a) < _rank(b)


def _rank(m: OrderMetrics) -> tuple[int, int, float, int]:
    return (m.peak_bytes, m.spilled_bytes, -m.mean_occupancy, m.latency_cycles)


def nest_order(trips: Sequence[int]) -> tuple[int, ...]:
    """The order of a loop nest over a chain of groups, as positions in breadth-first order.

    `trips[g]` is how often group g runs inside one instance of group g + 1, and for the last group
    how often it runs in all: with trips (2, 2, 1), `for c in 1: for b in 2: for a in 2: a; b; c`.
    Group g has factor `trips[g] * trips[g + 1] * ..`.

    Cost: linear in instances.
    """
    factors = [1] * (len(trips) + 1)
    for g in reversed(range(len(trips))):
        factors[g] = trips[g] * factors[g + 1]
    first = [sum(factors[:g]) for g in range(len(trips))]
    order: list[int] = []
    for i in range(factors[0] if trips else 0):
        for g in range(len(trips)):
            # the pieces of group 0 that one piece of group g covers
            share = factors[0] // factors[g]
            if (i + 1) % share:
                break
            order.append(first[g] + (i + 1) // share - 1)
    return tuple(order)


def as_nest(graph: InstanceGraph, order: Sequence[int]) -> tuple[int, ...] | None:
    """Trip counts of the loop nest that `order` is, up to renaming instances; None when it is none.

    It is one when (1) every group reads the previous one only, piece j of group g + 1 exactly the
    pieces [j*r, (j+1)*r) of group g, so that factors divide; (2) pieces of a group have equal bytes
    and cycles; (3) the order visits groups in the sequence of `nest_order`.  These are enough: when
    piece k of group g + 1 runs, exactly (k+1)*r pieces of group g have run, of which earlier pieces
    have used k*r, so it reads the last r, as the nest does.  Renaming the pieces of each group by
    the time they run therefore turns the order into the nest.  Halos give None.

    Cost: linear in instances and edges.
    """
    members: list[list[int]] = []
    for i, instance in enumerate(graph.instances):
        if instance.group == len(members):
            members.append([])
        if instance.group != len(members) - 1 or instance.number != len(members[-1]):
            return None
        members[-1].append(i)
    if not members or not all(_homogeneous(graph, pieces) for pieces in members):
        return None
    if any(graph.producers[i] for i in members[0]):
        return None
    trips: list[int] = []
    for these, following in pairwise(members):
        ratio = len(these) // len(following)
        shares = (tuple(these[k * ratio : (k + 1) * ratio]) for k in range(len(following)))
        if ratio * len(following) != len(these) or any(
            graph.producers[j] != share for j, share in zip(following, shares, strict=True)
        ):
            return None
        trips.append(ratio)
    trips.append(len(members[-1]))
    groups = [instance.group for instance in graph.instances]
    if [groups[i] for i in order] != [groups[i] for i in nest_order(trips)]:
        return None
    live_tensors(graph, order)
    return tuple(trips)


def _homogeneous(graph: InstanceGraph, pieces: Sequence[int]) -> bool:
    shapes = [(graph.output_bytes[i], graph.cycles[i]) for i in pieces]
    return all(shape == shapes[0] for shape in shapes)
