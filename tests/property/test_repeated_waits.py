"""Waits that a stream repeats are left out, and only those; bytes in use over time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.lower.sync import _news
from worker.simulator.memory import _steps

TOKENS, STREAMS = 4, 3


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]], list[tuple[int, int]]]:
    """Streams of instructions, and (instruction, token) of waits and of signals."""
    stream = draw(st.lists(st.integers(0, STREAMS - 1), min_size=1, max_size=30))
    pairs = st.tuples(st.integers(0, len(stream) - 1), st.integers(0, TOKENS - 1))
    signals = sorted(draw(st.lists(pairs, max_size=25)))
    waits = draw(st.lists(pairs, max_size=40))
    return stream, [w for w in waits if any(s < w[0] and t == w[1] for s, t in signals)], signals


@given(programs())
def test_a_wait_stays_if_its_token_was_signalled_since_its_stream_waited(
    program: tuple[list[int], list[tuple[int, int]], list[tuple[int, int]]],
) -> None:
    """Oracle: the definition, wait by wait."""
    stream, waits, signals = program
    want = []
    for place, token in sorted(set(waits)):
        before = [p for p, t in waits if p < place and t == token and stream[p] == stream[place]]
        if not before or any(max(before) <= s < place and t == token for s, t in signals):
            want.append((place, token))
    columns = [np.array(pairs, dtype=np.int64).reshape(-1, 2).T for pairs in (waits, signals)]
    (wait_place, wait), (signal_place, signal) = columns
    found = _news((wait_place, wait), (signal_place, signal), np.array(stream), TOKENS)
    assert list(zip(*(part.tolist() for part in found), strict=True)) == want


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
    times, used = _steps(lives)
    assert times == tuple(sorted({0, *(t for life in lives for t in life[:2])}))
    for time, number in zip(times, used, strict=True):
        held = {b for low, high, at, end in lives if low <= time < high for b in range(at, end)}
        assert number == len(held)
