"""Networks layer by layer on a mesh: the least energy of all cuts, blockings and layouts together.

What a layer takes depends on how the maps that it reads lie at the corners, and on nothing else of
what was before.  So the best way to each combination of layouts of the maps that are still to be
read, layer after layer, is the best of all (Bellman): a table with an axis for every such map.  The
tool keeps one way per layer and chooses blockings without hops; this proves how far that is from
the best of the same space.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from benchmarks.rivals.blocking import Floats, Optimum, best_of_each, front
from benchmarks.rivals.graphs import Graph, Vertex
from benchmarks.rivals.mesh import (
    CORNERS,
    SIDE,
    Ints,
    Layout,
    Shared,
    at_corners,
    cuts,
    layout_of,
    shared,
)
from benchmarks.rivals.row_stationary import Layer, Node

NODE = Node(array=(8, 8), register_words=32, buffer_words=16_384)
NODES = SIDE * SIDE
HOP = 10.0
"""Energy of a word and hop."""
MOST_STATES = 1 << 26
"""Combinations of layouts that a table may have."""
_GIVEN = ""
"""The axis of all given maps: they are cut alike, so one choice is for all."""

Lying = dict[str, list[Layout]]
"""By map, how it may lie; given ones have as many, in the same order."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best of a network."""

    energy: int
    cuts: int
    """Of all layers, together."""
    states: int
    """Combinations of layouts in the largest table."""
    seconds: float


class Layers:
    """Layers by all cuts, and what remains of them for a node; each found once."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self._ways: dict[Layer, list[Shared]] = {}
        self._fronts: dict[object, Floats] = {}
        self._best: dict[object, list[Optimum]] = {}

    def ways(self, layer: Layer) -> list[Shared]:
        """By all cuts."""
        if layer not in self._ways:
            self._ways[layer] = [shared(layer, self.batch, cut) for cut in cuts(layer, self.batch)]
        return self._ways[layer]

    def energies(self, way: Shared, input_hops: Ints) -> Floats:
        """Of the best blocking for each number of hops of the input; infinite where none fits."""
        key = way.node, way.batch, way.occupancy
        if key not in self._fronts:
            self._fronts[key] = front(way.node, way.batch, NODE, way.occupancy)
        rows = self._fronts[key]
        hops = np.array([way.filter_hops, way.result_hops], np.float64)
        fixed = NODES * rows[:, 0] + HOP * (rows[:, [1, 3]] @ hops)
        least = np.full(input_hops.shape, inf)
        for fetches in np.unique(rows[:, 2]):
            start = fixed[rows[:, 2] == fetches].min()
            np.minimum(least, start + HOP * fetches * input_hops, out=least)
        return least

    def chosen(self, way: Shared) -> list[Optimum]:
        """The best blocking of each replication, chosen without hops."""
        key = way.node, way.batch, way.occupancy
        if key not in self._best:
            self._best[key] = best_of_each(way.node, way.batch, NODE, way.occupancy)
        return self._best[key]


def of_graph(graph: Graph, batch: int) -> Found:
    """The least energy of a network.

    Raises:
        ValueError: a layer has no pass that fits, or there are too many layouts together.
    """
    began = time.process_time()
    known, number = Layers(batch), 0
    lying = _given(graph, batch)
    axes, table = [_GIVEN], np.zeros(len(next(iter(lying.values()))))
    most = table.size
    read_last = {_owner(graph, one): name for name, vertex in graph.vertices.items()
                 for one in vertex.reads}  # fmt: skip
    for name, vertex in graph.vertices.items():
        ways = known.ways(vertex.layer)
        number += len(ways)
        lying[name] = list(dict.fromkeys(way.result for way in ways))
        owners, cost = _costs(graph, vertex, lying, lying[name], known)
        if table.size * len(lying[name]) > MOST_STATES:
            raise ValueError(f"{name}: over {MOST_STATES} combinations of layouts of {axes}")
        # Axes that the cost has not are its axes of length one.
        order = sorted(range(len(owners)), key=lambda k: axes.index(owners[k]))
        spread = np.transpose(cost, (len(owners), *order)).reshape(
            -1,
            *(size if axis in owners else 1 for axis, size in zip(axes, table.shape, strict=True)),
        )
        done = tuple(k for k, axis in enumerate(axes) if read_last.get(axis) == name)
        table = np.stack([(table + one).min(axis=done) for one in spread], axis=-1)
        axes = [*(axis for k, axis in enumerate(axes) if k not in done), name]
        most = max(most, table.size)
        if name not in read_last:
            table, axes = table.min(axis=-1), axes[:-1]
    least = table.min()
    if least == inf:
        raise ValueError("a layer has no pass that fits")
    return Found(round(least), number, most, time.process_time() - began)


def _given(graph: Graph, batch: int) -> Lying:
    """How given maps may lie."""
    maps = [Layer(one.channels, one.channels, one.size, (1, 1)) for one in graph.given.values()]
    found = dict.fromkeys(
        tuple(layout_of(one, batch, at_corners(cut)) for one in maps)
        for cut in cuts(maps[0], batch, CORNERS, is_input=True)
    )
    return {name: [choice[k] for choice in found] for k, name in enumerate(graph.given)}


def _owner(graph: Graph, name: str) -> str:
    """The axis of a map's layouts."""
    return _GIVEN if name in graph.given else name


