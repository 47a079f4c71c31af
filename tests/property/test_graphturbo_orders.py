"""Orders and spills of random graphs against literal transcriptions and every possibility."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY

from worker.compiler.strategies.graphturbo.exact_order import OrderGoal, exact_order
from worker.compiler.strategies.graphturbo.instances import (
    GroupEdge,
    GroupShape,
    SliceRead,
    instance_graph,
    piece,
)
from worker.compiler.strategies.graphturbo.liveness import LiveTensor
from worker.compiler.strategies.graphturbo.ordering import (
    OrderCosts,
    as_nest,
    bfs_order,
    dfs_order,
    dfs_trace,
    measure,
    nest_order,
)
from worker.compiler.strategies.graphturbo.spill import SpillRule, choose_spills, place_tensors
from worker.compiler.strategies.graphturbo.tree_order import tree_order
from worker.compiler.strategies.graphturbo.values import BufferScope, Instance, InstanceGraph

Rank = tuple[int, int, int]


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
        cycles=(1,) * count,
    )


@st.composite
def tensors(draw: st.DrawFn, most: int) -> tuple[LiveTensor, ...]:
    lives = []
    for k in range(draw(st.integers(0, most))):
        first = draw(st.integers(0, 8))
        scope = draw(st.sampled_from([BufferScope.LB] * 3 + [BufferScope.GB, BufferScope.HOME]))
        last = first + draw(st.integers(0, 8))
        lives.append(LiveTensor(f"t{k}", draw(st.integers(0, 6)), first, last, scope))
    return tuple(lives)


# oracles


def algorithm_3(graph: InstanceGraph) -> list[tuple[int, tuple[int, ...]]]:
    """The printed lists: what is run, and `ready` after it."""
    missing = [set(some) for some in graph.producers]
    visit = list(range(len(missing)))
    ready: list[int] = []
    steps: list[tuple[int, tuple[int, ...]]] = []
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
            steps.append((run, tuple(ready)))
    return steps


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


def rank_of(
    graph: InstanceGraph, order: Sequence[int], capacity: int, entry: Sequence[int]
) -> Rank:
    """Fewest spilled bytes over all choices of outputs to spill, peak bytes and cycles."""
    size = graph.output_bytes
    sets = live_sets(graph, order)
    peak = max(sum(size[j] for j in live) for live in sets)
    spilled = 0
    if peak > capacity:
        spilled = min(
            sum(s for s, out in zip(size, gone, strict=True) if out)
            for gone in product((False, True), repeat=len(size))
            if all(sum(size[j] for j in live if not gone[j]) <= capacity for live in sets)
        )
    cycles = sum(graph.cycles)
    previous = -1
    for i in order:
        group = graph.instances[i].group
        cycles += entry[group] if entry and group != previous else 0
        previous = group
    return (spilled, peak, cycles)


# instances and orders


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([Fraction(1, 3), Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(2)]),
    st.integers(-1, 2),
    st.integers(-1, 2),
)
def test_kept_edges_are_the_overlapping_elements(
    made: int, used: int, fp: int, fc: int, scale: Fraction, before: int, after: int
) -> None:
    fp, fc = min(fp, made), min(fc, used)
    read = SliceRead(made, used, scale, before, after)
    graph = instance_graph([GroupShape(fp, 1, 1), GroupShape(fc, 1, 1)], [GroupEdge(0, 1, read)])
    for j in range(fc):
        lo, hi = piece(j, fc, used)
        elements = [x for x in range(made) if lo * scale - before - 1 < x < hi * scale + after]
        elements = [x for x in elements if x >= (lo * scale).__floor__() - before]
        owners = sorted({i for i in range(fp) for x in elements if x in range(*piece(i, fp, made))})
        assert graph.producers[fp + j] == tuple(owners)


@given(dags(12))
def test_the_heap_runs_algorithm_3_as_printed(graph: InstanceGraph) -> None:
    printed = algorithm_3(graph)
    assert list(dfs_trace(graph)) == printed
    assert dfs_order(graph) == tuple(run for run, _ in printed)


@given(dags(8), st.integers(0, 12))
def test_measures_are_those_of_the_definition(graph: InstanceGraph, capacity: int) -> None:
    for order in (bfs_order(graph), dfs_order(graph)):
        metrics = measure(graph, order, capacity)
        _, peak, _ = rank_of(graph, order, 10**9, ())
        assert metrics.peak_bytes == peak
        after = [
            sum(
                graph.output_bytes[j]
                for j in order[: t + 1]
                if any(j in graph.producers[i] for i in order[t + 1 :])
            )
            for t in range(len(order))
        ]
        assert metrics.peak_after_bytes == max(after)
        assert 0.0 <= metrics.mean_occupancy <= 1.0


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.integers(1, 4), st.randoms())
def test_nests_are_depth_first_orders_and_back(trips: list[int], last: int, chance: object) -> None:
    """Expanding the nest gives a legal order of the peak of depth first search, and is a nest."""
    shape = (*trips, last)
    factors = [1] * len(shape)
    for g in reversed(range(len(shape))):
        factors[g] = shape[g] * (factors[g + 1] if g + 1 < len(shape) else 1)
    batch = factors[0]
    graph = instance_graph(
        [GroupShape(f, f * (g + 1), f) for g, f in enumerate(factors)],
        [GroupEdge(g, g + 1, SliceRead(batch, batch)) for g in range(len(shape) - 1)],
    )
    depth, nest = dfs_order(graph), nest_order(shape)
    assert sorted(nest) == list(range(len(graph.instances)))
    assert as_nest(graph, depth) == shape
    assert as_nest(graph, nest) == shape
    assert measure(graph, nest, 10**6).peak_bytes == measure(graph, depth, 10**6).peak_bytes
    if nest != bfs_order(graph):
        assert [graph.instances[i].group for i in nest] == [graph.instances[i].group for i in depth]


# least memory


@given(
    dags(6),
    st.integers(0, 20),
    st.one_of(st.just(()), st.tuples(*[st.integers(0, 3)] * 3)),
)
def test_exact_orders_are_the_best_of_all_orders(
    graph: InstanceGraph, capacity: int, entry: tuple[int, ...]
) -> None:
    found = exact_order(graph, capacity, OrderCosts(0, entry))
    best = min(rank_of(graph, order, capacity, entry) for order in all_orders(graph))
    assert found.proven
    assert (found.spilled_bytes, found.peak_bytes, found.latency_cycles) == best
    assert (found.spilled_bound_bytes, found.lower_bound_bytes) == best[:2]
    check_spills(graph, found.order, found.spilled, capacity)
    fastest = exact_order(graph, capacity, OrderCosts(0, entry), goal=OrderGoal.FEW_CYCLES)
    ranks = (rank_of(graph, order, capacity, entry) for order in all_orders(graph))
    assert fastest.proven
    assert (fastest.spilled_bytes, fastest.latency_cycles) == min((r[0], r[2]) for r in ranks)
    check_spills(graph, fastest.order, fastest.spilled, capacity)


@COSTLY
@given(dags(7))
def test_exact_peaks_are_the_lowest_of_all_orders(graph: InstanceGraph) -> None:
    found = exact_order(graph, 10**6)
    best = min(rank_of(graph, order, 10**6, ()) for order in all_orders(graph))
    assert (found.proven, found.peak_bytes) == (True, best[1])


@given(dags(7, one_reader=True))
def test_trees_have_their_lowest_peak(graph: InstanceGraph) -> None:
    order = tree_order(graph)
    assert order is not None
    lowest = min(rank_of(graph, other, 10**6, ())[1] for other in all_orders(graph))
    assert rank_of(graph, order, 10**6, ())[1] == lowest


@given(
    dags(30),
    st.integers(0, 40),
    st.one_of(st.just(()), st.tuples(*[st.integers(0, 3)] * 3)),
    st.sampled_from([1, 30, 300]),
)
def test_searched_orders_are_never_worse_than_the_papers(
    graph: InstanceGraph, capacity: int, entry: tuple[int, ...], max_states: int
) -> None:
    costs = OrderCosts(2, entry)
    found = exact_order(graph, capacity, costs, max_states)
    for order in (bfs_order(graph), dfs_order(graph)):
        for rule in (SpillRule.LONGEST_LIVENESS, SpillRule.LARGEST):
            m = measure(graph, order, capacity, costs, rule)
            assert (found.spilled_bytes, found.peak_bytes, found.latency_cycles) <= (
                m.spilled_bytes, m.peak_bytes, m.latency_cycles,
            )  # fmt: skip
    assert found.spilled_bound_bytes <= found.spilled_bytes
    assert found.lower_bound_bytes <= found.peak_bytes
    assert found.peak_bytes == measure(graph, found.order, capacity).peak_bytes
    check_spills(graph, found.order, found.spilled, capacity)
    assert exact_order(graph, capacity, costs, max_states) == found


@given(dags(14), st.integers(0, 20))
def test_a_small_budget_never_claims_more_than_is_true(graph: InstanceGraph, capacity: int) -> None:
    hasty = exact_order(graph, capacity, max_states=8)
    whole = exact_order(graph, capacity)
    if whole.proven:
        assert hasty.spilled_bound_bytes <= whole.spilled_bytes
        assert hasty.proven <= (hasty.spilled_bytes == whole.spilled_bytes)
        if hasty.spilled_bytes == whole.spilled_bytes:
            assert hasty.lower_bound_bytes <= whole.peak_bytes <= hasty.peak_bytes


def check_spills(
    graph: InstanceGraph, order: Sequence[int], spilled: Sequence[int], capacity: int
) -> None:
    for live in live_sets(graph, order):
        assert sum(graph.output_bytes[j] for j in live if j not in spilled) <= capacity


# spills


def fits(lives: Sequence[LiveTensor], scopes: Sequence[BufferScope], lb: int, gb: int) -> bool:
    for task in range(20):
        for scope, capacity in ((BufferScope.LB, lb), (BufferScope.GB, gb)):
            used = sum(
                t.size_bytes
                for t, s in zip(lives, scopes, strict=True)
                if s is scope and t.first <= task <= t.last
            )
            if used > capacity:
                return False
    return True


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


@given(tensors(10), st.integers(0, 14), st.integers(0, 10), st.data())
def test_no_buffer_overflows_and_cost_is_the_least(
    lives: tuple[LiveTensor, ...], lb: int, gb: int, data: st.DataObject
) -> None:
    ranks = list(BufferScope)
    prices = data.draw(st.lists(st.tuples(*[st.integers(0, 9)] * 3),
                                min_size=len(lives), max_size=len(lives)))  # fmt: skip

    def cost(tensor: LiveTensor, scope: BufferScope) -> int:
        return int(prices[int(tensor.name[1:])][ranks.index(scope)])

    totals = {}
    for rule in SpillRule:
        placed = place_tensors(lives, lb, gb, rule, cost)
        scopes = [p.scope for p in placed]
        assert [p.name for p in placed] == [t.name for t in lives]
        assert fits(lives, scopes, lb, gb)
        assert all(
            ranks.index(s) >= ranks.index(t.scope) for t, s in zip(lives, scopes, strict=True)
        )
        totals[rule] = sum(cost(t, s) for t, s in zip(lives, scopes, strict=True))
    assert totals[SpillRule.BY_COST] == min(totals.values())
    if len(lives) <= 5:
        options = [ranks[ranks.index(t.scope) :] for t in lives]
        assert totals[SpillRule.BY_COST] == min(
            sum(cost(t, s) for t, s in zip(lives, scopes, strict=True))
            for scopes in product(*options)
            if fits(lives, scopes, lb, gb)
        )
