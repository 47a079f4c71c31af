"""The closed sets of job, sweep, work-item and delivery states and their legal moves.  Pure.

A state changes only through a conditional UPDATE whose WHERE clause is `sources(target)`: the table
below is the single place that says what may follow what, and the SQL asks it.
"""

from __future__ import annotations

from enum import StrEnum

from service.errors import Conflict


class JobState(StrEnum):
    """What a user sees of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMED_OUT = "timed_out"
    """Its work ran longer than the wall limit."""
    EXPIRED = "expired"
    """No worker took it before its queue deadline."""


class EventType(StrEnum):
    """What a subscription is told: that a job has ended, in each of the states it may end in, and
    that a sweep has."""

    SUCCEEDED = f"job.{JobState.SUCCEEDED}"
    FAILED = f"job.{JobState.FAILED}"
    CANCELED = f"job.{JobState.CANCELED}"
    TIMED_OUT = f"job.{JobState.TIMED_OUT}"
    EXPIRED = f"job.{JobState.EXPIRED}"
    SWEEP_ENDED = "sweep.ended"


class DeliveryState(StrEnum):
    """What has become of a message to a subscriber."""

    PENDING = "pending"
    """It is sent, or will be at its next time."""
    DELIVERED = "delivered"
    """The receiver answered with 2xx."""
    GIVEN_UP = "given_up"
    """Its span has passed, or its subscription was disabled."""


class SweepState(StrEnum):
    """What a user sees of a sweep."""

    RUNNING = "running"
    """Items are left that wait or run."""
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    """Every item has."""
    FAILED = "failed"
    """All items ended, some of them without a result."""
    CANCELED = "canceled"


class SweepItemState(StrEnum):
    """Where an item of a sweep stands; its job says more while it is active."""

    PENDING = "pending"
    """It has no job yet."""
    ACTIVE = "active"
    """Its job has not ended, or not been looked at since."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMED_OUT = "timed_out"
    EXPIRED = "expired"
    REFUSED = "refused"
    """The document that its range gives is no machine: it never had a job."""


class ItemState(StrEnum):
    """What the workers see of a unit of work."""

    BLOCKED = "blocked"
    READY = "ready"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    """Its attempts are used up."""
    CANCELED = "canceled"


JOB_MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset(
        {JobState.RUNNING, JobState.CANCELED, JobState.EXPIRED, JobState.FAILED}
    ),
    JobState.RUNNING: frozenset(
        {JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT, JobState.CANCELING}
    ),
    JobState.CANCELING: frozenset({JobState.CANCELED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELED: frozenset(),
    JobState.TIMED_OUT: frozenset(),
    JobState.EXPIRED: frozenset(),
}

SWEEP_MOVES: dict[SweepState, frozenset[SweepState]] = {
    SweepState.RUNNING: frozenset({SweepState.SUCCEEDED, SweepState.FAILED, SweepState.CANCELING}),
    SweepState.CANCELING: frozenset({SweepState.CANCELED, SweepState.SUCCEEDED}),
    SweepState.SUCCEEDED: frozenset(),
    SweepState.FAILED: frozenset({SweepState.RUNNING}),
    SweepState.CANCELED: frozenset({SweepState.RUNNING}),
}

ITEM_MOVES: dict[ItemState, frozenset[ItemState]] = {
    ItemState.BLOCKED: frozenset({ItemState.READY, ItemState.CANCELED}),
    ItemState.READY: frozenset({ItemState.LEASED, ItemState.CANCELED, ItemState.DEAD}),
    ItemState.LEASED: frozenset(
        {
            ItemState.DONE,
            ItemState.READY,
            ItemState.FAILED,
            ItemState.DEAD,
            ItemState.CANCELED,
        }
    ),
    ItemState.DONE: frozenset(),
    ItemState.FAILED: frozenset(),
    ItemState.DEAD: frozenset({ItemState.READY}),
    ItemState.CANCELED: frozenset({ItemState.READY}),
}

TERMINAL_JOB_STATES: frozenset[JobState] = frozenset(
    state for state, moves in JOB_MOVES.items() if not moves
)
ACTIVE_JOB_STATES: tuple[JobState, ...] = tuple(
    state for state in JobState if state not in TERMINAL_JOB_STATES
)


OPEN_SWEEP_STATES: tuple[SweepState, ...] = (SweepState.RUNNING, SweepState.CANCELING)
"""Sweeps that somebody still has to work on; the others have ended, and may be resumed."""
OPEN_SWEEP_ITEM_STATES: tuple[SweepItemState, ...] = (
    SweepItemState.PENDING,
    SweepItemState.ACTIVE,
)
RESUMED_SWEEP_ITEM_STATES: tuple[SweepItemState, ...] = (
    SweepItemState.FAILED,
    SweepItemState.CANCELED,
    SweepItemState.TIMED_OUT,
    SweepItemState.EXPIRED,
)
"""Of the items of an ended sweep those that a resume runs again."""


def sweep_sources(target: SweepState) -> tuple[SweepState, ...]:
    """Give the states from which a sweep may move to `target`, in declaration order."""
    return tuple(state for state in SweepState if target in SWEEP_MOVES[state])


def job_sources(target: JobState) -> tuple[JobState, ...]:
    """Give the states from which a job may move to `target`, in declaration order."""
    return tuple(state for state in JobState if target in JOB_MOVES[state])


def item_sources(target: ItemState) -> tuple[ItemState, ...]:
    """Give the states from which an item may move to `target`, in declaration order."""
    return tuple(state for state in ItemState if target in ITEM_MOVES[state])


def require_job_move(current: JobState, target: JobState) -> None:
    """Check one move.

    Raises:
        Conflict: the table does not allow it; the message names both states.
    """
    if target not in JOB_MOVES[current]:
        allowed = sorted(JOB_MOVES[current])
        raise Conflict(
            f"a job that is {current} cannot become {target}",
            actual=str(current),
            limit=[str(state) for state in allowed],
        )
