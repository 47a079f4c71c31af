"""nn-dataflow's space on a mesh: its optima to the last digit, hops word by word, all ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from math import inf, prod
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY

from benchmarks.rivals.blocking import front
from benchmarks.rivals.graphs import GRAPHS, Given, Graph, chain
from benchmarks.rivals.mesh import SIDE, Cut, Shared, at_corners, cuts, layout_of, shared
from benchmarks.rivals.mesh_networks import HOP, NODE, by_rule, of_graph
from benchmarks.rivals.nets import NETS
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
def test_networks_have_the_optima_that_are_known(net: str, energy: int, ruled: int) -> None:
    """Proven elsewhere over the same space, and what the tool's rule finds in it."""
    graph = GRAPHS[net]()
    assert of_graph(graph, 1).energy == energy
    assert by_rule(graph, 1) == ruled


@pytest.mark.parametrize(
    ("net", "energy"), [("lstm_gnmt", 9_162_339_556), ("alex_net", 25_049_975_524)]
)
def test_the_rule_finds_what_the_tool_does_in_branches(net: str, energy: int) -> None:
    """As nn_dataflow itself ran; the best of all is no worse."""
    graph = GRAPHS[net]()
    assert by_rule(graph, 1) == energy
    assert 0.99 * energy < of_graph(graph, 1).energy <= energy


@pytest.mark.parametrize("net", NETS)
def test_graphs_have_the_layers_of_their_networks(net: str) -> None:
    listed: Counter[Layer] = Counter()
    for _, layer, times in NETS[net]():
        listed[layer] += times
    assert Counter(vertex.layer for vertex in GRAPHS[net]().vertices.values()) == listed


