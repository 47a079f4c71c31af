"""The pool of boxes: what is taken is what a sorted list would give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.jit import compiled
from worker.compiler.tiling.nest.box_pool import ADDED, LATEST, add, take

floors = st.sampled_from([1.0, 2.0, 2.5, 3.0, 5.0, 8.0, float("inf")])
rounds = st.lists(
    st.tuples(
        st.lists(st.tuples(floors, st.booleans()), max_size=12),
        st.integers(0, 6), st.sampled_from([2.0, 3.0, 6.0, 100.0]), st.integers(0, 3),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@pytest.mark.parametrize("is_compiled", [False, True])
@given(rounds, st.sampled_from([6.0, 100.0, float("inf")]))
def test_the_lowest_are_taken_the_first_of_equals(
    is_compiled: bool,
    rounds: list[tuple[list[tuple[float, bool]], int, float, int]],
    score: float,
) -> None:
    """Beside some that are taken in another way; each box stands where its place says."""
    put, get = (compiled(loop) if is_compiled else loop for loop in (add, take))
    near, room = 1.25, 12 * len(rounds)
    low, high = np.zeros((room, 2, 1, 2), np.int64), np.zeros((room, 2, 1, 2), np.int64)
    keys, is_left, heap = np.full(room, np.inf), np.zeros(room, np.bool_), np.zeros(room, np.int64)
    counts = np.zeros(3, np.int64)
    left: list[tuple[float, int]] = []
    boxes = 0
    for number, (added, most, limit, elsewhere) in enumerate(rounds):
        box = (
            np.full((len(added), 2, 1, 2), 100 * number)
            + np.arange(len(added))[:, None, None, None]
        )
        deep = np.zeros(len(added), np.int64)
        put(
            box, box + 1, np.array([floor for floor, _ in added]),
            np.array([is_deep for _, is_deep in added], np.bool_), near, score, low, high, keys,
            is_left, heap, deep, counts,
        )  # fmt: skip
        wanted = []
        for row, (floor, is_deep) in enumerate(added):
            if floor * near < score:
                assert (low[boxes] == 100 * number + row).all()
                assert (high[boxes] == 100 * number + row + 1).all()
                left.append((floor, boxes))
                wanted += [boxes] if is_deep else []
                boxes += 1
        assert counts[ADDED] == boxes
        assert deep[: counts[LATEST]].tolist() == wanted
        for _, place in left[-elsewhere:] if elsewhere else []:
            is_left[place] = False
        left = left[:-elsewhere] if elsewhere else left
        found = np.zeros(most, np.int64)
        taken = found[: get(keys, is_left, heap, counts, limit, found)].tolist()
        expected = sorted(entry for entry in left if entry[0] < limit)[:most]
        assert taken == [place for _, place in expected]
        left = [entry for entry in left if entry not in expected]
        assert sorted(place for _, place in left) == np.flatnonzero(is_left).tolist()
