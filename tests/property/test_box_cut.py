"""Cutting boxes of tilings: every tiling of a box is in one of its halves."""

from __future__ import annotations

from itertools import product
from math import ceil, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.jit import Loop, compiled
from worker.compiler.tiling.nest.arrays import TRIPS, WAYS, Ints
from worker.compiler.tiling.nest.box_cut import HALVES, SINGLE_TILINGS, cut


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """(low, high, units, extents, single) of a few boxes that are more than one tiling each."""
    stages, axes = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]))
    number = draw(st.integers(1, 3))
    most = 3 if stages * axes == 4 else 6
    shape = (number, 2, stages, axes)
    low = np.array(draw(st.lists(st.integers(1, most), min_size=(n := prod(shape)), max_size=n)))
    wide = np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    low, high = low.reshape(shape), (low + wide).reshape(shape)
    high[:, TRIPS, 0, 0] += 1
    units = np.array(draw(st.lists(st.integers(1, 12), min_size=stages, max_size=stages)))
    extents = np.array(draw(st.lists(st.integers(1, 40), min_size=axes, max_size=axes)))
    single = np.array(draw(st.lists(st.booleans(), min_size=axes, max_size=axes)))
    return low, high, units, extents, single


def tilings(low: Ints, high: Ints) -> set[tuple[int, ...]]:
    ranges = (range(a, b + 1) for a, b in zip(low.flat, high.flat, strict=True))
    return set(product(*ranges))


def is_tiling(numbers: Ints, units: Ints, extents: Ints, single: Ints) -> bool:
    """As the module says: as many units and steps as there are, single steps where they must be."""
    for k, most in enumerate(units):
        if prod(numbers[WAYS, k].tolist()) > most:
            return False
        for a, extent in enumerate(extents):
            outside = prod(numbers[:, :k, a].flat) * numbers[WAYS, k, a]
            if numbers[TRIPS, k, a] > ceil(extent / outside):
                return False
    if len(units) > 1:
        return True
    return all(
        not is_one or ways * trips >= extent
        for is_one, extent, ways, trips in zip(
            single, extents, numbers[WAYS, 0], numbers[TRIPS, 0], strict=True
        )
    )


Half = tuple[list[int], list[int], bool]


def cut_up(
    loop: Loop, low: Ints, high: Ints, places: list[int], num_deep: int, ways_first: float,
    limits: tuple[Ints, Ints, Ints],
) -> tuple[list[Half], list[int]]:  # fmt: skip
    """Halves (lowest numbers, highest, whether of one of the first), and single tilings."""
    lower, upper = (np.zeros((2 * len(places), *low.shape[1:]), np.int64) for _ in range(2))
    is_deep, ones = np.zeros(2 * len(places), np.bool_), np.zeros(len(places), np.int64)
    counts, before = np.zeros(2, np.int64), (low.copy(), high.copy())
    loop(low, high, np.array(places), num_deep, ways_first, *limits, lower, upper, is_deep, ones,
         counts)  # fmt: skip
    assert np.array_equal(before, (low, high))
    halves = [
        (lower[c].ravel().tolist(), upper[c].ravel().tolist(), bool(is_deep[c]))
        for c in range(int(counts[HALVES]))
    ]
    return halves, ones[: counts[SINGLE_TILINGS]].tolist()


@pytest.mark.parametrize("is_compiled", [False, True])
@given(boxes(), st.sampled_from([1.0, 16.0]), st.integers(0, 4))
def test_halves_are_apart_and_lose_no_tiling(
    is_compiled: bool, drawn: tuple[Ints, Ints, Ints, Ints, Ints], ways_first: float, deep: int
) -> None:
    low, high, *limits = drawn
    loop = compiled(cut) if is_compiled else cut
    units, extents, single = limits
    shape, every_half = low.shape[1:], []
    for b in range(len(low)):
        found, ones = cut_up(loop, low, high, [b], 1, ways_first, (units, extents, single))
        assert not ones
        halves = [tilings(np.array(first), np.array(last)) for first, last, _ in found]
        every, kept = tilings(low[b], high[b]), set().union(*halves)
        assert len(found) <= 2
        assert sum(map(len, halves)) == len(kept)
        assert kept <= every
        assert all(0 < len(half) < len(every) for half in halves)
        assert not any(
            is_tiling(np.array(numbers).reshape(shape), units, extents, single)
            for numbers in every - kept
        )
        every_half += [(first, last, b + 1 < deep) for first, last, _ in found]

    # Many at once, beside a single tiling: the first `deep` places are marked.
    low, high = (np.concatenate([low[:1], ends]) for ends in (low, high))
    places = list(range(len(low)))
    found, ones = cut_up(loop, low, high, places, deep, ways_first, (units, extents, single))
    assert ones == [0]
    assert sorted(found) == sorted(every_half)
