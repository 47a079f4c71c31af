"""Networks layer by layer on a mesh: the least energy of all cuts, blockings and layouts together.

What a layer takes depends on how the layer before left its map at the corners, and on nothing else
of it: so the best way to each layout, layer after layer, is the best of all (Bellman).  The tool
keeps one way per layer and chooses blockings without hops; this proves how far that is from the
best of the same space.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from benchmarks.rivals.blocking import Floats, best_of_each, front
from benchmarks.rivals.mesh import (
    CORNERS,
    SIDE,
    Layout,
    Shared,
    at_corners,
    cuts,
    layout_of,
    shared,
)
from benchmarks.rivals.nets import NETS
from benchmarks.rivals.row_stationary import Layer, Node

NODE = Node(array=(8, 8), register_words=32, buffer_words=16_384)
NODES = SIDE * SIDE
HOP = 10.0
"""Energy of a word and hop."""
CHAINS = {"mlp_l": (1, 1), "mobilenet": (224, 224), "vgg_net": (224, 224)}
"""Networks that are chains, and the size of what they are given."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best of a network."""

    energy: int
    cuts: int
    """Of all layers, together."""
    seconds: float


def of_chain(layers: Sequence[Layer], size: tuple[int, int], batch: int) -> Found:
    """Layers that each read what the one before makes, the first a map of `size`."""
    began = time.process_time()
    best = dict.fromkeys(_inputs(layers[0], size, batch), 0.0)
    number = 0
    fronts: dict[object, Floats] = {}
    for layer in layers:
        ways = [shared(layer, batch, cut) for cut in cuts(layer, batch)]
        number += len(ways)
        after: dict[Layout, float] = {}
        for way, hops, before in _distinct(ways, best):
            energy = before + _energy(way, hops, fronts)
            if energy < after.get(way.result, inf):
                after[way.result] = energy
        best = after
    return Found(round(min(best.values())), number, time.process_time() - began)


def _inputs(first: Layer, size: tuple[int, int], batch: int) -> list[Layout]:
    """How the network's input may lie."""
    given = Layer(first.channels, first.channels, size, (1, 1))
    found = (layout_of(given, batch, at_corners(cut))
             for cut in cuts(given, batch, CORNERS, is_input=True))  # fmt: skip
    return list(dict.fromkeys(found))


def _distinct(
    ways: Sequence[Shared], best: dict[Layout, float]
) -> Iterator[tuple[Shared, int, float]]:
    """(way, hops of its input, energy so far) of all ways from all layouts, those left out that
    another one of the same hops, node and result is not worse than."""
    least: dict[tuple[object, ...], tuple[Shared, int, float]] = {}
    for way in ways:
        for layout, energy in best.items():
            hops = way.input_hops(layout)
            key = (way.node, way.batch, way.occupancy, way.filter_hops, way.result_hops, hops,
                   way.result)  # fmt: skip
            if key not in least or energy < least[key][2]:
                least[key] = way, hops, energy
    yield from least.values()


def _energy(way: Shared, input_hops: int, fronts: dict[object, Floats]) -> float:
    """Of the best blocking for these hops; infinite where no pass fits.

    `fronts`: of what remains for a node, known or to be found.
    """
    key = way.node, way.batch, way.occupancy
    if key not in fronts:
        fronts[key] = front(way.node, way.batch, NODE, way.occupancy)
    rows = fronts[key]
    hops = np.array([way.filter_hops, input_hops, way.result_hops], np.float64)
    return float((NODES * rows[:, 0] + HOP * (rows[:, 1:] @ hops)).min(initial=inf))


def by_rule(layers: Sequence[Layer], size: tuple[int, int], batch: int) -> int:
    """What the tool's rule finds there: blockings chosen without hops, and one way kept a layer."""
    before, kept = 0.0, _inputs(layers[0], size, batch)
    for layer in layers:
        best: tuple[float, Layout | None] = inf, None
        for cut in cuts(layer, batch):
            way = shared(layer, batch, cut)
            found = best_of_each(way.node, way.batch, NODE, way.occupancy)
            for layout in kept:
                hops = way.filter_hops, way.input_hops(layout), way.result_hops
                for one in found:
                    moved = sum(h * f for h, f in zip(hops, one.fetches, strict=True))
                    energy = NODES * one.energy + HOP * moved
                    if energy < best[0]:
                        best = energy, way.result
        assert best[1] is not None
        before, kept = before + best[0], [best[1]]
    return round(before)


def chain(net: str) -> tuple[list[Layer], tuple[int, int]]:
    """Layers of a network that is a chain, and the size of what it is given."""
    return [layer for _, layer, times in NETS[net]() for _ in range(times)], CHAINS[net]
