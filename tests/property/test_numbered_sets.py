"""Equal sets of elements have one number, however many are asked for at once, and their ends."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.audit.numbered import NumberedSets
from worker.compiler.audit.sets import Pattern, Patterns
from worker.compiler.frontend.limits import Limits
from worker.compiler.ir.distinct import distinct, distinct_where

DIMENSIONS = (("a", 0), ("a", 1), ("b", 0))
CLIPS = ((0, 40), (3, 17), (-(1 << 30), 1 << 30))
PATTERNS: tuple[Pattern, ...] = (((0, 2), (4, 5)), ((0, 1), (7, 9), (30, 31)))


def inside(start: int, kind: int, clip: tuple[int, int]) -> Pattern:
    """What the set holds, spelled out element by element."""
    spans = ((0, kind),) if kind >= 0 else PATTERNS[-1 - kind]
    held = [x for a, b in spans for x in range(start + a, start + b) if clip[0] <= x < clip[1]]
    found: list[tuple[int, int]] = []
    for x in held:
        if found and found[-1][1] == x:
            found[-1] = (found[-1][0], x + 1)
        else:
            found.append((x, x + 1))
    return tuple(found)


asked = st.tuples(
    st.sampled_from(DIMENSIONS),
    st.sampled_from(CLIPS),
    st.lists(st.tuples(st.integers(-9, 60), st.integers(-2, 12)), min_size=1, max_size=9),
    st.sampled_from((1, 40)),
)


@given(st.lists(asked, max_size=12))
def test_equal_sets_have_one_number_and_their_ends(
    calls: list[tuple[tuple[str, int], tuple[int, int], list[tuple[int, int]], int]],
) -> None:
    patterns = Patterns()
    assert [patterns.kind(p) for p in PATTERNS] == [-1, -2]
    sets = NumberedSets(patterns)
    expected: dict[int, tuple[tuple[str, int], Pattern]] = {}
    for of, clip, pairs, repeats in calls:  # 40 times: more than are looked up one by one
        start, kind = np.tile(np.array(pairs, dtype=np.int64), (repeats, 1)).T
        numbers = sets.numbers(of, start, kind, clip)
        assert numbers.shape == start.shape
        for k, (first, length) in enumerate(pairs * repeats):
            held = of, inside(first, length, clip)
            assert expected.setdefault(int(numbers[k]), held) == held
    assert sorted(expected) == list(range(sets.count))
    assert len(set(expected.values())) == len(expected)  # no set has two numbers
    pointer, intervals, edges = sets.pieces()
    ends = np.zeros((int(pointer[-1]), 2), dtype=np.int64)
    filled = np.zeros(len(ends), dtype=np.int64)
    for places, both in intervals.values():
        ends[places] = both
        filled[places] += 1
    assert np.all(filled == 1)
    for number, (_, pattern) in expected.items():
        assert ends[pointer[number] : pointer[number + 1]].tolist() == [list(p) for p in pattern]
    for of, found in edges.items():
        assert found.tolist() == sorted(
            {x for o, p in expected.values() if o == of for e in p for x in e}
        )


@given(st.lists(st.integers(-(1 << 62), 1 << 62) | st.integers(0, 3), max_size=30), st.booleans())
def test_distinct_values_are_those_of_numpy(values: list[int], is_square: bool) -> None:
    given_values = np.array(values, dtype=np.int64)
    if is_square:
        given_values = np.outer(given_values, [1, 0]).T
    found, where = distinct_where(given_values)
    expected, inverse = np.unique(given_values, return_inverse=True)
    assert distinct(given_values).tolist() == found.tolist() == expected.tolist()
    assert where.tolist() == inverse.ravel().tolist()


def test_the_longest_dimension_has_sets_of_its_own() -> None:
    """As long as models may have them; one element more would be another set."""
    most = Limits().max_dim
    sets = NumberedSets(Patterns())
    start, length = [0, 0, most - 1, 1], [most, most - 1, 1, most - 1]
    numbers = sets.numbers(("t", 0), np.array(start), np.array(length), (0, most))
    assert len(set(numbers.tolist())) == 4
    pointer, intervals, _ = sets.pieces()
    places, ends = intervals["t", 0]
    found = {int(place): tuple(both) for place, both in zip(places, ends.tolist(), strict=True)}
    assert [found[int(pointer[n])] for n in numbers] == [
        (a, a + n) for a, n in zip(start, length, strict=True)
    ]
