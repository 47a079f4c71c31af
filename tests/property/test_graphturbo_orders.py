"""Orders and spills of random graphs against literal transcriptions and every possibility."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.memory.liveness import LiveTensor
from worker.compiler.memory.spill import SpillRule, choose_spills
from worker.compiler.memory.spill_search import cheapest_spills
from worker.compiler.strategies.graphturbo.instances import instance_graph
from worker.compiler.strategies.graphturbo.ordering import bfs_order, dfs_order, is_nest, orders_of
from worker.compiler.strategies.graphturbo.stays import stays_of
from worker.compiler.strategies.graphturbo.tree_order import tree_order
from worker.compiler.strategies.graphturbo.values import Instance, InstanceGraph


@st.composite
def dags(draw: st.DrawFn, most: int, one_reader: bool = False) -> InstanceGraph:
    """Instances with arbitrary dependences, bytes and groups, listed in topological order."""
    count = draw(st.integers(1, most))
    producers: list[set[int]] = [set() for _ in range(count)]
    for i in range(count - 1):
        later = st.integers(i + 1, count - 1)
        readers = draw(st.lists(later, max_size=1 if one_reader else 3, unique=True))
        for reader in readers:
            producers[reader].add(i)
    groups = sorted(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    sizes = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    return InstanceGraph(
        instances=tuple(Instance(group, i) for i, group in enumerate(groups)),
        producers=tuple(tuple(sorted(some)) for some in producers),
        output_bytes=tuple(sizes),
    )


@st.composite
def tensors(draw: st.DrawFn, most: int) -> tuple[LiveTensor, ...]:
    lives = []
    for k in range(draw(st.integers(0, most))):
        first = draw(st.integers(0, 8))
        last = first + draw(st.integers(0, 8))
        lives.append(LiveTensor(f"t{k}", draw(st.integers(0, 6)), first, last))
    return tuple(lives)


# oracles


def algorithm_3(graph: InstanceGraph) -> tuple[int, ...]:
    """The printed lists."""
    missing = [set(some) for some in graph.producers]
    visit = list(range(len(missing)))
    ready: list[int] = []
    steps: list[int] = []
    while visit:
        for i in list(visit):
            if not missing[i]:
                ready.append(i)
                visit.remove(i)
        while ready:
            p = len(ready) - 1
            while missing[ready[p]]:
                p -= 1
            run = ready.pop(p)
            for i in list(visit) + list(ready):
                if run in missing[i]:
                    missing[i].discard(run)
                    if i in visit:
                        ready.append(i)
                        visit.remove(i)
            steps.append(run)
    return tuple(steps)


def all_orders(graph: InstanceGraph, done: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if len(done) == len(graph.instances):
        yield done
    for i, some in enumerate(graph.producers):
        if i not in done and all(j in done for j in some):
            yield from all_orders(graph, (*done, i))


def live_sets(graph: InstanceGraph, order: Sequence[int]) -> list[list[int]]:
    """Per task, the outputs that exist during it, by the definition."""
    sets = []
    for task, running in enumerate(order):
        later = order[task:]
        sets.append(
            [
                j
                for j in order[: task + 1]
                if j == running or any(j in graph.producers[i] for i in later)
            ]
        )
    return sets


def peak_of(graph: InstanceGraph, order: Sequence[int]) -> int:
    return max(sum(graph.output_bytes[j] for j in live) for live in live_sets(graph, order))


# instances and orders


@given(dags(12))
def test_the_heap_runs_algorithm_3_as_printed(graph: InstanceGraph) -> None:
    assert dfs_order(graph) == algorithm_3(graph)


@given(dags(8), st.integers(0, 12))
def test_figures_are_those_of_the_definition(graph: InstanceGraph, capacity: int) -> None:
    found = orders_of(graph, capacity)
    for o in found:
        assert sorted(o.order) == list(range(len(graph.instances)))
        place = {i: k for k, i in enumerate(o.order)}
        assert all(place[j] < place[i] for i, some in enumerate(graph.producers) for j in some)
        assert o.peak_bytes == peak_of(graph, o.order)
        assert (o.spilled_bytes == 0) == (o.peak_bytes <= capacity)
    assert [o.peak_bytes for o in found] == sorted(o.peak_bytes for o in found)
    assert found[0].peak_bytes <= min(peak_of(graph, way(graph)) for way in (bfs_order, dfs_order))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.integers(1, 4))
def test_depth_first_orders_of_chains_are_nests(trips: list[int], last: int) -> None:
    factors = [last]
    for trip in reversed(trips):
        factors.insert(0, trip * factors[0])
    edges = [(g, g + 1) for g in range(len(trips))]
    graph = instance_graph(factors, [f * (g + 1) for g, f in enumerate(factors)], edges)
    assert is_nest(graph, dfs_order(graph), factors)
    assert is_nest(graph, bfs_order(graph), factors) == (factors[1] == 1)


@given(dags(7, one_reader=True))
def test_trees_have_their_lowest_peak(graph: InstanceGraph) -> None:
    order = tree_order(graph)
    assert order is not None
    lowest = min(peak_of(graph, other) for other in all_orders(graph))
    assert peak_of(graph, order) == lowest
    assert orders_of(graph, 10**6)[0].peak_bytes == lowest


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(1, 3),
    st.data(),
)
def test_a_slice_is_in_one_stay_whenever_it_is_used(
    trips: list[int], last: int, data: st.DataObject
) -> None:
    factors = [last]
    for trip in reversed(trips):
        factors.insert(0, trip * factors[0])
    every = [Instance(g, k) for g, f in enumerate(factors) for k in range(f)]
    order = data.draw(st.permutations(every))
    users = data.draw(st.sets(st.sampled_from(range(len(factors))), min_size=1))
    stays = stays_of(order, factors, users)
    assert all(a.closed < b.opened for a, b in pairwise(stays))
    for position, instance in enumerate(order):
        around = [s for s in stays if s.opened <= position <= s.closed]
        assert len(around) <= 1
        if instance.group in users:
            [stay] = around
            ratio = factors[instance.group] // factors[max(users)]
            assert stay.first <= instance.number // ratio < stay.first + stay.count
    ends = {i for s in stays for i in (s.opened, s.closed)}
    assert {order[i].group for i in ends} <= users


# spills


def fits(lives: Sequence[LiveTensor], spilled: Collection[int], capacity: int) -> bool:
    staying = [t for k, t in enumerate(lives) if k not in spilled]
    used = [sum(t.size_bytes for t in staying if t.first <= n <= t.last) for n in range(20)]
    return max(used) <= capacity


def spill_task_by_task(
    lives: Sequence[LiveTensor], capacity: int, longest: bool
) -> tuple[int, ...]:
    """The rule in words: at each task, evict one live tensor after the other until it fits."""
    gone: list[int] = []
    for task in range(20):
        while True:
            live = [
                k
                for k, t in enumerate(lives)
                if t.first <= task <= t.last and k not in gone and t.size_bytes
            ]
            if sum(lives[k].size_bytes for k in live) <= capacity:
                break
            gone.append(
                max(
                    live,
                    key=lambda k: (
                        (lives[k].last - lives[k].first) if longest else lives[k].size_bytes,
                        lives[k].size_bytes if longest else lives[k].last - lives[k].first,
                        lives[k].last,
                        -k,
                    ),
                )
            )
    return tuple(sorted(gone))


@given(tensors(12), st.integers(0, 16))
def test_spills_are_those_of_the_rule(lives: tuple[LiveTensor, ...], capacity: int) -> None:
    for rule in (SpillRule.LONGEST_LIVENESS, SpillRule.LARGEST):
        expected = spill_task_by_task(lives, capacity, rule is SpillRule.LONGEST_LIVENESS)
        assert choose_spills(lives, capacity, rule) == expected


@given(tensors(10), st.integers(0, 14), st.data())
def test_the_buffer_holds_what_stays_and_cost_is_the_least(
    lives: tuple[LiveTensor, ...], capacity: int, data: st.DataObject
) -> None:
    prices = data.draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)),
                                min_size=len(lives), max_size=len(lives)))  # fmt: skip

    def cost(tensor: LiveTensor, is_spilled: bool) -> int:
        return int(prices[int(tensor.name[1:])][is_spilled])

    def total(spilled: Collection[int]) -> int:
        return sum(cost(t, k in spilled) for k, t in enumerate(lives))

    found = cheapest_spills(lives, capacity, cost)
    assert fits(lives, found, capacity)
    for rule in (SpillRule.LONGEST_LIVENESS, SpillRule.LARGEST):
        spilled = choose_spills(lives, capacity, rule)
        assert fits(lives, spilled, capacity)
        assert total(found) <= total(spilled)
    if len(lives) <= 6:
        subsets = product((False, True), repeat=len(lives))
        every = ({k for k, gone in enumerate(some) if gone} for some in subsets)
        assert total(found) == min(total(some) for some in every if fits(lives, some, capacity))
