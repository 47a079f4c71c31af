"""Epilogues taken off anchors that have poor tiles with them."""

from __future__ import annotations

import pytest
from graphturbo_nets import Net, check_meaning, clustered, nodes, scheduled, unit_context

from worker.compiler.ir.graph import Graph
from worker.compiler.schedule.nodes import Move, Schedule
from worker.compiler.strategies.graphturbo import loosen
from worker.compiler.strategies.graphturbo.loosen import poor_anchors
from worker.compiler.strategies.graphturbo.sections import best_sections
from worker.compiler.tiling.layer.layers import form_layers

ON = clustered(clusters=2, cores=2, gb_bytes=1 << 15, l1_bytes=1 << 13)


def projection(rows: int, depth: int, columns: int) -> Graph:
    """A product and the sum of it and another input."""
    net = Net()
    x, other = net.given(rows, depth), net.given(rows, columns)
    return net.graph(net.add(net.matmul(x, columns), other))


def found_poor(graph: Graph) -> tuple[str, ...]:
    ctx = unit_context(graph, ON)
    sections = best_sections(ctx)
    assert sections is not None
    return poor_anchors(sections, ctx.engines, ON)


def stores_home(schedule: Schedule, tensor: str) -> bool:
    moves = (n for n in nodes(schedule.root) if isinstance(n, Move))
    return any(m.tensor == tensor and m.dst == "DDR" for m in moves)


def test_a_long_reduction_is_poor_and_a_short_one_is_not() -> None:
    assert found_poor(projection(64, 2048, 64)) == ("mm_t3",)
    assert found_poor(projection(64, 16, 64)) == ()


def test_an_anchor_named_alone_gets_no_epilogue() -> None:
    graph = projection(64, 2048, 64)
    assert [layer.ops for layer in form_layers(graph, ON)] == [("mm_t3", "add_t4")]
    apart = form_layers(graph, ON, alone=("mm_t3",))
    assert [layer.ops for layer in apart] == [("mm_t3",), ("add_t4",)]


def test_the_faster_of_both_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = projection(64, 2048, 64)
    loose = scheduled(graph, ON)
    monkeypatch.setattr(loosen, "POOR", float("inf"))
    tight = scheduled(graph, ON)
    assert loose.predicted_cycles < tight.predicted_cycles
    check_meaning(loose)
    # An anchor that is fine stays with its epilogue even if it is looked at.
    monkeypatch.setattr(loosen, "POOR", 0.0)
    small = projection(64, 16, 64)
    assert found_poor(small) == ("mm_t3",)
    assert not stores_home(scheduled(small, ON), "t3")
