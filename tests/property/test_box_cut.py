"""Cutting boxes of tilings: every tiling of a box is in one of its halves."""

from __future__ import annotations

from itertools import product
from math import ceil, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.jit import compiled
from worker.compiler.tiling.nest.arrays import TRIPS, WAYS, Ints
from worker.compiler.tiling.nest.box_cut import cut


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


@pytest.mark.parametrize("is_compiled", [False, True])
@given(boxes(), st.sampled_from([1.0, 16.0]))
def test_halves_are_apart_and_lose_no_tiling(
    is_compiled: bool, drawn: tuple[Ints, Ints, Ints, Ints, Ints], ways_first: float
) -> None:
    low, high, units, extents, single = drawn
    number = len(low)
    lower, upper = (np.zeros((2 * number, *low.shape[1:]), np.int64) for _ in range(2))
    some = np.zeros(2 * number, np.bool_)
    before = low.copy(), high.copy()
    loop = compiled(cut) if is_compiled else cut
    loop(low, high, ways_first, units, extents, single, lower, upper, some)
    assert np.array_equal(before, (low, high))
    for b in range(number):
        halves = [tilings(lower[c], upper[c]) if some[c] else set() for c in (b, b + number)]
        every = tilings(low[b], high[b])
        assert not halves[0] & halves[1]
        assert halves[0] | halves[1] <= every
        assert len(halves[0]) < len(every) and len(halves[1]) < len(every)
        left = every - halves[0] - halves[1]
        shape = low.shape[1:]
        assert not any(
            is_tiling(np.array(numbers).reshape(shape), units, extents, single) for numbers in left
        )
