"""The tables of legal moves: closed, and what the public contract promises."""

from __future__ import annotations

from contextlib import suppress

import pytest

from service.errors import Conflict
from service.states import (
    ACTIVE_JOB_STATES,
    ITEM_MOVES,
    JOB_MOVES,
    TERMINAL_JOB_STATES,
    ItemState,
    JobState,
    item_sources,
    job_sources,
    require_job_move,
)


def test_tables_are_closed() -> None:
    assert set(JOB_MOVES) == set(JobState)
    assert set(ITEM_MOVES) == set(ItemState)


def test_every_active_job_can_end() -> None:
    for start in ACTIVE_JOB_STATES:
        reached, frontier = {start}, [start]
        while frontier:
            for state in JOB_MOVES[frontier.pop()]:
                if state not in reached:
                    reached.add(state)
                    frontier.append(state)
        assert reached & TERMINAL_JOB_STATES, start


def test_terminal_states_are_the_public_ones() -> None:
    assert {str(state) for state in TERMINAL_JOB_STATES} == {
        "succeeded",
        "failed",
        "canceled",
        "timed_out",
        "expired",
    }


@pytest.mark.parametrize("target", JobState)
def test_the_guard_and_the_store_allow_the_same_moves(target: JobState) -> None:
    """One is asked before a job moves, the other stands in the statement that moves it."""
    allowed = []
    for start in JobState:
        with suppress(Conflict):
            require_job_move(start, target)
            allowed.append(start)
    assert list(job_sources(target)) == allowed


def test_sources_of_two_moves() -> None:
    assert job_sources(JobState.CANCELED) == (JobState.QUEUED, JobState.CANCELING)
    assert item_sources(ItemState.LEASED) == (ItemState.READY,)


@pytest.mark.parametrize("current", sorted(TERMINAL_JOB_STATES))
def test_finished_jobs_do_not_move(current: JobState) -> None:
    with pytest.raises(Conflict) as caught:
        require_job_move(current, JobState.CANCELED)
    assert caught.value.actual == str(current)
    assert caught.value.to_problem()["code"] == "TW-SVC-002"
