"""Cancel jobs: through the database, never through the broker."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session

from service.errors import NotFound, problem
from service.jobs import audit
from service.states import ItemState, JobState, require_job_move
from service.store.records import JobRecord
from service.store.repos import items, jobs
from service.store.session import Database


def cancel_job(
    database: Database,
    job_id: str,
    owner: str | None = None,
    before_commit: Callable[[JobRecord], None] | None = None,
) -> JobRecord:
    """Cancel a job: a queued one at once, a running one as soon as its worker has killed it.

    Cancelling a job that is canceling or canceled changes nothing and gives it back.

    Raises:
        NotFound: it is unknown, or another owner's.
        Conflict: it ended in another way first.
    """
    with database.write() as session:
        job = cancel_in(session, job_id, owner)
        audit.record(session, audit.current(), job_id)
        if before_commit is not None:
            before_commit(job)
    return job


def cancel_in(session: Session, job_id: str, owner: str | None = None) -> JobRecord:
    """`cancel_job` in a transaction of the caller's, which says itself whose doing it is.

    Raises:
        NotFound, Conflict: as `cancel_job`.
    """
    job = jobs.get(session, job_id)
    if job is None or (owner is not None and job.owner != owner):
        raise NotFound("no such job", actual=job_id)
    if job.state in (JobState.CANCELING, JobState.CANCELED):
        return job
    # Items before jobs, like every transaction.  A claim either commits before this statement
    # (then the item is leased and stays) or finds nothing to claim after it.
    items.cancel_waiting(session, job_id)
    error = problem("TW-SVC-007", "the job was canceled")
    moved = jobs.move(session, job_id, JobState.CANCELED, only=JobState.QUEUED, error=error)
    if not moved and jobs.move(session, job_id, JobState.CANCELING):
        settle_canceled(session, job_id)
    job = jobs.get(session, job_id)
    if job is None:
        raise NotFound("no such job", actual=job_id)
    if job.state not in (JobState.CANCELING, JobState.CANCELED):
        require_job_move(job.state, JobState.CANCELED)
    return job


def settle_canceled(session: Session, job_id: str) -> bool:
    """Turn a canceling job canceled when no worker holds any of its items; True if it did."""
    if any(item.state is ItemState.LEASED for item in items.of_job(session, job_id)):
        return False
    return jobs.move(
        session,
        job_id,
        JobState.CANCELED,
        only=JobState.CANCELING,
        error=problem("TW-SVC-007", "the job was canceled"),
    )
