"""Which tensors leave a full buffer: the paper's rule, prior work's, and by simulated cost."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from worker.compiler.errors import InternalError
from worker.compiler.memory.liveness import LiveTensor, live_bytes_by_task
from worker.compiler.memory.spill import SpillRule, choose_spills
from worker.compiler.memory.spill_search import cheapest_spills

FIGURE_12 = (
    LiveTensor("out1", 1, 1, 7),
    LiveTensor("in1", 1, 0, 2),
    LiveTensor("out2", 1, 2, 4),
    LiveTensor("out3", 1, 3, 5),
    LiveTensor("out4", 1, 4, 6),
)
UNEQUAL = (LiveTensor("x", 2, 0, 8), LiveTensor("big", 5, 1, 4), LiveTensor("m", 2, 2, 5))


def names(lives: tuple[LiveTensor, ...], capacity: int, rule: SpillRule) -> list[str]:
    return [lives[k].name for k in choose_spills(lives, capacity, rule)]


def test_figure_12_spills_the_longest_lived() -> None:
    """TV-GT-11, first case."""
    assert names(FIGURE_12, 3, SpillRule.LONGEST_LIVENESS) == ["out1"]
    assert live_bytes_by_task(FIGURE_12) == (1, 2, 3, 3, 4, 3, 2, 1)


def test_the_longest_lived_can_be_smaller_than_the_largest() -> None:
    """TV-GT-11, second case."""
    assert names(UNEQUAL, 7, SpillRule.LONGEST_LIVENESS) == ["x"]
    assert names(UNEQUAL, 7, SpillRule.LARGEST) == ["big"]


def test_ties_go_to_the_larger_then_to_the_later_last_use() -> None:
    by_size = (LiveTensor("small", 1, 0, 3), LiveTensor("large", 2, 0, 3))
    assert names(by_size, 2, SpillRule.LONGEST_LIVENESS) == ["large"]
    by_end = (LiveTensor("early", 2, 0, 3), LiveTensor("late", 2, 1, 4))
    assert names(by_end, 2, SpillRule.LONGEST_LIVENESS) == ["late"]
    equal = (LiveTensor("first", 2, 0, 3), LiveTensor("second", 2, 0, 3))
    assert names(equal, 2, SpillRule.LONGEST_LIVENESS) == ["first"]
    largest = (LiveTensor("short", 2, 0, 1), LiveTensor("long", 2, 0, 3))
    assert names(largest, 2, SpillRule.LARGEST) == ["long"]


def test_what_is_dead_by_then_is_not_spilled() -> None:
    lives = (LiveTensor("gone", 3, 0, 5), LiveTensor("a", 2, 6, 7), LiveTensor("b", 2, 6, 6))
    assert names(lives, 3, SpillRule.LONGEST_LIVENESS) == ["a"]


def test_tensors_without_bytes_never_spill() -> None:
    lives = (LiveTensor("nothing", 0, 0, 9), LiveTensor("some", 2, 1, 2))
    assert names(lives, 1, SpillRule.LONGEST_LIVENESS) == ["some"]
    assert names(lives, 0, SpillRule.LARGEST) == ["some"]


def test_by_cost_finds_what_neither_rule_does() -> None:
    """A short small tensor that is cheap to move beats the longest and the largest."""
    price = {"x": 9, "big": 8, "m": 1}

    def cost(tensor: LiveTensor, is_spilled: bool) -> int:
        return price[tensor.name] if is_spilled else 0

    assert [UNEQUAL[k].name for k in cheapest_spills(UNEQUAL, 7, cost)] == ["m"]
    assert [UNEQUAL[k].name for k in cheapest_spills(UNEQUAL, 9, cost)] == []


def test_what_is_cheaper_outside_leaves_even_where_there_is_room() -> None:
    assert cheapest_spills(UNEQUAL, 99, lambda t, is_spilled: int(not is_spilled)) == (0, 1, 2)


def relaxed(lives: tuple[LiveTensor, ...], capacity: int, prices: np.ndarray) -> float:
    """Least total cost when tensors may be divided: a bound from below."""
    horizon = max(t.last for t in lives) + 1
    kept = np.zeros((horizon, len(lives)))
    for k, t in enumerate(lives):
        kept[t.first : t.last + 1, k] = t.size_bytes
    found = linprog(-prices, A_ub=kept, b_ub=np.full(horizon, capacity), bounds=(0, 1))
    assert found.success
    return float(prices.sum() + found.fun)


def test_by_cost_is_near_the_bound_where_it_cannot_be_exact() -> None:
    """120 tensors, 30 live at once: far more combinations than are kept."""
    lives = tuple(
        LiveTensor(f"t{k}", 1 + k * 7 % 13, k, min(119, k + 14 + k * 11 % 31)) for k in range(120)
    )
    prices = {t.name: t.size_bytes * (1 + k * 5 % 9) for k, t in enumerate(lives)}

    def total(spilled: tuple[int, ...]) -> int:
        return sum(prices[lives[k].name] for k in spilled)

    def spills() -> tuple[int, ...]:
        return cheapest_spills(lives, 90, lambda t, is_spilled: is_spilled * prices[t.name])

    found = spills()
    staying = [t for k, t in enumerate(lives) if k not in found]
    assert max(live_bytes_by_task(staying)) <= 90
    bound = relaxed(lives, 90, np.array([prices[t.name] for t in lives], float))
    assert bound <= total(found) <= 1.05 * bound
    for rule in (SpillRule.LONGEST_LIVENESS, SpillRule.LARGEST):
        assert total(choose_spills(lives, 90, rule)) > 1.2 * total(found)
    assert found == spills()


def test_senseless_calls_are_refused() -> None:
    with pytest.raises(InternalError, match="need costs"):
        choose_spills(UNEQUAL, 7, SpillRule.BY_COST)
    with pytest.raises(InternalError, match="backwards has no size or no live range"):
        choose_spills([LiveTensor("backwards", 1, 3, 2)], 7, SpillRule.LARGEST)
    with pytest.raises(InternalError, match="negative has no size"):
        cheapest_spills([LiveTensor("negative", -1, 0, 2)], 7, lambda t, is_spilled: 1)


def test_no_tensors_need_no_room() -> None:
    assert choose_spills([], 0, SpillRule.LARGEST) == ()
    assert cheapest_spills([], 0, lambda t, is_spilled: 1) == ()
    assert live_bytes_by_task([]) == ()
