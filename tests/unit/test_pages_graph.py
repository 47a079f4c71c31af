"""The model as a drawing: its edges by a walk over the graph, and what a drawing may not do."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.pages.graph import BOX_HEIGHT, BOX_WIDTH, drawn, edges_of, graph_view
from service.pages.report import Layer


def layer(row: int, *nodes: str, part: str = "whole") -> Layer:
    return Layer(row, part, row, "Conv", list(nodes), "accelerator", 10 * row, 1.0, [], {})


def node(name: str, *reads: str) -> dict[str, Any]:
    """One that writes a tensor of its own name."""
    return {"name": name, "inputs": list(reads), "outputs": [f"{name}_out"], "op_type": "Conv"}


def test_a_residual_by_hand() -> None:
    """a -> b -> c -> add, and a -> add; the shape between c and add has no row."""
    layers = [layer(0, "a"), layer(1, "b"), layer(2, "c"), layer(3, "add")]
    graph = {"nodes": [
        node("a", "x"), node("b", "a_out", "weights"), node("c", "b_out"),
        node("shape", "c_out"), node("add", "shape_out", "a_out"),
    ]}  # fmt: skip
    edges = edges_of(graph, layers)
    assert sorted(edges) == [(0, 1), (0, 3), (1, 2), (2, 3)]
    found = drawn(layers, edges)
    tops = {box["row"]: box["y"] for box in found["nodes"]}
    assert tops[0] < tops[1] < tops[2] < tops[3]
    [long] = [edge for edge in found["edges"] if (edge["from"], edge["to"]) == (0, 3)]
    assert [y for _, y in long["bends"]] == [tops[1], tops[2]]
    middle = {box["row"]: box["x"] for box in found["nodes"]}
    for row, (x, _) in zip((1, 2), long["bends"], strict=True):
        assert abs(x - middle[row]) > BOX_WIDTH / 2, "it passes beside the box"


def test_rows_of_several_nodes_and_kernels_without_any() -> None:
    layers = [
        layer(0, part="kernel"),
        layer(1, "a", "b", part="nodes"),
        layer(2, "c", part="nodes"),
    ]
    graph = {"nodes": [node("a", "x"), node("b", "a_out"), node("c", "b_out", "a_out")]}
    edges = edges_of(graph, layers)
    assert edges == [(1, 2)], "not to itself, and once"
    assert [box["row"] for box in drawn(layers, edges)["nodes"]] == [1, 2]


def test_a_node_of_several_kernels_is_a_chain() -> None:
    layers = [layer(0, "a"), layer(1, "a"), layer(2, "b")]
    graph = {"nodes": [node("a", "x"), node("b", "a_out")]}
    assert edges_of(graph, layers) == [(0, 1), (1, 2)]


def test_what_reads_what_comes_after_it_is_drawn_too() -> None:
    layers = [layer(0, "a"), layer(1, "b")]
    found = drawn(layers, [(0, 1), (1, 0)])
    assert [(e["from"], e["to"]) for e in found["edges"]] == [(0, 1), (1, 0)]


@pytest.mark.parametrize("document", [{"nodes": 3}, [], {"nodes": [{"inputs": []}]}, "text"])
def test_another_shape_is_a_sentence(document: Any) -> None:
    assert "another shape" in str(graph_view(document, [layer(0, "a")]))


def test_nothing_is_a_drawing() -> None:
    assert drawn([], [])["nodes"] == []
    assert graph_view({}, [])["edges"] == []  # type: ignore[index]  # a view, not a sentence


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[list[int]], list[bool]]:
    """Of each node what it reads, and whether it has a row."""
    count = draw(st.integers(1, 14))
    reads = [
        draw(st.lists(st.integers(0, k - 1), max_size=3, unique=True)) if k else []
        for k in range(count)
    ]
    return reads, draw(st.lists(st.booleans(), min_size=count, max_size=count))


@given(graphs())
def test_edges_are_what_a_walk_finds(graph: tuple[list[list[int]], list[bool]]) -> None:
    reads, has_row = graph

    def sources(k: int) -> set[int]:
        found: set[int] = set()
        for other in reads[k]:
            found |= {other} if has_row[other] else sources(other)
        return found

    layers = [layer(k, f"n{k}") for k in range(len(reads)) if has_row[k]]
    document = {
        "nodes": [node(f"n{k}", *(f"n{r}_out" for r in row)) for k, row in enumerate(reads)]
    }
    wanted = {(a, k) for k in range(len(reads)) if has_row[k] for a in sources(k)}
    assert set(edges_of(document, layers)) == wanted


@given(graphs())
def test_no_two_boxes_overlap_and_edges_go_down(graph: tuple[list[list[int]], list[bool]]) -> None:
    reads, _ = graph
    layers = [layer(k, f"n{k}") for k in range(len(reads))]
    edges = [(a, k) for k, row in enumerate(reads) for a in row]
    found = drawn(layers, edges)
    assert found == drawn(layers, edges)
    ranks: dict[float, list[tuple[float, float]]] = {}
    for box in found["nodes"]:
        ranks.setdefault(box["y"], []).append((box["x"], BOX_WIDTH))
        assert box["x"] - BOX_WIDTH / 2 >= 0
        assert box["x"] + BOX_WIDTH / 2 <= found["width"]
        assert box["y"] + BOX_HEIGHT <= found["height"]
    places = {box["row"]: (box["x"], box["y"]) for box in found["nodes"]}
    assert {(e["from"], e["to"]) for e in found["edges"]} == set(edges)
    for edge in found["edges"]:
        way = [places[edge["from"]], *map(tuple, edge["bends"]), places[edge["to"]]]
        assert all(below[1] > above[1] for above, below in pairwise(way))
        for x, y in edge["bends"]:
            ranks.setdefault(y, []).append((x, 0.0))
    for row in ranks.values():
        for (left, wide), (right, other) in pairwise(sorted(row)):
            assert right - left >= (wide + other) / 2 - 0.11, "rounded to a tenth"
