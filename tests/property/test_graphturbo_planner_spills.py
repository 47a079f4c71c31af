"""What sections leave at home: both choices fit, and the one by cost moves no more bytes."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.memory.liveness import LiveTensor, live_bytes_by_task
from worker.compiler.memory.spill import SpillRule
from worker.compiler.memory.spill_choices import spill_choices

TASKS = 5


@st.composite
def lives(draw: st.DrawFn) -> list[LiveTensor]:
    found = []
    for k in range(draw(st.integers(1, 7))):
        first = draw(st.integers(0, TASKS - 1))
        last = draw(st.integers(first, TASKS - 1))
        found.append(LiveTensor(f"t{k}", draw(st.integers(1, 9)), first, last))
    return found


@given(lives(), st.integers(0, 30), st.lists(st.integers(0, 4), min_size=14, max_size=14))
def test_choices_fit_and_the_second_is_the_cheapest(
    tensors: list[LiveTensor], room: int, times: list[int]
) -> None:
    """Oracle: all subsets of tensors that may stay."""
    number = {tensor.name: k for k, tensor in enumerate(tensors)}

    def home_bytes(name: str, is_spilled: bool) -> int:
        k = number[name]
        return tensors[k].size_bytes * (times[2 * k] + (times[2 * k + 1] if is_spilled else 0))

    def total(spilled: frozenset[str]) -> int:
        return sum(home_bytes(t.name, t.name in spilled) for t in tensors)

    def fits(spilled: frozenset[str]) -> bool:
        stay = [t for t in tensors if t.name not in spilled]
        return max(live_bytes_by_task(stay), default=0) <= room

    choices = spill_choices(tensors, room, home_bytes)
    assert [rule for rule, _ in choices] in (
        [SpillRule.LONGEST_LIVENESS],
        [SpillRule.LONGEST_LIVENESS, SpillRule.BY_COST],
    )
    assert all(fits(spilled) for _, spilled in choices)
    names = sorted(number)
    least = min(
        total(frozenset(some))
        for size in range(len(names) + 1)
        for some in combinations(names, size)
        if fits(frozenset(some))
    )
    assert min(total(spilled) for _, spilled in choices) == least or not choices[0][1]
    if fits(frozenset()):
        assert choices == ((SpillRule.LONGEST_LIVENESS, frozenset()),)
