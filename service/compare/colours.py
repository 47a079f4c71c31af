"""Nodes of two graphs by what they are and where they stand, names left out.

A colour is a number that is equal for equal things.  Colours of both graphs come from one table.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from service.compare.model_graph import Depth, ModelGraph, Node

Edge = tuple[int, int]
"""A node and the number of its output (a producer) or input (a consumer)."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Who reads whom in one graph."""

    producers: tuple[tuple[Edge | None, ...], ...]
    """[node, input]; None: an input of the model, a constant, or nothing."""
    consumers: tuple[tuple[tuple[int, int, int], ...], ...]
    """[node]: number of the output, consumer, number of its input."""


@dataclass(frozen=True, slots=True)
class Colours:
    """Colours of one graph's nodes, each [node]."""

    signature: tuple[int, ...]
    """The node itself."""
    above: tuple[int, ...]
    """With everything that it depends on."""
    below: tuple[int, ...]
    """With everything that depends on it."""
    near: tuple[tuple[int, ...], ...]
    """[radius - 1]: with its surroundings, as far as that."""


class Palette:
    """The table: gives equal things one number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, thing: Hashable) -> int:
        """Give the colour of a thing."""
        return self._numbers.setdefault(thing, len(self._numbers))


def wiring(graph: ModelGraph, depth: Depth) -> Wiring:
    """Find the edges; with `Depth.ORDER` every node reads the one before it.

    An edge that runs against the order of the nodes is none.
    """
    count = len(graph.nodes)
    producers: list[tuple[Edge | None, ...]] = []
    if depth is Depth.ORDER:
        producers = [((k - 1, 0),) if k else () for k in range(count)]
    else:
        written: dict[str, Edge] = {}
        for k, node in enumerate(graph.nodes):
            producers.append(tuple(written.get(name) if name else None for name in node.inputs))
            written.update({name: (k, n) for n, name in enumerate(node.outputs) if name})
    consumers: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]
    for k, edges in enumerate(producers):
        for place, edge in enumerate(edges):
            if edge is not None:
                consumers[edge[0]].append((edge[1], k, place))
    return Wiring(tuple(producers), tuple(tuple(sorted(row)) for row in consumers))


def signature_of(graph: ModelGraph, node: Node, depth: Depth, *, has_weights: bool) -> Hashable:
    """What a node is, names left out, as far as `depth` goes."""
    if depth is Depth.ORDER:
        return node.op_type
    if depth is Depth.EDGES or node.attributes is None:
        return (node.op_type, len(node.inputs), len(node.outputs))
    told: list[Hashable] = [node.op_type, node.attributes]
    for names in (node.inputs, node.outputs):
        for name in names:
            tensor = graph.tensors.get(name)
            if tensor is None:
                told.append(name == "")
            else:
                digest = tensor.sha256 if has_weights else tensor.sha256 is not None
                told.append((tensor.dtype, tensor.shape, digest))
        told.append(len(names))
    return tuple(told)


def colours(
    graph: ModelGraph, wires: Wiring, palette: Palette, depth: Depth, *, has_weights: bool,
    radius: int,
) -> Colours:  # fmt: skip
    """Colour the nodes of one graph.  Cost: linear in its edges, times `radius`."""
    own = [
        palette.number(signature_of(graph, node, depth, has_weights=has_weights))
        for node in graph.nodes
    ]
    above: list[int] = []
    for k, edges in enumerate(wires.producers):
        seen = tuple(None if edge is None else (above[edge[0]], edge[1]) for edge in edges)
        above.append(palette.number(("above", own[k], seen)))
    below = [0] * len(own)
    for k in reversed(range(len(own))):
        after = tuple(sorted((n, below[c], place) for n, c, place in wires.consumers[k]))
        below[k] = palette.number(("below", own[k], after))
    near: list[tuple[int, ...]] = []
    last: Sequence[int] = own
    for _ in range(radius):
        last = [_around(k, last, wires, palette) for k in range(len(own))]
        near.append(tuple(last))
    return Colours(tuple(own), tuple(above), tuple(below), tuple(near))


def _around(k: int, last: Sequence[int], wires: Wiring, palette: Palette) -> int:
    before = tuple(None if e is None else (last[e[0]], e[1]) for e in wires.producers[k])
    after = tuple(sorted((n, last[c], place) for n, c, place in wires.consumers[k]))
    return palette.number(("near", last[k], before, after))
