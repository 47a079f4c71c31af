"""What is alive at once in one instance of a memory: no addresses need less."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.lower.liveness import Neighbours, conflicts, crowd_bytes
from worker.compiler.memory.allocate import Request, allocate

INSTANCES = 3
BLOCK = st.tuples(
    st.integers(0, 12), st.integers(1, 6), st.integers(1, 40),
    st.sets(st.integers(0, INSTANCES - 1), min_size=1),
)  # fmt: skip
"""(first leaf, leaves, bytes, instances)."""


@given(st.lists(BLOCK, min_size=1, max_size=8))
def test_a_crowd_is_what_one_moment_needs_and_no_addresses_need_less(
    blocks: list[tuple[int, int, int, set[int]]],
) -> None:
    intervals = [(first, first + length) for first, length, _, _ in blocks]
    sizes = [size for _, _, size, _ in blocks]
    held = np.array([[i in on for i in range(INSTANCES)] for *_, on in blocks])
    moments = range(20)
    counted = max(
        sum(
            size for (first, end), size, row in zip(intervals, sizes, held, strict=True)
            if first <= t < end and row[i]
        )
        for t in moments for i in range(INSTANCES)
    )  # fmt: skip
    assert crowd_bytes(intervals, sizes, held) == counted
    number = len(blocks)
    together = (held.astype(int) @ held.T.astype(int) > 0) & ~np.eye(number, dtype=bool)
    near = Neighbours(together, np.zeros((number, number), dtype=bool), {"L": held})
    meets = conflicts(intervals, near)
    for k, (first, end) in enumerate(intervals):
        assert meets[k] == {
            j for j, (low, high) in enumerate(intervals)
            if j != k and first < high and low < end and blocks[k][3] & blocks[j][3]
        }  # fmt: skip
    requests = [Request(size, 1, met) for size, met in zip(sizes, meets, strict=True)]
    assert allocate(requests, 1).peak_bytes >= counted
