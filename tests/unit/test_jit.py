"""Loops are plain Python until a process has taken so many steps that numba pays."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

import numba
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


def moved(values: Any, by: Any, kept: Any) -> None:
    """A loop that reads one array and writes two."""
    for k in range(len(kept)):
        kept[k] = values[k]
        if by is not None:
            by[k] += kept[k]


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


def test_what_a_loop_only_reads_may_have_gaps_or_be_frozen_and_is_compiled_once(
    jit: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    njit = numba.njit
    monkeypatch.setattr(numba, "njit", lambda types, **how: made.append(types) or njit(types))
    assert jit.only_read(moved) == (True, False, False)
    loop = jit.compiled(moved)
    plain = np.arange(6, dtype=np.int32)
    frozen = plain.copy()
    frozen.setflags(write=False)
    table = np.zeros(6, dtype=[("other", np.int8), ("values", np.int32)])
    table["values"] = plain
    for values in (plain, frozen, plain[::-2], np.repeat(plain, 2)[::2]):
        by, kept = np.ones(3, np.int64), np.zeros(3, np.int32)
        loop(values, by, kept)
        assert kept.tolist() == values[:3].tolist() and (by == kept + 1).all()
    assert len(made) == 1
    kept = np.zeros(3, np.int32)
    loop(table["values"], None, kept)  # a table without padding: not aligned
    assert kept.tolist() == [0, 1, 2]
    loop(plain, None, kept)
    assert len(made) == 3


def test_an_array_that_a_loop_writes_is_never_a_copy(jit: ModuleType) -> None:
    loop = jit.compiled(moved)
    wide, frozen = np.zeros(6, np.int32), np.zeros(3, np.int32)
    loop(np.arange(3, dtype=np.int32), None, wide[::2])
    assert wide.tolist() == [0, 0, 1, 0, 2, 0]
    frozen.setflags(write=False)
    with pytest.raises(Exception, match=r"readonly|read-only|Cannot modify"):
        loop(np.arange(3, dtype=np.int32), None, frozen)
    assert not frozen.any()
