"""Stages that take too long are ended by name; what they take is added up over their visits."""

from __future__ import annotations

import threading
import time

import pytest
from pydantic import ValidationError

from service.settings import STAGE_LIMITS_S, Settings
from worker.job.stages import NAMES
from worker.sandbox.stage_clock import StageClock


class Kill:
    """Counts its calls."""

    def __init__(self) -> None:
        self.times = 0
        self.called = threading.Event()

    def __call__(self) -> None:
        self.times += 1
        self.called.set()


def test_a_stage_over_its_limit_is_killed_once_and_named() -> None:
    kill = Kill()
    with StageClock({"verify": 0.05, "report": 60.0}, kill) as clock:
        clock.stage("report", "started")
        clock.stage("verify", "started")
        assert kill.called.wait(10)
    assert kill.times == 1
    assert clock.overrun is not None
    problem = clock.overrun.to_problem()
    assert (problem["code"], problem["stage"], problem["limit"]) == ("TW-SVC-008", "verify", 0.05)
    assert clock.overrun.actual_s >= 0.05
    assert "TILEWRIGHT_STAGE_LIMITS_S" in str(problem["remedy"])


def test_visits_of_a_stage_are_added_up() -> None:
    kill = Kill()
    with StageClock({"partition": 2.4}, kill) as clock:
        for _ in range(2):
            clock.stage("partition", "started")
            time.sleep(0.8)
            clock.stage("partition", "finished")
        assert not kill.times
        clock.stage("partition", "started")
        began = time.monotonic()
        assert kill.called.wait(10)
        assert time.monotonic() - began < 2.2, "the third visit has what the others left"
    assert clock.overrun is not None
    assert clock.overrun.stage == "partition"
    assert clock.overrun.actual_s >= 2.4


def test_a_finished_stage_or_a_closed_clock_kills_nobody() -> None:
    kill = Kill()
    with StageClock({"ingest": 0.1, "verify": 0.1}, kill) as clock:
        clock.stage("ingest", "started")
        clock.stage("ingest", "started")
        clock.stage("ingest", "finished")
        clock.stage("verify", "started")
        clock.stage("unheard of", "started")
    clock.stage("verify", "started")
    assert not kill.called.wait(0.3)
    assert clock.overrun is None


def test_every_stage_has_a_limit_and_the_setting_changes_those_it_names() -> None:
    assert set(STAGE_LIMITS_S) == set(NAMES)
    changed = Settings(stage_limits_s={"verify": 5.0})
    assert changed.stage_limits_s == {**STAGE_LIMITS_S, "verify": 5.0}


@pytest.mark.parametrize("given", [{"verification": 5.0}, {"verify": 0.0}, {"verify": "nan"}])
def test_no_limit_of_another_name_or_of_nothing(given: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="stages are ingest"):
        Settings(stage_limits_s=given)
