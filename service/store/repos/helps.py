"""Which jobs are being scheduled, and which worker helps which of them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.states import ItemState, JobState
from service.store.repos.rows import affected
from service.store.repos.workers import ALIVE_S
from service.store.tables import ItemRow, JobItemRow, JobRow, WorkerRow, db_now

STAGE = "schedule"
"""The stage of a job in which another process can fill its cache."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """An attempt at a job that looks for kernels now."""

    job_id: str
    item_id: str
    fence: int
    strategies: str
    """See `service.store.strategy_sets`."""
    done: int
    """Units that it has solved or found."""
    left: int
    """Units that it has not come to."""


def scheduling(session: Session, limit: int) -> list[Scheduling]:
    """Attempts in their `STAGE`, with units left, whom no live worker helps; in order of job."""
    helped = select(WorkerRow.helps).where(
        WorkerRow.helps.is_not(None), WorkerRow.beat >= db_now() - ALIVE_S
    )
    done = JobRow.units_solved + JobRow.units_cached
    query = (
        select(JobRow.id, ItemRow.id, ItemRow.fence, ItemRow.strategies, done, JobRow.units_total)
        .join(JobItemRow, JobItemRow.job_id == JobRow.id)
        .join(ItemRow, ItemRow.id == JobItemRow.item_id)
        .where(
            ItemRow.state == str(ItemState.LEASED),
            JobRow.state == str(JobState.RUNNING),
            JobRow.stage == STAGE,
            JobRow.units_total > done,
            JobRow.id.not_in(helped),
        )
        .order_by(JobRow.id)
        .limit(limit)
    )
    return [
        Scheduling(job_id, item_id, fence, wanted, solved, total - solved)
        for job_id, item_id, fence, wanted, solved, total in session.execute(query)
    ]


def is_scheduling(session: Session, item_id: str, fence: int) -> bool:
    """Whether this attempt is under way, and still in its `STAGE`."""
    query = (
        select(func.count())
        .select_from(ItemRow)
        .join(JobItemRow, JobItemRow.item_id == ItemRow.id)
        .join(JobRow, JobRow.id == JobItemRow.job_id)
        .where(
            ItemRow.id == item_id,
            ItemRow.fence == fence,
            ItemRow.state == str(ItemState.LEASED),
            JobRow.state == str(JobState.RUNNING),
            JobRow.stage == STAGE,
        )
    )
    return bool(session.scalar(query))


def begin(session: Session, worker_id: str, job_id: str) -> bool:
    """Let a worker help a job; False where a live one does.

    Of two at the same time one breaks the index's uniqueness: its transaction fails.
    """
    affected(
        session,
        update(WorkerRow)
        .where(WorkerRow.helps == job_id, WorkerRow.beat < db_now() - ALIVE_S)
        .values(helps=None),
    )
    if session.scalar(select(WorkerRow.id).where(WorkerRow.helps == job_id)) is not None:
        return False
    mine = update(WorkerRow).where(WorkerRow.id == worker_id).values(helps=job_id)
    return affected(session, mine) == 1


def end(session: Session, worker_id: str) -> None:
    """Let a worker help nobody."""
    affected(session, update(WorkerRow).where(WorkerRow.id == worker_id).values(helps=None))
