"""The walk over shared addresses: against a search through everything signalled before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.compiler.jit import compiled
from worker.compiler.lower.shared import sweep

STORAGES = 6
STREAMS = 5
Ints = npt.NDArray[np.int64]
Event = tuple[int, int, int, bool]
"""(stream, storage touched, storage signalled, whether as free)."""


def events() -> st.SearchStrategy[list[Event]]:
    number = st.integers(0, STORAGES - 1)
    return st.lists(
        st.tuples(st.integers(0, STREAMS - 1), number, number, st.booleans()), max_size=40
    )


def found(
    program: list[Event], beside: list[list[int]], ways: int, loop: object = sweep
) -> list[tuple[int, int]]:
    """(place, token) of every wait, by one of the two versions of the loop."""
    assert callable(loop)
    first = np.cumsum([0, *(len(row) for row in beside)])
    # Storage s is instance s % 2 of row s // 2; entries of a row are counted from instance 0.
    offset = np.array([other for row in beside for other in row], dtype=np.int64)
    columns = np.array(program, dtype=np.int64).reshape(-1, 4)
    place = np.arange(len(program), dtype=np.int64)
    signalled = columns[:, 2] * 2 + columns[:, 3]
    at, token = np.zeros(10_000, dtype=np.int64), np.zeros(10_000, dtype=np.int64)
    waiter = np.full((2 * STORAGES if ways else 0, ways), -1, dtype=np.int32)
    number = loop(
        place, columns[:, 0].astype(np.int32), columns[:, 1] // 2, columns[:, 1] % 2, first, offset,
        np.ones_like(offset), place, signalled, np.full(2 * STORAGES, -1, dtype=np.int64), waiter,
        np.full_like(waiter, -1), at, token,
    )  # fmt: skip
    return sorted(zip(at[:number].tolist(), token[:number].tolist(), strict=True))


def every_wait(program: list[Event], beside: list[list[int]]) -> list[tuple[int, int]]:
    """Waits for each token of the storages beside the touched one that was signalled before."""
    waits: list[tuple[int, int]] = []
    for place, (_, storage, _, _) in enumerate(program):
        before = {2 * s + is_free for _, _, s, is_free in program[:place]}
        for other in beside[storage // 2]:
            tokens = (2 * (other + storage % 2), 2 * (other + storage % 2) + 1)
            waits += [(place, t) for t in tokens if t in before]
    return sorted(waits)


def news(program: list[Event], waits: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The waits before which the token was signalled since the stream's last wait for it."""
    last: dict[tuple[int, int], int] = {}
    kept: list[tuple[int, int]] = []
    for place, token in waits:
        key = program[place][0], token
        signalled = max(
            k for k, (_, _, s, is_free) in enumerate(program[:place]) if 2 * s + is_free == token
        )
        if key not in last or signalled >= last[key]:
            kept.append((place, token))
        last[key] = place
    return kept


BESIDE = [[2, 4], [0, 4], [0, 2]]
"""Even storages beside those of each row (in instance 0)."""


@settings(deadline=None, max_examples=60)
@given(events())
def test_all_waits_are_found(program: list[Event]) -> None:
    assert found(program, BESIDE, 0) == every_wait(program, BESIDE)


@settings(deadline=None, max_examples=60)
@given(events(), st.integers(1, STREAMS))
def test_only_repeated_waits_are_left_out(program: list[Event], ways: int) -> None:
    """Enough ways leave out all of them; fewer never leave out more."""
    expected = news(program, every_wait(program, BESIDE))
    kept = found(program, BESIDE, ways)
    assert set(expected) <= set(kept) <= set(every_wait(program, BESIDE))
    assert ways < STREAMS or kept == expected


@settings(deadline=None, max_examples=20)
@given(events())
def test_compiled_walk_is_the_same(program: list[Event]) -> None:
    for ways in (0, STREAMS):
        assert found(program, BESIDE, ways, compiled(sweep)) == found(program, BESIDE, ways)
