"""The collector's thresholds during a compile and after it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from worker.compiler.collector import THRESHOLDS, rare_collections


@pytest.fixture(autouse=True)
def _as_python_sets_them() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_thresholds_are_raised_inside_and_put_back() -> None:
    with rare_collections():
        assert gc.get_threshold() == THRESHOLDS
    assert gc.get_threshold() == (700, 10, 10)


def test_they_are_put_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), rare_collections():
        _ = 1 // 0
    assert gc.get_threshold() == (700, 10, 10)


def test_the_last_of_several_compiles_puts_them_back() -> None:
    """Compiles in two threads end in any order."""
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == THRESHOLDS
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (10**6, 10, 10)])
def test_a_collector_that_is_off_or_rarer_still_stays_so(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with rare_collections():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_collections_are_counted_down() -> None:
    """What the thresholds are for: making many objects starts few collections."""

    def collections() -> int:
        return sum(row["collections"] for row in gc.get_stats())

    def make() -> int:
        before = collections()
        kept = [[number] for number in range(40_000)]
        assert len(kept) == 40_000
        return collections() - before

    often = make()
    with rare_collections():
        rarely = make()
    assert rarely <= 1 < 20 < often
