"""Loops are plain Python until a process has taken so many steps that numba pays."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

import numpy as np
import pytest

LIMIT = 100


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
def jit() -> ModuleType:
    """The module as a process that has just started has it."""
    spec = find_spec("worker.compiler.jit")
    assert spec is not None and spec.loader is not None
    fresh = module_from_spec(spec)
    spec.loader.exec_module(fresh)
    fresh.INTERPRETED_STEPS = LIMIT  # type: ignore[attr-defined]
    return fresh


@pytest.fixture
def asked(jit: ModuleType) -> Callable[[Any, int], bool]:
    """Ask for a loop; tells whether it is the compiled one."""
    return lambda loop, num_steps: jit.loop_for(loop, num_steps) is not loop


def test_steps_add_up_over_calls_and_loops(asked: Callable[[Any, int], bool]) -> None:
    assert [asked(total, 40), asked(other, 40), asked(total, 20)] == [False, False, False]
    assert asked(other, 1)


def test_a_long_call_is_compiled_at_once_and_short_ones_go_on(
    asked: Callable[[Any, int], bool],
) -> None:
    assert asked(total, LIMIT + 1)
    assert not asked(other, LIMIT)


def test_what_is_compiled_is_used_whatever_the_steps(
    jit: ModuleType, asked: Callable[[Any, int], bool]
) -> None:
    values = np.arange(5)
    assert jit.loop_for(total, 1000)(values) == total(values) == 10
    assert asked(total, 1)


def test_nothing_is_interpreted_where_no_step_is_allowed(
    jit: ModuleType, asked: Callable[[Any, int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "INTERPRETED_STEPS", 0)
    assert asked(total, 1)
