"""The model as a drawing: a box for every row of the layer table, below what it reads.

Layers by the longest way from an input; long edges pass every layer in between, so that none goes
through a box; each layer ordered by the mean place of what it is tied to (Sugiyama, Tagawa and Toda
1981), then moved towards it as far as its neighbours let it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from service.pages.report import Layer

BOX_WIDTH, BOX_HEIGHT = 150, 40
_ACROSS, _DOWN, _LANE = 22, 34, 12
"""Room between boxes, between layers, and what an edge that passes a layer takes."""
_ROUNDS = 6
_MOST_BENDS = 20_000
"""Passages of long edges; a model with more has its longest edges drawn straight."""
_MOST_NAMES = 3


class _Node(msgspec.Struct):
    name: str
    inputs: list[str] = []
    outputs: list[str] = []


class _Graph(msgspec.Struct):
    nodes: list[_Node] = []


@dataclass(slots=True)
class _Place:
    """A box, or where a long edge passes a layer."""

    rank: int
    width: float
    x: float = 0.0
    """Of its middle."""
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)


def edges_of(document: object, layers: Sequence[Layer]) -> list[tuple[int, int]]:
    """(row, row) wherever a row reads what another writes, by graph.json.

    A node that several rows run, one after the other, is a chain of them.  What nodes without a row
    do (they only name or shape a value) counts as done by who reads it.

    Raises:
        msgspec.ValidationError: the document has another shape.
    """
    graph = msgspec.convert(document, _Graph)
    rows_of_node: dict[str, list[int]] = {}
    for layer in layers:
        for name in dict.fromkeys(layer.onnx_nodes):
            rows_of_node.setdefault(name, []).append(layer.row)
    writers: dict[str, frozenset[int]] = {}
    found: dict[tuple[int, int], None] = {}
    for node in graph.nodes:
        read = frozenset[int]().union(*(writers.get(name, frozenset()) for name in node.inputs))
        rows = rows_of_node.get(node.name)
        if rows is not None:
            found |= dict.fromkeys((one, rows[0]) for one in sorted(read) if one != rows[0])
            found |= dict.fromkeys(pairwise(rows))
        for name in node.outputs:
            writers[name] = read if rows is None else frozenset({rows[-1]})
    return list(found)


def drawn(layers: Sequence[Layer], edges: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """Boxes and edges with their places, in pixels.  The same rows give the same drawing.

    A row that reads what comes after it, as a loop's body does, has that edge left out of the
    order, not out of the drawing.

    Cost: edges times the layers they pass, for each of a few rounds.
    """
    rows = [layer for layer in layers if layer.part != "kernel"]
    number = {layer.row: k for k, layer in enumerate(rows)}
    tied = [(number[a], number[b]) for a, b in edges if a in number and b in number]
    forward = [(a, b) for a, b in tied if a < b]  # rows are in the order of execution
    ranks = _ranks(len(rows), forward)
    places = [_Place(rank, BOX_WIDTH) for rank in ranks]
    ways = _ways(places, forward)
    order = _ordered(places)
    _moved(places, order)
    left = min((p.x - p.width / 2 for p in places), default=0.0)
    for place in places:
        place.x += _ACROSS - left
    ways += [[a, b] for a, b in tied if a >= b]
    return {
        "width": max((p.x + p.width / 2 for p in places), default=0.0) + _ACROSS,
        "height": (max(ranks, default=0) + 1) * (BOX_HEIGHT + _DOWN) + _DOWN,
        "box": [BOX_WIDTH, BOX_HEIGHT],
        "nodes": [
            {"row": layer.row, "x": round(places[k].x, 1), "y": round(_top(places[k].rank), 1),
             "op": layer.op_type, "name": ", ".join(layer.onnx_nodes[:_MOST_NAMES]),
             "cycles": layer.cycles, "pct": layer.pct, "cause": layer.bound_by,
             "target": layer.placement, "kernel": layer.index}
            for k, layer in enumerate(rows)
        ],
        "edges": [
            {"from": rows[way[0]].row, "to": rows[way[-1]].row,
             "bends": [[round(places[k].x, 1), round(_top(places[k].rank), 1)]
                       for k in way[1:-1]]}
            for way in ways
        ],
    }  # fmt: skip


def _top(rank: int) -> float:
    return _DOWN + rank * (BOX_HEIGHT + _DOWN)


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Of each row the longest way to it; then inputs as near as may be to who reads them."""
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        above[b].append(a)
        below[a].append(b)
    ranks = [0] * count
    for k in range(count):
        ranks[k] = max((ranks[a] + 1 for a in above[k]), default=0)
    for k in reversed(range(count)):
        if not above[k] and below[k]:
            ranks[k] = min(ranks[b] for b in below[k]) - 1
    return ranks