def test_a_graph_has_no_holes() -> None:
    graph = Graph({"x": Given(4, (2, 2))})
    with pytest.raises(ValueError, match="reads 8 channels; x have others"):
        graph.add("a", Layer(8, 4, (2, 2), (1, 1)), "x")
    with pytest.raises(ValueError, match=r"reads \['y'\], which is not there"):
        graph.add("a", Layer(4, 4, (2, 2), (1, 1)), "y")
    graph.add("a", Layer(4, 4, (2, 2), (1, 1)), "x")
    with pytest.raises(ValueError, match="a is there already"):
        graph.add("a", Layer(4, 4, (2, 2), (1, 1)), "x")


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
        if layer.is_region:  # the tool's: neighbours
            begin = max(0, made.start - layer.inputs // 2)
            end = made.stop + layer.inputs - layer.inputs // 2
            read = range(begin, min(layer.channels * layer.inputs, end))
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
    assert found.input_hops([layout_of(before, batch, given_as)]).tolist() == [moved]

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


@COSTLY
@given(st.sampled_from([1, 2]), st.booleans(), st.randoms(use_true_random=False))
def test_maps_that_are_read_together_follow_each_other(
    batch: int, is_sum: bool, draws: Random
) -> None:
    first, second, size = draws.choice([2, 8]), draws.choice([4, 16]), (4, 4)
    layer = Layer(first + second, 8, size, (3, 3))
    if is_sum:
        first = second
        layer = Layer(first, first, size, (1, 1), is_region=True, inputs=2)
    cut = draws.choice(cuts(layer, batch))
    busy = [node for node in shares(layer, batch, cut) if node.results and node.inputs]
    found = shared(layer, batch, cut)
    begin = 0
    for channels in (first, second):
        before = Layer(channels, channels, size, (1, 1))
        as_one, as_other = (at_corners(draws.choice(cuts(before, batch))) for _ in range(2))
        moved = []
        for given_as in (as_one, as_other):
            lies = corners_of(before, batch, given_as)
            read = (
                (node, lies.get((image, channel - begin, row, column)))
                for node in busy
                for image, channel, row, column in node.inputs
            )
            moved.append(sum(far(node.place, place) for node, place in read if place))
        layouts = [layout_of(before, batch, given_as) for given_as in (as_one, as_other)]
        assert found.input_hops(layouts, begin).tolist() == moved
        begin += channels


def drawn(draws: Random, most_ways: int) -> tuple[Graph, dict[str, list[Shared]]]:
    """A network of two to four layers with branches, and all ways of each layer."""
    while True:
        graph = Graph({"x": Given(16, (2, 2))})
        if draws.random() < 0.5:
            graph.given["y"] = Given(8, (2, 2))
        for k in range(draws.randint(2, 4)):
            maps = [*graph.given, *graph.vertices]
            reads = draws.sample(maps, min(len(maps), draws.choice([1, 2, 2, 3])))
            each = [graph.channels(name) for name in reads]
            layer = Layer(sum(each), draws.choice([8, 16, 16]), (2, 2), (draws.choice([1, 2]),) * 2)
            if len(each) == 2 and each[0] == each[1] and draws.random() < 0.5:
                layer = Layer(each[0], each[0], (2, 2), (1, 1), is_region=True, inputs=2)
            graph.add(f"v{k}", layer, *reads)
        ways = {
            name: [shared(vertex.layer, 1, cut) for cut in cuts(vertex.layer, 1)]
            for name, vertex in graph.vertices.items()
        }
        if 100 < prod(map(len, ways.values())) <= most_ways:
            return graph, ways


@COSTLY
@given(st.randoms(use_true_random=False))
def test_the_best_way_through_branches_is_the_best_of_all_ways(draws: Random) -> None:
    """Way by way of every layer, from every layout of what is given; nothing is left out."""
    graph, ways = drawn(draws, 10_000)
    names = list(graph.vertices)
    maps = {name: Layer(one.channels, one.channels, one.size, (1, 1))
            for name, one in graph.given.items()}  # fmt: skip
    starts = [at_corners(cut) for cut in cuts(maps["x"], 1, 2, is_input=True)]
    lying = {name: [layout_of(one, 1, start) for start in starts] for name, one in maps.items()}
    lying |= {name: list({way.result for way in some}) for name, some in ways.items()}
    chosen: dict[str, int] = {}
    hops: dict[tuple[str, int], list[tuple[str, list[int]]]] = {}
    for name, some in ways.items():
        for number, way in enumerate(some):
            first, here = 0, hops.setdefault((name, number), [])
            for one in graph.vertices[name].reads:
                here.append((one, way.input_hops(lying[one], first).tolist()))
                first += graph.channels(one)
    known: dict[tuple[str, int, int], float] = {}

    def energy(name: str, number: int) -> float:
        moved = sum(each[chosen[one]] for one, each in hops[name, number])
        if (name, number, moved) not in known:
            way = ways[name][number]
            rows = front(way.node, way.batch, NODE, way.occupancy)
            far = rows[:, 1:] @ np.array([way.filter_hops, moved, way.result_hops])
            known[name, number, moved] = float((256 * rows[:, 0] + HOP * far).min())
        return known[name, number, moved]

    def least(left: list[str]) -> float:
        if not left:
            return 0.0
        name, *rest = left
        best = inf
        for number, way in enumerate(ways[name]):
            here = energy(name, number)
            chosen[name] = lying[name].index(way.result)
            best = min(best, here + least(rest))
        return best

    found = inf
    for start in range(len(starts)):
        chosen |= dict.fromkeys(maps, start)
        found = min(found, least(names))
    assert of_graph(graph, 1).energy == round(found)


def test_the_best_way_through_two_layers_is_the_best_of_all_ways() -> None:
    pair = [Layer(16, 32, (4, 4), (3, 3)), Layer(32, 8, (2, 2), (1, 1), 2)]
    image = Layer(16, 16, (4, 4), (1, 1))
    starts = [layout_of(image, 2, at_corners(c)) for c in cuts(image, 2, 2, is_input=True)]
    ways = [[shared(layer, 2, cut) for cut in cuts(layer, 2)] for layer in pair]

    def energy(way: Shared, hops: int) -> float:
        rows = front(way.node, way.batch, NODE, way.occupancy)
        moved = rows[:, 1:] @ np.array([way.filter_hops, hops, way.result_hops])
        return float((256 * rows[:, 0] + HOP * moved).min())

    known: dict[tuple[int, int], float] = {}
    least = inf
    met = [second.input_hops([first.result for first in ways[0]]).tolist() for second in ways[1]]
    for a, first in enumerate(ways[0]):
        hops = int(first.input_hops(starts).min())
        begun = energy(first, hops)
        for b, second in enumerate(ways[1]):
            key = (b, met[b][a])
            if key not in known:
                known[key] = energy(second, key[1])
            least = min(least, begun + known[key])
    graph = chain([("a", pair[0]), ("b", pair[1])], (4, 4))
    assert of_graph(graph, 2).energy == round(least)
