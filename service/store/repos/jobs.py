"""Jobs and their event history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from sqlalchemy import Text, and_, bindparam, case, delete, func, or_, select, type_coerce, update
from sqlalchemy import insert as insert_into
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from service.states import TERMINAL_JOB_STATES, ItemState, JobState, job_sources
from service.store.records import Durations, EventRecord, JobFilter, JobRecord, Standing
from service.store.repos import deliveries
from service.store.repos.rows import affected, few_lengths
from service.store.stored_options import lift, seal
from service.store.tables import EventRow, ItemRow, JobItemRow, JobRow, db_now
from worker.compiler.errors import Detail


def _attempts() -> ColumnElement[int]:
    total = (
        select(func.coalesce(func.sum(ItemRow.attempts), 0))
        .join(JobItemRow, JobItemRow.item_id == ItemRow.id)
        .where(JobItemRow.job_id == JobRow.id)
        .scalar_subquery()
    )
    return total.label("attempts")


def _record(row: Any) -> JobRecord:
    """A row of `_JOBS`."""
    return JobRecord(
        id=row.id,
        owner=row.owner,
        model_id=row.model_id,
        hardware_id=row.hardware_id,
        options=lift(row.options),
        label=row.label,
        priority=row.priority,
        state=JobState(row.state),
        stage=row.stage,
        units_solved=row.units_solved,
        units_cached=row.units_cached,
        units_total=row.units_total,
        waiting=row.waiting,
        error=row.error,
        summary=row.summary,
        bundle_digest=row.bundle_digest,
        traceparent=row.traceparent,
        cloned_from=row.cloned_from,
        wall_limit_s=row.wall_limit_s,
        created=row.created,
        started=row.started,
        finished=row.finished,
        cancel_requested=row.cancel_requested,
        event_seq=row.event_seq,
        attempts=int(row.attempts),
        sweep_id=row.sweep_id,
    )


_INSERT_JOB = (
    insert_into(JobRow)
    .values(created=db_now(), queue_deadline=db_now() + bindparam("queue_ttl_s"))
    .returning(JobRow.created)
)
_INSERT_EVENT = insert_into(EventRow).values(ts=db_now() - bindparam("age_s"))
_INSERT_EVENTS = _INSERT_EVENT.returning(EventRow.seq)
"""One statement for many: without RETURNING it would be one for each."""


def insert(session: Session, values: Mapping[str, Any], queue_ttl_s: float) -> JobRecord:
    """Insert a queued job with its first event; `values` are the user's fields.

    Written as plain statements: accepting jobs is the one write whose latency users feel.
    """
    fixed = {
        "state": str(JobState.QUEUED), "stage": None, "units_solved": 0, "units_cached": 0,
        "units_total": 0, "waiting": None, "error": None, "summary": None, "bundle_digest": None,
        "started": None, "finished": None, "cancel_requested": None, "event_seq": 1,
    }  # fmt: skip
    connection = session.connection()
    row = {**values, **fixed}
    stored = {**row, "options": seal(values["options"]), "queue_ttl_s": queue_ttl_s}
    created = connection.execute(_INSERT_JOB, stored).scalar_one()
    connection.execute(
        _INSERT_EVENT,
        {"job_id": values["id"], "seq": 1, "type": "state", "age_s": 0.0,
         "payload": {"state": str(JobState.QUEUED)}},
    )  # fmt: skip
    row["state"] = JobState.QUEUED
    return JobRecord(**row, created=created, attempts=0)


# Columns, not the mapped class, and built once: this is what clients ask for most.
_JOBS = select(*JobRow.__table__.c, _attempts())
_JOB = _JOBS.where(JobRow.id == bindparam("job_id"))


def get(session: Session, job_id: str) -> JobRecord | None:
    """Give one job, or None."""
    row = session.connection().execute(_JOB, {"job_id": job_id}).one_or_none()
    return None if row is None else _record(row)


def state(session: Session, job_id: str) -> JobState | None:
    """Give a job's state, or None where there is no such job."""
    found = session.scalar(_STATE, {"job_id": job_id})
    return None if found is None else JobState(found)


_STATE = select(JobRow.state).where(JobRow.id == bindparam("job_id"))


