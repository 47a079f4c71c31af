"""Which tensors leave a full buffer: the paper's rule, prior work's, and by simulated cost."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from worker.compiler.errors import InternalError
from worker.compiler.memory.liveness import BufferScope, LiveTensor, live_bytes_by_task
from worker.compiler.memory.spill import (
    Placement,
    SpillRule,
    choose_spills,
    place_tensors,
)

LB, GB, HOME = BufferScope.LB, BufferScope.GB, BufferScope.HOME
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


def scopes(placements: tuple[Placement, ...]) -> dict[str, BufferScope]:
    return {p.name: p.scope for p in placements}


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


def test_first_to_the_global_buffer_then_home() -> None:
    lives = tuple(LiveTensor(n, 2, k, 9) for k, n in enumerate("abc"))
    assert scopes(place_tensors(lives, 2, 2)) == {"a": HOME, "b": GB, "c": LB}
    assert scopes(place_tensors(lives, 2, 0)) == {"a": HOME, "b": HOME, "c": LB}
    assert scopes(place_tensors(lives, 6, 0)) == {"a": LB, "b": LB, "c": LB}


def test_a_tensor_is_never_moved_closer_than_its_binding_allows() -> None:
    lives = (
        LiveTensor("shared", 2, 0, 9, GB),
        LiveTensor("output", 2, 0, 9, HOME),
        LiveTensor("own", 2, 0, 3),
    )
    for rule in SpillRule:
        placed = scopes(place_tensors(lives, 9, 9, rule, lambda t, s: 0))
        assert placed["shared"] in (GB, HOME)
        assert placed["output"] is HOME
    placed = scopes(place_tensors(lives, 1, 2, SpillRule.LONGEST_LIVENESS))
    assert placed == {"shared": HOME, "output": HOME, "own": GB}


def test_by_cost_finds_what_neither_rule_does() -> None:
    """A short small tensor that is cheap to move beats the longest and the largest."""
    price = {"x": 9, "big": 8, "m": 1}

    def cost(tensor: LiveTensor, scope: BufferScope) -> int:
        return 0 if scope is LB else price[tensor.name] * (1 if scope is GB else 3)

    placed = scopes(place_tensors(UNEQUAL, 7, 9, SpillRule.BY_COST, cost))
    assert placed == {"x": LB, "big": LB, "m": GB}
    placed = scopes(place_tensors(UNEQUAL, 7, 1, SpillRule.BY_COST, cost))
    assert placed == {"x": LB, "big": LB, "m": HOME}


def relaxed(lives: tuple[LiveTensor, ...], lb: int, gb: int, costs: np.ndarray) -> float:
    """Least total cost when tensors may be divided between scopes: a bound from below."""
    count = len(lives)
    horizon = max(t.last for t in lives) + 1
    used = np.zeros((2, horizon, count, 3))
    for k, t in enumerate(lives):
        for scope in range(2):
            used[scope, t.first : t.last + 1, k, scope] = t.size_bytes
    found = linprog(
        costs.ravel(),
        A_ub=used.reshape(2 * horizon, 3 * count),
        b_ub=np.repeat([lb, gb], horizon),
        A_eq=np.kron(np.eye(count), np.ones((1, 3))),
        b_eq=np.ones(count),
        bounds=(0, 1),
    )
    assert found.success
    return float(found.fun)


def test_by_cost_is_near_the_bound_where_it_cannot_be_exact() -> None:
    """120 tensors, 30 live at once: far more combinations than are kept."""
    lives = tuple(
        LiveTensor(f"t{k}", 1 + k * 7 % 13, k, min(119, k + 14 + k * 11 % 31)) for k in range(120)
    )
    prices = {t.name: t.size_bytes * (1 + k * 5 % 9) for k, t in enumerate(lives)}
    factor = {LB: 0, GB: 1, HOME: 6}

    def cost(tensor: LiveTensor, scope: BufferScope) -> int:
        return factor[scope] * prices[tensor.name]

    def total(placements: tuple[Placement, ...]) -> int:
        return sum(cost(t, p.scope) for t, p in zip(lives, placements, strict=True))

    found = place_tensors(lives, 90, 45, SpillRule.BY_COST, cost)
    for scope, capacity in ((LB, 90), (GB, 45)):
        inside = [t for t, p in zip(lives, found, strict=True) if p.scope is scope]
        assert max(live_bytes_by_task(inside)) <= capacity
    costs = np.array([[cost(t, scope) for scope in (LB, GB, HOME)] for t in lives], float)
    bound = relaxed(lives, 90, 45, costs)
    assert bound <= total(found) <= 1.15 * bound
    for rule in (SpillRule.LONGEST_LIVENESS, SpillRule.LARGEST):
        assert total(place_tensors(lives, 90, 45, rule)) > 1.5 * total(found)
    assert found == place_tensors(lives, 90, 45, SpillRule.BY_COST, cost)


def test_senseless_calls_are_refused() -> None:
    with pytest.raises(InternalError, match="need costs"):
        choose_spills(UNEQUAL, 7, SpillRule.BY_COST)
    with pytest.raises(InternalError, match="need costs"):
        place_tensors(UNEQUAL, 7, 7, SpillRule.BY_COST)
    with pytest.raises(InternalError, match="backwards has no size or no live range"):
        choose_spills([LiveTensor("backwards", 1, 3, 2)], 7, SpillRule.LARGEST)
    with pytest.raises(InternalError, match="negative has no size"):
        place_tensors([LiveTensor("negative", -1, 0, 2)], 7, 7)


def test_no_tensors_need_no_place() -> None:
    assert place_tensors([], 0, 0) == ()
    assert place_tensors([], 0, 0, SpillRule.BY_COST, lambda t, s: 1) == ()
    assert live_bytes_by_task([]) == ()
