"""How long a sweep has to go: items that are there, and winners that are still to be chosen."""

from __future__ import annotations

from typing import Any

import pytest

from service.jobs.exploring import Explore
from service.jobs.sweep_figures import eta_s
from service.states import JobState, SweepItemState, SweepState
from service.store.records import SweepItemRecord, SweepRecord

DONE, OPEN, WAITS = SweepItemState.SUCCEEDED, SweepItemState.ACTIVE, SweepItemState.PENDING


def sweep(winners: int | None) -> SweepRecord:
    explore = None if winners is None else Explore((), ("latency_s",), winners, "spec", 9).to_json()
    return SweepRecord(
        "swp", "local", None, (), {}, 0, None, None, SweepState.RUNNING, 0, 0.0, None, None, 0,
        explore,
    )  # fmt: skip


def item(state: SweepItemState, *, model: str = "a", part: bool = True, **own: Any) -> Any:
    values: dict[str, Any] = dict.fromkeys(SweepItemRecord.__dataclass_fields__)
    values |= {"number": 0, "model_id": model, "hardware_name": "toy", "values": (), "seq": 0,
               "estimates": (), "state": state, "job_state": JobState.RUNNING,
               "part": {"first": 0, "count": 9} if part else None, **own}  # fmt: skip
    return SweepItemRecord(**values)


def test_winners_that_are_not_chosen_yet_are_counted() -> None:
    """Two parts of 10 s are left to one worker, and three winners of what is known by then."""
    items = [item(DONE, seconds=10.0), item(OPEN, running_s=4.0), item(WAITS)]
    assert eta_s(sweep(0), items) == pytest.approx(16.0)
    assert eta_s(sweep(3), items) == pytest.approx(16.0 + 3 * 10.0)


def test_those_that_are_chosen_are_items() -> None:
    """Of model b none are yet: they are taken to need what all needed."""
    items = [
        item(DONE, seconds=10.0), item(DONE, seconds=40.0, part=False),
        item(WAITS, part=False), item(DONE, seconds=10.0, model="b"),
    ]  # fmt: skip
    assert eta_s(sweep(2), items) == pytest.approx(40.0 + 2 * 20.0)


def test_without_estimates_items_are_all_there_is() -> None:
    items = [item(DONE, seconds=5.0, part=False), item(OPEN, running_s=1.0, part=False)]
    assert eta_s(sweep(None), items) == pytest.approx(4.0)
    assert eta_s(sweep(None), items[1:]) is None