def page(
    session: Session,
    *,
    owner: str | None,
    wanted: JobFilter,
    before: tuple[float, str] | None,
    limit: int,
) -> list[JobRecord]:
    """List jobs, newest first, strictly older than `before` (created, id)."""
    query = _JOBS
    if wanted.states:
        query = query.where(JobRow.state.in_([str(state) for state in wanted.states]))
    for column, value in (
        (JobRow.owner, owner), (JobRow.label, wanted.label), (JobRow.model_id, wanted.model),
        (JobRow.hardware_id, wanted.hardware), (JobRow.sweep_id, wanted.sweep),
    ):  # fmt: skip
        if value is not None:
            query = query.where(column == value)
    if wanted.strategy is not None:
        asked = f'"strategy":{json.dumps(wanted.strategy)}'
        options = type_coerce(JobRow.options, Text)
        query = query.where(options.contains(asked, autoescape=True))
    if wanted.since is not None:
        query = query.where(JobRow.created >= wanted.since)
    if wanted.until is not None:
        query = query.where(JobRow.created < wanted.until)
    if before is not None:
        created, job_id = before
        query = query.where(
            or_(JobRow.created < created, and_(JobRow.created == created, JobRow.id < job_id))
        )
    query = query.order_by(JobRow.created.desc(), JobRow.id.desc()).limit(limit)
    return [_record(row) for row in session.connection().execute(query)]


def move(
    session: Session,
    job_id: str,
    target: JobState,
    *,
    only: JobState | None = None,
    error: Mapping[str, Detail] | None = None,
    summary: Mapping[str, Detail] | None = None,
    bundle_digest: str | None = None,
) -> bool:
    """Move a job to `target` if the table of moves allows it now; record the event.

    `only` narrows the allowed sources to one.  Callers that also change items do so first: every
    transaction locks items before jobs, or two of them could deadlock.

    Returns:
        False when the job was in a state from which it may not go there: nothing changed.
    """
    values: dict[str, Any] = {"state": str(target), "waiting": None}
    if target is JobState.RUNNING:
        values["started"] = db_now()
    if target is JobState.CANCELING:
        values["cancel_requested"] = db_now()
    if target in TERMINAL_JOB_STATES:
        values["finished"] = db_now()
    if error is not None:
        values["error"] = dict(error)
    if summary is not None:
        values["summary"] = dict(summary)
    if bundle_digest is not None:
        values["bundle_digest"] = bundle_digest
    sources = [str(state) for state in job_sources(target) if only in (None, state)]
    moved = affected(
        session,
        update(JobRow).where(JobRow.id == job_id, JobRow.state.in_(sources)).values(**values),
    )
    if not moved:
        return False
    payload: dict[str, Detail] = {"state": str(target)}
    if error is not None:
        payload["code"] = error.get("code")
    add_event(session, job_id, "state", payload)
    if target in TERMINAL_JOB_STATES:
        deliveries.announce(session, job_id, target)
    return True


_NEXT_EVENT = (
    update(JobRow)
    .where(JobRow.id == bindparam("of_job"))
    .values(event_seq=JobRow.event_seq + bindparam("more"))
    .returning(JobRow.event_seq)
)


def add_event(session: Session, job_id: str, event_type: str, payload: Mapping[str, Detail]) -> int:
    """Append to the job's history and give the event's number, as `add_events`."""
    return add_events(session, job_id, ((event_type, payload, 0.0),))


def add_events(
    session: Session, job_id: str, events: Sequence[tuple[str, Mapping[str, Detail], float]]
) -> int:
    """Append some (type, payload, seconds ago), one or more, and give the number of the last.

    The UPDATE of the counter locks the job's row, so numbers are dense and in commit order: a
    reader that saw number n will never see a smaller one appear later.
    """
    connection = session.connection()
    number = {"of_job": job_id, "more": len(events)}
    last: int = connection.execute(_NEXT_EVENT, number).scalar_one()
    connection.execute(
        _INSERT_EVENTS,
        [
            {"job_id": job_id, "seq": seq, "type": kind, "payload": dict(payload), "age_s": age_s}
            for seq, (kind, payload, age_s) in enumerate(events, last - len(events) + 1)
        ],
    )
    return last


def events(session: Session, job_id: str, after_seq: int, limit: int) -> list[EventRecord]:
    """List events with a number above `after_seq`, oldest first."""
    query = (
        select(EventRow)
        .where(EventRow.job_id == job_id, EventRow.seq > after_seq)
        .order_by(EventRow.seq)
        .limit(limit)
    )
    return [
        EventRecord(row.job_id, row.seq, row.ts, row.type, row.payload)
        for row in session.scalars(query)
    ]


def standings(session: Session, job_ids: Iterable[str]) -> dict[str, Standing]:
    """Give how each job stands that exists."""
    query = select(JobRow.id, JobRow.event_seq, JobRow.state)
    found = session.execute(query.where(JobRow.id.in_(few_lengths(job_ids))))
    return {
        row.id: Standing(row.event_seq, JobState(row.state) in TERMINAL_JOB_STATES) for row in found
    }


