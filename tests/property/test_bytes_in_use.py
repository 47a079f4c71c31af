"""Bytes in use over time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.simulator.memory import bytes_in_use

LIVES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 9), st.integers(0, 6)),
    min_size=1, max_size=8,
)  # fmt: skip


@given(LIVES)
def test_bytes_in_use_are_those_that_some_buffer_holds(
    lives: list[tuple[int, int, int, int]],
) -> None:
    """Oracle: byte by byte; two buffers may share one."""
    lives = [(start, start + cycles, at, at + size) for start, cycles, at, size in lives]
    times, used = bytes_in_use(lives)
    assert times == tuple(sorted({0, *(t for life in lives for t in life[:2])}))
    for time, number in zip(times, used, strict=True):
        held = {b for low, high, at, end in lives if low <= time < high for b in range(at, end)}
        assert number == len(held)
