"""What jobs that ended lately did: time by stage, and units that the cache had.

Bounded, because `/metrics` asks often: events have no index by time, so they are read by job.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.states import TERMINAL_JOB_STATES
from service.store.records import Durations
from service.store.tables import EventRow, JobRow, db_now

WINDOW_S = 3600.0
MOST_JOBS = 1000
_LIMITS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0, 600.0, inf)
"""Of the histogram of stages: those of small models take milliseconds."""


def _jobs(session: Session) -> list[str]:
    ended = [str(state) for state in TERMINAL_JOB_STATES]
    query = (
        select(JobRow.id)
        .where(JobRow.state.in_(ended), JobRow.finished > db_now() - WINDOW_S)
        .order_by(JobRow.finished.desc())
        .limit(MOST_JOBS)
    )
    return list(session.scalars(query))


def stage_durations(session: Session) -> list[tuple[str, Durations]]:
    """By stage, of the newest MOST_JOBS jobs that ended within WINDOW_S, every try of theirs.

    A stage that did not end (its worker was killed) has no time.
    """
    query = (
        select(EventRow.job_id, EventRow.ts, EventRow.payload)
        .where(EventRow.job_id.in_(_jobs(session)), EventRow.type == "stage")
        .order_by(EventRow.job_id, EventRow.seq)
    )
    began: dict[tuple[str, str], float] = {}
    took: defaultdict[str, list[float]] = defaultdict(list)
    for job_id, ts, payload in session.execute(query):
        stage, state = str(payload["stage"]), payload["state"]
        if state == "started":
            began[job_id, stage] = ts
        elif (start := began.pop((job_id, stage), None)) is not None:
            took[stage].append(max(0.0, ts - start))
    return [(stage, _durations(took[stage])) for stage in sorted(took)]


def _durations(seconds: list[float]) -> Durations:
    counts = tuple((limit, sum(one <= limit for one in seconds)) for limit in _LIMITS_S)
    return Durations(counts, sum(seconds))


def cached_units(session: Session) -> tuple[int, int]:
    """Units that the cache had, and units in all, of the same jobs."""
    query = select(func.sum(JobRow.units_cached), func.sum(JobRow.units_total))
    cached, total = session.execute(query.where(JobRow.id.in_(_jobs(session)))).one()
    return int(cached or 0), int(total or 0)
