"""nn-dataflow's space on a mesh: its optima to the last digit, hops word by word, all ways."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY

from benchmarks.rivals.blocking import front
from benchmarks.rivals.mesh import SIDE, Cut, Shared, at_corners, cuts, layout_of, shared
from benchmarks.rivals.mesh_networks import HOP, NODE, by_rule, chain, of_chain
from benchmarks.rivals.row_stationary import Layer

Word = tuple[int, ...]
Place = tuple[int, int]


@pytest.mark.parametrize(
    ("net", "energy", "ruled"),
    [
        ("mlp_l", 916_666_722, 916_666_722),
        ("mobilenet", 13_446_113_324, 13_695_468_300),
        ("vgg_net", 157_617_512_080, 157_806_784_136),
    ],
)
@pytest.mark.no_cover
def test_networks_have_the_optima_that_are_known(net: str, energy: int, ruled: int) -> None:
    """Proven elsewhere over the same space, and what the tool's rule finds in it."""
    layers, size = chain(net)
    assert of_chain(layers, size, 1).energy == energy
    assert by_rule(layers, size, 1) == ruled


def part(total: int, k: int, parts: int) -> range:
    return range(k * total // parts, (k + 1) * total // parts)


class Share:
    """What one node has of a layer, word by word."""

    def __init__(self, layer: Layer, batch: int, cut: Cut, own: tuple[Place, ...]) -> None:
        filters, _, images, channels = (h * cut.wide[kind] + w for kind, (h, w) in enumerate(own))
        place = [0, 0]
        for kind in cut.order:
            place[0] = place[0] * cut.tall[kind] + own[kind][0]
            place[1] = place[1] * cut.wide[kind] + own[kind][1]
        self.place: Place = (place[0], place[1])
        made = part(layer.filters, filters, cut.size(0))
        rows = part(layer.size[0], own[1][0], cut.tall[1])
        columns = part(layer.size[1], own[1][1], cut.wide[1])
        some = part(batch, images, cut.size(2))
        read = part(layer.channels, channels, cut.size(3))
        if layer.is_region:  # the tool's: one more
            read = range(made.start, min(layer.channels, made.stop + 1))
        tall, wide = layer.window
        # Boxes: what strides skip between two windows comes, too.
        down, right = (
            range(one.start * layer.stride, (one.stop - 1) * layer.stride + window)
            for one, window in ((rows, tall), (columns, wide))
        )
        self.results = set(product(some, made, rows, columns))
        self.inputs = set(product(some, read, down, right))
        taps = tall * wide
        self.filters = 0 if layer.is_region else len(made) * len(read) * taps


def shares(layer: Layer, batch: int, cut: Cut) -> Iterator[Share]:
    sides = (product(range(a), range(b)) for a, b in zip(cut.tall, cut.wide, strict=True))
    for own in product(*sides):
        yield Share(layer, batch, cut, own)


def far(a: Place, b: Place) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def corners_of(layer: Layer, batch: int, cut: Cut) -> dict[Word, Place]:
    """By word of a map, the corner where it lies."""
    found = {}
    for share in shares(layer, batch, cut):
        for word in share.results:
            found[word] = (15 * share.place[0], 15 * share.place[1])
    return found


layers = st.builds(
    Layer, st.sampled_from([1, 3, 8, 16]), st.sampled_from([2, 8, 16, 32]),
    st.tuples(st.integers(1, 8), st.sampled_from([1, 2, 4, 8, 16])),
    st.tuples(st.integers(1, 3), st.integers(1, 2)), st.integers(1, 2),
)  # fmt: skip


@COSTLY
@given(layers, st.sampled_from([1, 2, 4]), st.booleans(), st.randoms(use_true_random=False))
def test_hops_are_those_of_every_word(
    layer: Layer, batch: int, is_region: bool, draws: Random
) -> None:
    if is_region:
        layer = Layer(layer.filters, layer.filters, layer.size, layer.window, layer.stride, True)
    cut = draws.choice(cuts(layer, batch))
    nodes = list(shares(layer, batch, cut))
    assert len({node.place for node in nodes}) == len(nodes) == SIDE * SIDE
    found = shared(layer, batch, cut)

    ends = list(product((0, 15), repeat=2))
    busy = [node for node in nodes if node.results and node.inputs]
    assert found.filter_hops == sum(n.filters * min(far(n.place, e) for e in ends) for n in busy)

    size = layer.size[0] * layer.stride, layer.size[1] * layer.stride
    before = Layer(layer.channels, layer.channels, size, (1, 1))
    given_as = at_corners(draws.choice(cuts(before, batch)))
    lies = corners_of(before, batch, given_as)
    moved = sum(far(n.place, lies[word]) for n in busy for word in n.inputs if word in lies)
    assert found.input_hops(layout_of(before, batch, given_as)) == moved

    home = corners_of(layer, batch, at_corners(cut))
    teams: dict[frozenset[Word], list[Share]] = {}
    for node in busy:
        teams.setdefault(frozenset(node.results), []).append(node)
    total = 0
    for results, team in teams.items():
        middle = team[len(team) // 2].place
        total += sum(far(middle, home[word]) for word in results)
        total += sum(-(-len(results) * far(n.place, middle) // 2) for n in team)
    assert found.result_hops == total


def test_the_best_way_through_two_layers_is_the_best_of_all_ways() -> None:
    pair = [Layer(16, 32, (4, 4), (3, 3)), Layer(32, 8, (2, 2), (1, 1), 2)]
    image = Layer(16, 16, (4, 4), (1, 1))
    starts = [layout_of(image, 2, at_corners(c)) for c in cuts(image, 2, 2, is_input=True)]
    ways = [[shared(layer, 2, cut) for cut in cuts(layer, 2)] for layer in pair]

    def energy(way: Shared, hops: int) -> float:
        rows = front(way.node, way.batch, NODE, way.occupancy)
        moved = rows[:, 1:] @ np.array([way.filter_hops, hops, way.result_hops])
        return float((256 * rows[:, 0] + HOP * moved).min())

    known: dict[tuple[int, int, int], float] = {}
    least = inf
    for a, first in enumerate(ways[0]):
        hops = min(first.input_hops(start) for start in starts)
        begun = energy(first, hops)
        for b, second in enumerate(ways[1]):
            key = (a, b, second.input_hops(first.result))
            least = min(least, begun + known.setdefault(key, energy(second, key[2])))
    assert of_chain(pair, (4, 4), 2).energy == round(least)