def _ways(places: list[_Place], edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Every edge as the places it passes; adds those of long edges."""
    ways: list[list[int]] = []
    room = _MOST_BENDS
    for a, b in sorted(edges, key=lambda edge: places[edge[1]].rank - places[edge[0]].rank):
        way = [a]
        between = range(places[a].rank + 1, places[b].rank)
        if len(between) <= room:
            room -= len(between)
            for rank in between:
                places.append(_Place(rank, _LANE))
                way.append(len(places) - 1)
        way.append(b)
        for above, below in pairwise(way):
            if places[below].rank - places[above].rank == 1:
                places[above].below.append(below)
                places[below].above.append(above)
        ways.append(way)
    return ways


def _ordered(places: Sequence[_Place]) -> list[list[int]]:
    """The places of each layer from left to right, with few crossings."""
    order: list[list[int]] = [[] for _ in range(1 + max((p.rank for p in places), default=-1))]
    for k, place in enumerate(places):
        order[place.rank].append(k)
    at = {k: float(i) for layer in order for i, k in enumerate(layer)}

    def mean(k: int, ties: Sequence[int]) -> float:
        return sum(at[other] for other in ties) / len(ties) if ties else at[k]

    for turn in range(_ROUNDS):
        for layer in order if turn % 2 == 0 else reversed(order):
            key = {k: mean(k, places[k].above if turn % 2 == 0 else places[k].below) for k in layer}
            layer.sort(key=lambda k: (key[k], at[k]))
            at.update((k, float(i)) for i, k in enumerate(layer))
    return order


def _moved(places: Sequence[_Place], order: Sequence[Sequence[int]]) -> None:
    """Give each place its x: near what it is tied to, apart from its neighbours."""
    for layer in order:
        x = 0.0
        for k in layer:
            places[k].x = x + places[k].width / 2
            x += places[k].width + _ACROSS
    for turn in range(_ROUNDS):
        for layer in order if turn % 2 == 0 else reversed(order):
            wanted = []
            for k in layer:
                ties = places[k].above if turn % 2 == 0 else places[k].below
                near = [places[other].x for other in ties]
                wanted.append(sum(near) / len(near) if near else places[k].x)
            _apart(places, layer, wanted)


def _apart(places: Sequence[_Place], layer: Sequence[int], wanted: Sequence[float]) -> None:
    """The places of a layer nearest to where they want to be, in their order and not overlapping.

    Neighbours that would overlap become a block that stands where its members want on average
    (pool adjacent violators).
    """
    blocks: list[tuple[float, int]] = []  # (sum of wanted places less their offsets, members)
    offsets: list[float] = []
    offset = 0.0
    for at, k in enumerate(layer):
        if at:
            offset += (places[layer[at - 1]].width + places[k].width) / 2 + _ACROSS
        offsets.append(offset)
        total, count = wanted[at] - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            more, members = blocks.pop()
            total, count = total + more, count + members
        blocks.append((total, count))
    at = 0
    for total, count in blocks:
        for _ in range(count):
            places[layer[at]].x = total / count + offsets[at]
            at += 1


def graph_view(document: Mapping[str, Any], layers: Sequence[Layer]) -> dict[str, Any] | str:
    """What the page draws, or why there is nothing to draw."""
    try:
        edges = edges_of(document, layers)
    except msgspec.ValidationError as error:
        return f"its graph has another shape than this release's: {error}"
    return drawn(layers, edges)