def waiting_otherwise(session: Session, want: str, why: str | None, limit: int) -> list[str]:
    """List jobs whose ready item wants the strategies `want`, and that do not say `why` yet."""
    return list(
        session.scalars(
            select(JobRow.id)
            .join(JobItemRow, JobItemRow.job_id == JobRow.id)
            .join(ItemRow, ItemRow.id == JobItemRow.item_id)
            .where(
                ItemRow.state == str(ItemState.READY),
                ItemRow.strategies == want,
                JobRow.waiting.is_distinct_from(why),
            )
            .order_by(JobRow.id)
            .limit(limit)
        )
    )


def set_waiting(session: Session, job_id: str, why: str | None) -> None:
    """Record why no worker takes a job, or that one can; nothing when that is known."""
    changed = update(JobRow).where(JobRow.id == job_id, JobRow.waiting.is_distinct_from(why))
    if affected(session, changed.values(waiting=why)):
        add_event(session, job_id, "waiting", {"reason": why})


def set_stage(session: Session, job_id: str, stage: str) -> None:
    """Record the stage that runs now."""
    affected(session, update(JobRow).where(JobRow.id == job_id).values(stage=stage))


def set_units(session: Session, job_id: str, solved: int, cached: int, total: int) -> None:
    """Record how many schedule units are done."""
    affected(
        session,
        update(JobRow)
        .where(JobRow.id == job_id)
        .values(units_solved=solved, units_cached=cached, units_total=total),
    )


_ACTIVE = tuple(str(state) for state in JobState if state not in TERMINAL_JOB_STATES)
COUNT_ACTIVE = (
    select(func.count())
    .select_from(JobRow)
    .where(JobRow.state.in_(_ACTIVE), JobRow.owner == bindparam("owner"))
)
"""Unfinished jobs of the parameter `owner`."""


def count_active(session: Session, owner: str) -> int:
    """Count the owner's jobs that are not finished.  Cost: linear in them, by index alone."""
    return int(session.connection().execute(COUNT_ACTIVE, {"owner": owner}).scalar_one())


def overdue(session: Session, limit: int) -> list[tuple[str, str | None]]:
    """List queued jobs whose queue deadline has passed, and why they waited where that is known."""
    query = (
        select(JobRow.id, JobRow.waiting)
        .where(JobRow.state == str(JobState.QUEUED), JobRow.queue_deadline < db_now())
        .order_by(JobRow.queue_deadline)
        .limit(limit)
    )
    return [(job_id, why) for job_id, why in session.execute(query)]


def remove(session: Session, job_id: str) -> None:
    """Delete a job, its items and everything that hangs on them.

    A message on its end that is still to be delivered stays.
    """
    items = select(JobItemRow.item_id).where(JobItemRow.job_id == job_id)
    affected(session, delete(ItemRow).where(ItemRow.id.in_(items)))
    deliveries.drop_of_job(session, job_id)
    affected(session, delete(JobRow).where(JobRow.id == job_id))


def count_by_state(session: Session) -> tuple[tuple[str, int], ...]:
    """Count jobs per state."""
    query = select(JobRow.state, func.count()).group_by(JobRow.state).order_by(JobRow.state)
    return tuple((state, count) for state, count in session.execute(query))


_LIMITS_S = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, inf)
"""Of the histograms in `/metrics`: a warm compile takes about a second, a cold one of a large model
minutes (benchmarks/MODELS.md)."""


def _histogram(seconds: ColumnElement[float | None]) -> tuple[ColumnElement[Any], ...]:
    counts = (
        func.count() if limit == inf else func.sum(case((seconds <= limit, 1), else_=0))
        for limit in _LIMITS_S
    )
    return (*counts, func.sum(seconds))


def _durations(row: Sequence[Any]) -> Durations:
    counts = tuple(zip(_LIMITS_S, (int(count or 0) for count in row[:-1]), strict=True))
    return Durations(counts, float(row[-1] or 0.0))


def waits(session: Session) -> Durations:
    """From submit to the first worker, of jobs that had one.  Cost: linear in the jobs."""
    query = select(*_histogram(JobRow.started - JobRow.created)).where(JobRow.started.is_not(None))
    return _durations(session.execute(query).one())


def runs(session: Session) -> list[tuple[str, Durations]]:
    """From the first worker to the end, by the last state.  Cost: linear in the jobs."""
    query = (
        select(JobRow.state, *_histogram(JobRow.finished - JobRow.started))
        .where(JobRow.started.is_not(None), JobRow.finished.is_not(None))
        .group_by(JobRow.state)
        .order_by(JobRow.state)
    )
    return [(row[0], _durations(row[1:])) for row in session.execute(query)]