def _input_hops(graph: Graph, vertex: Vertex, way: Shared, lying: Lying) -> dict[str, Ints]:
    """By axis, hops of what a layer reads, for each layout."""
    found: dict[str, Ints] = {}
    first = 0
    for name in vertex.reads:
        owner, hops = _owner(graph, name), way.input_hops(lying[name], first)
        found[owner] = found[owner] + hops if owner in found else hops
        first += graph.channels(name)
    return found


def _costs(
    graph: Graph, vertex: Vertex, lying: Lying, results: Sequence[Layout], known: Layers
) -> tuple[list[str], Floats]:
    """Axes of what a layer reads, and [layouts of each .., results] the least energy of it."""
    owners = list(dict.fromkeys(_owner(graph, one) for one in vertex.reads))
    least: Floats | None = None
    for way in known.ways(vertex.layer):
        hops = _input_hops(graph, vertex, way, lying)
        together = np.zeros((), np.int64)
        for owner in owners:
            together = together[..., None] + hops[owner]
        if least is None:
            least = np.full((*together.shape, len(results)), inf)
        unlike, where = np.unique(together, return_inverse=True)
        energies = known.energies(way, unlike)[where].reshape(together.shape)
        here = least[..., results.index(way.result)]
        np.minimum(here, energies, out=here)
    assert least is not None
    return owners, least


def by_rule(graph: Graph, batch: int) -> int:
    """What the tool's rule finds there: blockings chosen without hops, and one way kept a layer."""
    known, lying, total = Layers(batch), _given(graph, batch), 0.0
    for name, vertex in graph.vertices.items():
        best: tuple[float, Layout | None, int] = inf, None, 0
        for way in known.ways(vertex.layer):
            hops = _input_hops(graph, vertex, way, lying)
            # Maps that were made lie one way by now; given ones, until some are read, any way.
            together = sum(hops.values(), np.zeros((), np.int64))
            for choice, moved in enumerate(together):
                for one in known.chosen(way):
                    far = np.dot(one.fetches, (way.filter_hops, moved, way.result_hops))
                    energy = NODES * one.energy + HOP * far
                    if energy < best[0]:
                        best = energy, way.result, choice
        energy, result, choice = best
        if result is None:
            raise ValueError(f"{name} has no pass that fits")
        total += energy
        lying[name] = [result]
        if len(together) > 1:
            lying |= {one: [lying[one][choice]] for one in graph.given}
    return round(total)
