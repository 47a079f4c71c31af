"""KAPLA's greedy search in nn-dataflow's space: a trace by hand, and never below the optimum."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rivals.blocking import optimum
from benchmarks.rivals.chance import chance
from benchmarks.rivals.greedy import Blocking, cached, energy_of, greedy, stacked
from benchmarks.rivals.nets import NETS
from benchmarks.rivals.row_stationary import LOOPS_OF_PRODUCTS, Layer, Node, nests


def test_a_product_in_one_buffer_is_cached_as_by_hand() -> None:
    """TV-KP-2: 8 images, 16 channels in and out, 64 words, order N, K, C from outside.  Steps as
    (N, C, K | words held | input, weights, results)."""
    loops = (16, 16, 8)  # I, O, B

    def held(trips: tuple[int, int, int]) -> int:
        c, k, n = trips
        return n * c + c * k + n * k

    steps = cached(
        LOOPS_OF_PRODUCTS, (1, 1, 1), loops, loops, (2, 1, 0), lambda trips: held(trips) <= 64
    )
    told = [
        ((b, i, o), held((i, o, b)), (inputs, weights, results))
        for (i, o, b), (weights, inputs, results) in steps
    ]
    assert told == [
        ((1, 1, 1), 3, (2048, 2048, 128)), ((1, 1, 2), 5, (1024, 2048, 128)),
        ((2, 1, 2), 8, (1024, 1024, 128)), ((2, 1, 4), 14, (512, 1024, 128)),
        ((4, 1, 4), 24, (512, 512, 128)), ((4, 1, 8), 44, (256, 512, 128)),
    ]  # fmt: skip
    assert sum(steps[-1][1]) == 896


sizes = st.sampled_from([1, 2, 3, 4, 6])
layers = st.builds(
    Layer, sizes, sizes, st.tuples(st.integers(1, 9), st.integers(1, 6)),
    st.tuples(st.integers(1, 5), st.integers(1, 3)), st.integers(1, 2),
)  # fmt: skip
nodes = st.builds(
    Node, st.tuples(st.integers(1, 6), st.integers(1, 6)), st.integers(8, 60),
    st.integers(40, 600),
)  # fmt: skip


def every(number: int) -> list[tuple[int, int, int]]:
    """Ways to write a number as three factors."""
    return [
        (a, b, number // (a * b)) for a in range(1, number + 1) for b in range(1, number + 1)
        if number % (a * b) == 0
    ]  # fmt: skip


@given(layers, st.sampled_from([1, 2, 4]), nodes)
def test_energies_are_those_that_the_optimum_is_the_least_of(
    layer: Layer, batch: int, node: Node
) -> None:
    """All blockings and orders one by one, by the figures that the greedy search is judged by."""
    try:
        least = optimum(layer, batch, node).energy
    except ValueError:
        return
    orders = list(permutations(range(3)))
    found = [
        energy_of(Blocking(nest, tuple(zip(*cut, strict=True)), (one, other)), node)  # type: ignore[arg-type]
        for nest in nests(layer, batch, node)
        for cut in product(*map(every, nest.loops))
        for one in orders
        for other in orders
    ]
    assert min(found) == pytest.approx(least, rel=1e-12)
    mine = greedy(layer, batch, node)
    assert mine.nest in nests(layer, batch, node)
    assert all(
        a * b * c == loops for a, b, c, loops in zip(*mine.trips, mine.nest.loops, strict=True)
    )
    assert energy_of(mine, node) >= least * (1 - 1e-12)


def test_copies_go_to_channels_that_are_left() -> None:
    """Sixteen rows of the array, whose columns have sixteen filters: where there are no more, all
    rows sum input channels up; of sixteen inputs and many filters, more filters share each."""
    found = [
        stacked(Layer(channels, filters, (1, 1), (1, 1)), 1, Node(), (2, 1, 0)).loops
        for channels, filters in ((256, 16), (16, 4096))
    ]
    assert found == [(16, 1, 1), (16, 16, 1)]


@pytest.mark.parametrize("net", ["mlp_l", "lstm_gnmt", "alex_net"])
def test_networks_are_near_their_optima(net: str) -> None:
    for _, layer, _ in NETS[net]():
        least = optimum(layer, 1, Node()).energy
        assert least <= energy_of(greedy(layer, 1, Node()), Node()) <= 1.01 * least


@given(layers, st.sampled_from([1, 2, 4]), nodes, st.integers(0, 1 << 30))
def test_chance_finds_the_optimum_when_it_looks_at_all_and_nothing_below_it(
    layer: Layer, batch: int, node: Node, seed: int
) -> None:
    everything, number = chance(layer, batch, node, 1.0, seed)
    try:
        least = optimum(layer, batch, node).energy
    except ValueError:
        assert everything is None or energy_of(everything, node) == float("inf")
        return
    assert everything is not None
    assert energy_of(everything, node) == pytest.approx(least, rel=1e-12)
    some, fewer = chance(layer, batch, node, 0.4, seed)
    assert fewer <= number
    assert (some, fewer) == chance(layer, batch, node, 0.4, seed)
    assert some is None or energy_of(some, node) >= least * (1 - 1e-12)
