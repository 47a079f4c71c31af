"""Compiled loops without numba: the same results, and nothing where they do not fit."""

from __future__ import annotations

import json
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from worker.compiler.loop_object import load_object, object_name, save_object


def scatter(first: int, where: Any, grid: Any, is_there: Any) -> int:
    """Writes two arrays; gives a sum that is negative when it was empty."""
    total = first
    for k in range(len(where)):
        grid[where[k] % grid.shape[0], k % grid.shape[1]] += total
        is_there[k] = where[k] > 1
        total += where[k]
    return total if len(where) else -1


def allocates(values: Any) -> int:
    """Needs numba's own memory."""
    doubled = np.empty(len(values), dtype=np.int64)
    for k in range(len(values)):
        doubled[k] = 2 * values[k]
    return int(doubled.sum())


def arguments(size: int = 7) -> list[Any]:
    where = np.arange(size, dtype=np.int32)[::-1].copy()
    where.setflags(write=False)
    return [3, where, np.zeros((4, 3), dtype=np.int64), np.zeros(size, dtype=np.bool_)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the object of `scatter`."""
    made = tmp_path_factory.mktemp("loops")
    dispatcher = numba.njit(scatter)
    dispatcher(*arguments())
    assert save_object(scatter, dispatcher, made)
    return made


@pytest.mark.parametrize("size", [0, 1, 7])
def test_it_does_what_the_loop_does(folder: Path, size: int) -> None:
    loaded = load_object(scatter, folder)
    assert loaded is not None
    mine, theirs = arguments(size), arguments(size)
    assert loaded(*mine) == scatter(theirs[0], *theirs[1:])
    for got, wanted in zip(mine[1:], theirs[1:], strict=True):
        np.testing.assert_array_equal(got, wanted)


def _read_only(array: Any) -> Any:
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("at", "given"),
    [
        (1, np.zeros(7, dtype=np.int64)),
        (1, np.zeros((7, 1), dtype=np.int32)),
        (1, np.zeros(14, dtype=np.int32)[::2]),
        (2, np.zeros((3, 4), dtype=np.int64).T),
        (3, _read_only(np.zeros(7, dtype=np.bool_))),
    ],
    ids=["type", "rank", "steps", "order", "read-only"],
)
def test_other_arguments_run_nothing(folder: Path, at: int, given: Any) -> None:
    loaded = load_object(scatter, folder)
    assert loaded is not None
    asked = arguments()
    asked[at] = given
    before = [np.copy(each) for each in asked]
    assert loaded(*asked) is None
    for got, was in zip(asked, before, strict=True):
        np.testing.assert_array_equal(got, was)


@pytest.mark.parametrize(
    "field", ["format", "source", "llvmlite", "triple", "processor", "features"]
)
def test_code_for_something_else_is_left_alone(folder: Path, tmp_path: Path, field: str) -> None:
    head, _, code = (folder / object_name(scatter)).read_bytes().partition(b"\n")
    document = {**json.loads(head), field: "another"}
    target = tmp_path / object_name(scatter)
    target.write_bytes(json.dumps(document).encode() + b"\n" + code)
    assert load_object(scatter, tmp_path) is None


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    assert load_object(scatter, tmp_path) is None
    (tmp_path / object_name(scatter)).write_bytes(b"neither")
    assert load_object(scatter, tmp_path) is None


def test_a_loop_that_reaches_for_numba_is_not_kept(tmp_path: Path) -> None:
    dispatcher = numba.njit(allocates)
    dispatcher(np.arange(3))
    assert not save_object(allocates, dispatcher, tmp_path)
    assert not list(tmp_path.iterdir())


def test_numba_answers_where_the_object_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def njit(**options: Any) -> Any:
        def take(loop: Any) -> Any:
            asked.append(loop)
            return loop

        assert options == {"cache": True}
        return take

    monkeypatch.setattr(numba, "njit", njit)
    spec = find_spec("worker.compiler.jit")
    assert spec is not None and spec.loader is not None
    jit = module_from_spec(spec)  # as a process that has just started has it
    spec.loader.exec_module(jit)
    jit.use_objects(folder)
    found = jit.compiled(scatter)
    assert found(*arguments()) == scatter(*arguments())
    assert asked == []
    wide = arguments()
    wide[1] = wide[1].astype(np.int64)
    assert found(*wide) == found(*wide) == scatter(*arguments())
    assert asked == [scatter]
