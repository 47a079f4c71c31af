"""Addresses that are used again late: constraints, no worse sums, and a hand-made case."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.lower.spread import FAR, prices, spread
from worker.compiler.memory.allocate import Request, allocate

BLOCKS = st.lists(
    st.tuples(st.integers(1, 90), st.sampled_from([1, 8, 64]), st.integers(0, 60),
              st.integers(1, 12), st.integers(0, 2)),
    min_size=1, max_size=14,
)  # fmt: skip
"""Size, alignment, first leaf, leaves, instance (0: in both)."""


def problem(
    blocks: list[tuple[int, int, int, int, int]],
) -> tuple[list[Request], list[tuple[int, int]], np.ndarray]:
    intervals = [(first, first + length) for _, _, first, length, _ in blocks]
    where = [blocks[k][4] for k in range(len(blocks))]
    together = np.array([[a == 0 or b == 0 or a == b for b in where] for a in where])
    requests = []
    for k, (size, align, *_) in enumerate(blocks):
        met = frozenset(
            j for j in range(len(blocks))
            if j != k and together[k, j]
            and intervals[k][0] < intervals[j][1] and intervals[j][0] < intervals[k][1]
        )  # fmt: skip
        requests.append(Request(size, align, met))
    return requests, intervals, together


def shared(requests: list[Request], at: tuple[int, ...], k: int, j: int) -> bool:
    return at[k] < at[j] + requests[j].size_bytes and at[j] < at[k] + requests[k].size_bytes


def cost(
    requests: list[Request], intervals: list[tuple[int, int]], together: np.ndarray,
    at: tuple[int, ...],
) -> int:  # fmt: skip
    """Of all pairs that share bytes, from the words of the docstring."""
    total = 0
    for k in range(len(at)):
        for j in range(k):
            gap = max(intervals[k][0] - intervals[j][1], intervals[j][0] - intervals[k][1])
            if together[k, j] and gap >= 0 and shared(requests, at, k, j):
                total += 2**20 // (1 + min(gap, FAR)) - 2**20 // (1 + FAR)
    return total


@given(blocks=BLOCKS, room=st.integers(0, 200))
def test_any_blocks_stay_apart_and_cost_no_more(
    blocks: list[tuple[int, int, int, int, int]], room: int
) -> None:
    requests, intervals, together = problem(blocks)
    plan = allocate(requests)
    capacity = plan.peak_bytes + room
    at = spread(requests, plan.addresses, intervals, together, capacity)
    for k, request in enumerate(requests):
        assert at[k] % request.align_bytes == 0
        assert 0 <= at[k] <= capacity - request.size_bytes
        assert not any(shared(requests, at, k, j) for j in request.conflicts)
    before = cost(requests, intervals, together, plan.addresses)
    assert cost(requests, intervals, together, at) <= before


def test_with_room_nobody_shares_and_without_only_the_farthest_do() -> None:
    """Six weights of 10 bytes, one after the other; one of them is on another instance."""
    blocks = [(10, 1, k, 1, 1 if k < 5 else 2) for k in range(6)]
    requests, intervals, together = problem(blocks)
    first = allocate(requests).addresses
    assert set(first) == {0}
    apart = spread(requests, first, intervals, together, 50)
    assert sorted(apart[:5]) == [0, 10, 20, 30, 40]
    tight = spread(requests, first, intervals, together, 30)
    pairs = [(k, j) for j in range(5) for k in range(j) if shared(requests, tight, k, j)]
    assert all(j - k >= 2 for k, j in pairs), (tight, pairs)
    assert len(pairs) == 2, "five blocks at three addresses"


def test_prices_fall_with_the_distance_to_nothing() -> None:
    price = prices([(0, 1), (1, 2), (5, 6), (FAR + 1, FAR + 2), (0, 3)])
    assert price[0, 1] == price[0, 4] > price[0, 2] > price[0, 3] == 0
    assert np.array_equal(price, price.T)
