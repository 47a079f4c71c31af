"""Instances and their orders: figures 6 and 7 of the paper, nests, windows, measures, refusals."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from counted_work import growth

from worker.compiler.errors import InternalError
from worker.compiler.strategies.graphturbo.exact_order import OrderGoal, exact_order
from worker.compiler.strategies.graphturbo.instances import (
    GroupEdge,
    GroupShape,
    SliceRead,
    instance_graph,
)
from worker.compiler.strategies.graphturbo.ordering import (
    OrderCosts,
    OrderMetrics,
    as_nest,
    better,
    bfs_order,
    dfs_order,
    dfs_trace,
    measure,
    nest_order,
)
from worker.compiler.strategies.graphturbo.values import Instance, InstanceGraph


def chain(factors: tuple[int, ...], batch: int, instance_bytes: int = 1) -> InstanceGraph:
    """Groups one after the other, all split on the batch."""
    groups = [GroupShape(f, f * instance_bytes, f) for f in factors]
    edges = [GroupEdge(g, g + 1, SliceRead(batch, batch)) for g in range(len(factors) - 1)]
    return instance_graph(groups, edges)


FIGURE_6 = chain((8, 4, 2, 1), 8)
NAMES = [f"{'abcd'[i.group]}{i.number + 1}" for i in FIGURE_6.instances]


def named(positions: tuple[int, ...]) -> str:
    return " ".join(NAMES[i] for i in positions)


def with_halo() -> InstanceGraph:
    """Two convolutions of one input with a halo along the split rows, added, and one more."""
    return instance_graph(
        [GroupShape(16, 160, 16), GroupShape(8, 80, 8), GroupShape(8, 80, 8), GroupShape(4, 80, 4)],
        [
            GroupEdge(0, 1, SliceRead(64, 32, Fraction(2), before=1, after=0)),
            GroupEdge(1, 2, SliceRead(32, 32, before=1, after=1)),
            GroupEdge(0, 2, SliceRead(64, 32, Fraction(2))),
            GroupEdge(2, 3, SliceRead(32, 16, Fraction(2), before=1, after=0)),
        ],
    )


# the paper's figures


def test_figure_6_keeps_the_black_edges() -> None:
    """TV-GT-1: pairs (2i - 1, 2i) feed i."""
    assert len(NAMES) == 15
    kept = [(NAMES[j], NAMES[i]) for i, some in enumerate(FIGURE_6.producers) for j in some]
    expected = [
        (f"{p}{2 * i - 1 + k}", f"{c}{i}")
        for p, c, count in (("a", "b", 4), ("b", "c", 2), ("c", "d", 1))
        for i in range(1, count + 1)
        for k in range(2)
    ]
    assert kept == expected


def test_figure_7_order_and_ready_list_after_each_step() -> None:
    """TV-GT-1."""
    assert named(dfs_order(FIGURE_6)) == "a8 a7 b4 a6 a5 b3 c2 a4 a3 b2 a2 a1 b1 c1 d1"
    ready = [named(ready) for _, ready in dfs_trace(FIGURE_6)]
    assert ready[:5] == [
        "a1 a2 a3 a4 a5 a6 a7 b4",
        "a1 a2 a3 a4 a5 a6 b4",
        "a1 a2 a3 a4 a5 a6 c2",
        "a1 a2 a3 a4 a5 c2 b3",
        "a1 a2 a3 a4 c2 b3",
    ]
    assert bfs_order(FIGURE_6) == tuple(range(15))


def test_peaks_and_times_of_figure_7() -> None:
    """TV-GT-2."""
    breadth = measure(FIGURE_6, bfs_order(FIGURE_6), 100)
    depth = measure(FIGURE_6, dfs_order(FIGURE_6), 100)
    assert (breadth.peak_bytes, breadth.peak_after_bytes) == (9, 8)
    assert (depth.peak_bytes, depth.peak_after_bytes) == (5, 4)
    assert better(depth, breadth)
    assert not better(breadth, depth)
    times: dict[str, list[int]] = {stage: [] for stage in "abcd"}
    for time, i in enumerate(dfs_order(FIGURE_6), start=1):
        times[NAMES[i][0]].append(time)
    assert times["a"] == [1, 2, 4, 5, 8, 9, 11, 12]
    assert times["b"] == [3, 6, 10, 13]
    assert times["c"] == [7, 14]
    assert times["d"] == [15]


# instances


def test_unmatched_dimensions_keep_all_pairs() -> None:
    graph = instance_graph([GroupShape(3, 9, 9), GroupShape(2, 4, 4)], [GroupEdge(0, 1)])
    assert graph.producers == ((), (), (), (0, 1, 2), (0, 1, 2))


def test_bytes_and_cycles_are_shared_out_rounded_up() -> None:
    graph = instance_graph([GroupShape(4, 10, 7)], [])
    assert graph.output_bytes == (3, 3, 3, 3)
    assert graph.cycles == (2, 2, 2, 2)
    assert graph.instances[2] == Instance(0, 2)


def test_a_halo_reaches_into_the_neighbours() -> None:
    """3x3 convolution, stride 1, padding 1, 8 rows cut in 4: both neighbours are read."""
    read = SliceRead(8, 8, before=1, after=3 - 1 - 1)
    graph = instance_graph([GroupShape(4, 4, 4)] * 2, [GroupEdge(0, 1, read)])
    assert graph.producers[4:] == ((0, 1), (0, 1, 2), (1, 2, 3), (2, 3))


def test_a_stride_that_skips_the_last_row_does_not_read_it() -> None:
    """1x1 convolution of stride 2 over 8 rows in 8 pieces reads the even rows only."""
    read = SliceRead(8, 4, Fraction(2), before=0, after=1 - 2)
    graph = instance_graph([GroupShape(8, 8, 8), GroupShape(4, 4, 4)], [GroupEdge(0, 1, read)])
    assert graph.producers[8:] == ((0,), (2,), (4,), (6,))


def test_up_sampling_reads_half_as_far() -> None:
    read = SliceRead(4, 8, Fraction(1, 2))
    graph = instance_graph([GroupShape(2, 2, 2), GroupShape(8, 8, 8)], [GroupEdge(0, 1, read)])
    assert graph.producers[2:] == ((0,),) * 4 + ((1,),) * 4


@pytest.mark.parametrize(
    ("groups", "edges", "message"),
    [
        ([GroupShape(0, 1, 1)], [], "factor 0"),
        ([GroupShape(1, 1, 1)] * 2, [GroupEdge(1, 0)], "not between groups in order"),
        ([GroupShape(1, 1, 1)] * 2, [GroupEdge(0, 2)], "not between groups in order"),
        ([GroupShape(3, 1, 1)] * 2, [GroupEdge(0, 1, SliceRead(2, 3))], "more instances than"),
        ([GroupShape(3, 1, 1)] * 2, [GroupEdge(0, 1, SliceRead(3, 2))], "more instances than"),
        ([GroupShape(1, 1, 1)] * 2, [GroupEdge(0, 1, SliceRead(2, 2, Fraction(0)))], "scale 0"),
    ],
)
def test_impossible_groups_are_refused(
    groups: list[GroupShape], edges: list[GroupEdge], message: str
) -> None:
    with pytest.raises(InternalError, match=message):
        instance_graph(groups, edges)


# measures


def test_cycles_count_entries_into_groups_and_spills() -> None:
    graph = chain((2, 2), 2)
    costs = OrderCosts(cycles_per_spilled_byte=7, entry_cycles=(10, 100))
    depth = measure(graph, dfs_order(graph), 2, costs)
    assert (depth.spilled_bytes, depth.latency_cycles) == (0, 4 + 10 + 100 + 10 + 100)
    breadth = measure(graph, bfs_order(graph), 2, costs)
    assert (breadth.spilled_bytes, breadth.latency_cycles) == (1, 4 + 10 + 100 + 7)


def test_occupancy_counts_what_stays() -> None:
    graph = chain((2, 1), 2, instance_bytes=3)
    assert measure(graph, bfs_order(graph), 9).mean_occupancy == pytest.approx(18 / 27)
    assert measure(graph, bfs_order(graph), 6).mean_occupancy == pytest.approx((0 + 3 + 6) / 18)
    assert measure(graph, bfs_order(graph), 0).mean_occupancy == 0.0


def test_the_better_order_by_each_measure_in_turn() -> None:
    metrics = OrderMetrics(5, 4, 2, 0.5, 10)
    assert better(replace(metrics, peak_bytes=4, spilled_bytes=9), metrics)
    assert better(replace(metrics, spilled_bytes=1, mean_occupancy=0.1), metrics)
    assert better(replace(metrics, mean_occupancy=0.6, latency_cycles=99), metrics)
    assert better(replace(metrics, latency_cycles=9), metrics)
    assert not better(metrics, metrics)


def test_orders_that_break_dependences_are_refused() -> None:
    with pytest.raises(InternalError, match="before its input"):
        measure(FIGURE_6, tuple(reversed(range(15))), 9)
    with pytest.raises(InternalError, match="misses instances"):
        measure(FIGURE_6, (0, 1, 2), 9)
    loop = replace(chain((2, 1), 2), producers=((1,), (0,), ()))
    with pytest.raises(InternalError, match="cycle"):
        dfs_order(loop)
    with pytest.raises(InternalError, match="topological"):
        bfs_order(loop)


def test_orders_of_five_thousand_instances_cost_linear_work() -> None:
    def measured(count: int) -> tuple[int, int]:
        stages = (*(count >> k for k in range(5)), count >> 6)
        graph = chain(stages, count, instance_bytes=10)
        assert len(graph.instances) == sum(stages)
        breadth = measure(graph, bfs_order(graph), 100)
        depth = measure(graph, dfs_order(graph), 100)
        return breadth.peak_bytes, depth.peak_bytes

    assert measured(2560) == (25610, 90)
    assert growth(measured, 1280) < 2.2


# nests


def test_depth_first_search_of_a_chain_is_a_nest() -> None:
    assert as_nest(FIGURE_6, dfs_order(FIGURE_6)) == (2, 2, 2, 1)
    assert named(nest_order((2, 2, 2, 1))) == "a1 a2 b1 a3 a4 b2 c1 a5 a6 b3 a7 a8 b4 c2 d1"
    assert nest_order(()) == ()


def test_equal_factors_nest_one_to_one_and_the_last_group_repeats() -> None:
    graph = chain((6, 6, 3), 6)
    assert as_nest(graph, dfs_order(graph)) == (1, 2, 3)


def test_what_is_no_nest_is_said_so() -> None:
    assert as_nest(FIGURE_6, bfs_order(FIGURE_6)) is None
    growing = chain((2, 4), 4)
    assert as_nest(growing, dfs_order(growing)) is None
    uneven = chain((3, 2), 6)
    assert as_nest(uneven, dfs_order(uneven)) is None
    halo = with_halo()
    assert as_nest(halo, dfs_order(halo)) is None
    skewed = replace(FIGURE_6, output_bytes=(2, *FIGURE_6.output_bytes[1:]))
    assert as_nest(skewed, dfs_order(skewed)) is None


def test_instances_listed_otherwise_are_no_nest() -> None:
    pair = chain((2, 1), 2)
    swapped = replace(pair, instances=(Instance(0, 1), Instance(0, 0), Instance(1, 0)))
    assert as_nest(swapped, (0, 1, 2)) is None
    within = replace(pair, producers=((), (0,), (0, 1)))
    assert as_nest(within, (0, 1, 2)) is None


def test_nothing_to_order() -> None:
    nothing = instance_graph([], [])
    assert bfs_order(nothing) == dfs_order(nothing) == ()
    assert measure(nothing, (), 9) == OrderMetrics(0, 0, 0, 0.0, 0)
    assert as_nest(nothing, ()) is None
    found = exact_order(nothing, 9, OrderCosts(entry_cycles=(1,)))
    assert (found.order, found.peak_bytes, found.proven) == ((), 0, True)


# past the paper


@pytest.mark.parametrize(("capacity", "spilled"), [(5, 0), (4, 1), (3, 3), (2, 5)])
def test_least_spills_of_figure_6(capacity: int, spilled: int) -> None:
    """Depth first is optimal here; below its peak the fewest bytes are found and proven."""
    found = exact_order(FIGURE_6, capacity)
    assert (found.spilled_bytes, found.peak_bytes, found.proven) == (spilled, 5, True)
    assert found.order == dfs_order(FIGURE_6)
    assert len(found.spilled) == spilled


def test_ways_to_make_room_are_counted_as_they_come() -> None:
    """26 outputs of different sizes, all read by the last instance, and room for half of them:
    millions of smallest sets to spill.  The sizes are multiples of 10, the excess is not, so that
    no set meets the bound; each search stops inside the successors of one state."""
    wide = instance_graph([GroupShape(26, 26, 26), GroupShape(1, 1, 1)], [GroupEdge(0, 1, None)])
    wide = replace(wide, output_bytes=(*(10 * (20 + k) for k in range(26)), 10))
    total = sum(wide.output_bytes)
    excess = total // 2 + 5
    found = exact_order(wide, total - excess, max_states=300)
    assert 300 < found.states <= 7 * 300 + len(wide.instances)
    assert found.spilled_bound_bytes == excess < found.spilled_bytes < total
    assert not found.proven


def test_a_halo_is_where_depth_first_search_loses() -> None:
    halo = with_halo()
    found = exact_order(halo, 1000)
    assert (found.peak_bytes, found.proven, found.gap) == (100, True, 0.0)
    assert measure(halo, dfs_order(halo), 1000).peak_bytes == 110
    assert measure(halo, bfs_order(halo), 1000).peak_bytes == 250
    assert measure(halo, found.order, 100).spilled_bytes == 0
    assert found == exact_order(halo, 1000)


def test_entries_into_groups_choose_among_orders_of_equal_memory() -> None:
    graph = chain((4, 4), 4)
    costs = OrderCosts(entry_cycles=(5, 5))
    assert exact_order(graph, 2, costs).latency_cycles == 8 + 8 * 5
    assert exact_order(graph, 100, costs).peak_bytes == 2
    lone = instance_graph([GroupShape(3, 0, 3), GroupShape(3, 0, 3)], [])
    found = exact_order(lone, 1, costs)
    assert (found.latency_cycles, found.proven) == (6 + 2 * 5, True)
    assert found.latency_cycles <= measure(lone, dfs_order(lone), 1, costs).latency_cycles


def test_fewest_cycles_take_the_room_there_is() -> None:
    """With weights to bring in, breadth first is fastest where it fits, a mixture where not."""
    costs = OrderCosts(entry_cycles=(5, 5, 5, 5))

    def fastest(capacity: int) -> tuple[int, int, int, bool]:
        found = exact_order(FIGURE_6, capacity, costs, goal=OrderGoal.FEW_CYCLES)
        return found.spilled_bytes, found.latency_cycles, found.peak_bytes, found.proven

    assert fastest(9) == (0, 15 + 4 * 5, 9, True)
    half = "a1 a2 a3 a4 b1 b2 a5 a6 a7 a8 b3 b4 c1 c2 d1"
    as_half = measure(FIGURE_6, tuple(NAMES.index(n) for n in half.split()), 7, costs)
    spilled, cycles, peak, proven = fastest(7)
    assert (spilled, proven) == (0, True)
    assert peak <= 7
    assert cycles <= as_half.latency_cycles == 15 + 6 * 5
    depth = measure(FIGURE_6, dfs_order(FIGURE_6), 5, costs)
    assert fastest(5)[1] <= depth.latency_cycles


def test_a_budget_too_small_is_admitted_and_bounds_the_loss() -> None:
    halo = with_halo()
    found = exact_order(halo, 60, max_states=200)
    assert not found.proven
    whole = exact_order(halo, 60, max_states=20_000)
    assert found.spilled_bound_bytes <= whole.spilled_bytes <= found.spilled_bytes
    assert found.lower_bound_bytes <= found.peak_bytes
    for order in (bfs_order(halo), dfs_order(halo)):
        assert found.spilled_bytes <= measure(halo, order, 60).spilled_bytes


def test_many_instances_keep_the_better_of_the_known_orders() -> None:
    graph = chain((1024, 512, 256, 128), 1024)
    found = exact_order(graph, 100)
    assert (found.order, found.peak_bytes, found.proven) == (dfs_order(graph), 5, True)
    tight = exact_order(graph, 3)
    depth = measure(graph, dfs_order(graph), 3)
    assert not tight.proven
    assert tight.spilled_bound_bytes <= tight.spilled_bytes <= depth.spilled_bytes
