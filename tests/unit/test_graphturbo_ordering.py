"""Instances and their orders: figures 6 and 7 of the paper, two towers, nests, refusals."""

from __future__ import annotations

import pytest
from counted_work import growth

from worker.compiler.errors import InternalError
from worker.compiler.strategies.graphturbo.instances import instance_graph
from worker.compiler.strategies.graphturbo.ordering import (
    bfs_order,
    dfs_order,
    is_nest,
    orders_of,
)
from worker.compiler.strategies.graphturbo.summary import OrderName
from worker.compiler.strategies.graphturbo.values import Instance, InstanceGraph

BFS, DFS, EXACT = OrderName.BFS, OrderName.DFS, OrderName.EXACT


def chain(factors: tuple[int, ...], instance_bytes: int = 1) -> InstanceGraph:
    """Groups one after the other."""
    edges = [(g, g + 1) for g in range(len(factors) - 1)]
    return instance_graph(factors, [f * instance_bytes for f in factors], edges)


FIGURE_6 = chain((8, 4, 2, 1))
NAMES = [f"{'abcd'[i.group]}{i.number + 1}" for i in FIGURE_6.instances]
TOWERS = instance_graph((4, 4, 4, 1), (8, 8, 4, 1), [(0, 2), (1, 2), (2, 3)])
"""Two groups that read inputs, joined piece by piece into something smaller."""


def named(positions: tuple[int, ...]) -> str:
    return " ".join(NAMES[i] for i in positions)


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


def test_figure_7_orders() -> None:
    """TV-GT-1."""
    assert named(dfs_order(FIGURE_6)) == "a8 a7 b4 a6 a5 b3 c2 a4 a3 b2 a2 a1 b1 c1 d1"
    assert bfs_order(FIGURE_6) == tuple(range(15))


def test_peaks_of_figure_7() -> None:
    """TV-GT-2.  The order of least peak of a chain differs from depth first in names only."""
    found = orders_of(FIGURE_6, 100)
    assert [(o.name, o.peak_bytes, o.spilled_bytes) for o in found] == [(DFS, 5, 0), (BFS, 9, 0)]


def test_what_exceeds_the_buffer_is_spilled() -> None:
    assert [o.spilled_bytes for o in orders_of(FIGURE_6, 4)] == [1, 8]


def test_depth_first_search_keeps_a_whole_tower() -> None:
    """Algorithm 3 scans from the tail: all pieces of the last tower run before the first joins."""
    found = orders_of(TOWERS, 100)
    assert [(o.name, o.peak_bytes) for o in found] == [(EXACT, 8), (DFS, 11), (BFS, 17)]
    groups = {o.name: [TOWERS.instances[i].group for i in o.order] for o in found}
    assert groups[DFS] == [1, 1, 1, 1, 0, 2, 0, 2, 0, 2, 0, 2, 3]
    assert groups[EXACT] == [0, 1, 2] * 4 + [3]
    assert [o.spilled_bytes for o in orders_of(TOWERS, 8)] == [0, 4, 10]


def test_an_output_of_several_readers_has_the_papers_orders_only() -> None:
    shared = instance_graph((2, 2, 2), (2, 2, 2), [(0, 1), (0, 2), (1, 2)])
    assert {o.name for o in orders_of(shared, 9)} == {DFS, BFS}


def test_bytes_are_shared_out_rounded_up() -> None:
    graph = instance_graph([4], [10], [])
    assert graph.output_bytes == (3, 3, 3, 3)
    assert graph.instances[2] == Instance(0, 2)


def test_a_group_reads_earlier_ones_of_multiple_factors() -> None:
    with pytest.raises(InternalError, match="factor 3 reads group 0 of factor 4"):
        instance_graph((4, 3), (1, 1), [(0, 1)])
    with pytest.raises(InternalError, match="reads group 1"):
        instance_graph((4, 2), (1, 1), [(1, 0)])


def test_impossible_dependences_are_refused() -> None:
    loop = InstanceGraph((Instance(0, 0), Instance(1, 0)), ((1,), (0,)), (1, 1))
    with pytest.raises(InternalError, match="cycle"):
        dfs_order(loop)
    with pytest.raises(InternalError, match="topological"):
        bfs_order(loop)


def test_orders_of_five_thousand_instances_cost_linear_work() -> None:
    def measured(count: int) -> list[int]:
        stages = (*(count >> k for k in range(5)), count >> 6)
        return [o.peak_bytes for o in orders_of(chain(stages, instance_bytes=10), 100)]

    assert measured(2560) == [90, 25610]
    assert growth(measured, 1280) < 2.3


def test_depth_first_search_of_a_chain_is_a_nest_and_breadth_first_is_none() -> None:
    assert is_nest(FIGURE_6, dfs_order(FIGURE_6), (8, 4, 2, 1))
    assert not is_nest(FIGURE_6, bfs_order(FIGURE_6), (8, 4, 2, 1))
    equal = chain((6, 6, 3))
    assert is_nest(equal, dfs_order(equal), (6, 6, 3))


def test_towers_nest_when_they_take_turns() -> None:
    best, depth, _ = orders_of(TOWERS, 100)
    assert is_nest(TOWERS, best.order, (4, 4, 4, 1))
    assert not is_nest(TOWERS, depth.order, (4, 4, 4, 1))
