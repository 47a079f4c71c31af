"""Loops are plain Python until a process has taken so many steps that numba pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from worker.compiler import jit


def total(values: Any) -> Any:
    """A loop."""
    found = 0
    for value in values:
        found += value
    return found


def other(values: Any) -> Any:
    """Another loop."""
    return values[0]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, int], bool]:
    """Ask for a loop; tells whether it is the compiled one.  This process starts anew."""

    class Spent:
        steps = 0

    monkeypatch.setattr(jit, "_Spent", Spent)
    monkeypatch.setattr(jit, "_ready", set())
    jit.compiled.cache_clear()
    monkeypatch.setattr(jit, "INTERPRETED_STEPS", 100)
    return lambda loop, num_steps: jit.loop_for(loop, num_steps) is not loop


def test_steps_add_up_over_calls_and_loops(asked: Callable[[Any, int], bool]) -> None:
    assert [asked(total, 40), asked(other, 40), asked(total, 20)] == [False, False, False]
    assert asked(other, 1)


def test_a_long_call_is_compiled_at_once_and_short_ones_go_on(
    asked: Callable[[Any, int], bool],
) -> None:
    assert asked(total, 101)
    assert not asked(other, 100)


def test_what_is_compiled_is_used_whatever_the_steps(asked: Callable[[Any, int], bool]) -> None:
    values = np.arange(5)
    assert jit.loop_for(total, 1000)(values) == total(values) == 10
    assert asked(total, 1)


def test_nothing_is_interpreted_where_no_step_is_allowed(
    asked: Callable[[Any, int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "INTERPRETED_STEPS", 0)
    assert asked(total, 1)
