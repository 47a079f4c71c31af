"""Messages to subscriptions: the outbox, its leases, every attempt.

Whoever changes rows of both locks the subscription before its deliveries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import and_, delete, func, literal, or_, select, update
from sqlalchemy import insert as insert_into
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from service.states import DeliveryState, EventType, JobState, SweepItemState
from service.store.ids import new_id
from service.store.records import DeliveryAttemptRecord, DeliveryRecord
from service.store.repos.rows import affected
from service.store.tables import (
    DeliveryAttemptRow,
    DeliveryRow,
    JobRow,
    SweepItemRow,
    SweepRow,
    WebhookRow,
    db_now,
)

PING = "webhook.ping"
"""Type of a message that tries a subscription out: sent once, whatever it subscribes to."""
_PENDING = str(DeliveryState.PENDING)
_MOST_MESSAGE_CHARS = 500
_INSERT = insert_into(DeliveryRow)
_FOLD = {"synchronize_session": False}


@dataclass(frozen=True, slots=True)
class Due:
    """A message that was leased to be sent now."""

    id: str
    webhook_id: str
    type: str
    body: str
    number: int
    """Of this attempt, 1 for the first."""
    tries: int
    since: float
    fence: int
    now: float
    """When it was leased."""


def announce(session: Session, job_id: str, state: JobState) -> None:
    """Write a message to each subscription that wants to know how the job has ended.

    In the transaction that ends it: neither is ever there without the other.
    """
    owner = select(JobRow.owner).where(JobRow.id == job_id).scalar_subquery()
    event = EventType(f"job.{state}")
    wanted = _receivers(session, owner, event)
    if wanted:
        _insert(session, wanted, event, _facts(session, job_id), job_id)


def announce_sweep(session: Session, sweep_id: str) -> None:
    """Write a message to each subscription that wants to know that a sweep has ended, in the
    transaction that ends it.  One that is resumed ends again."""
    row = session.execute(
        select(
            SweepRow.id, SweepRow.owner, SweepRow.state, SweepRow.label, SweepRow.items_total,
            SweepRow.created, SweepRow.finished,
        ).where(SweepRow.id == sweep_id)
    ).one()  # fmt: skip
    wanted = _receivers(session, literal(row.owner), EventType.SWEEP_ENDED)
    if not wanted:
        return
    succeeded = select(func.count()).where(
        SweepItemRow.sweep_id == sweep_id, SweepItemRow.state == str(SweepItemState.SUCCEEDED)
    )
    facts = {
        "id": row.id, "state": row.state, "label": row.label, "items_total": row.items_total,
        "items_succeeded": session.scalar(succeeded), "created": row.created,
        "finished": row.finished, "url": f"/v1/sweeps/{row.id}",
    }  # fmt: skip
    _insert(session, wanted, EventType.SWEEP_ENDED, facts, None)


def _receivers(session: Session, owner: ColumnElement[str], event: EventType) -> dict[str, str]:
    """Subscriptions of a project that want an event, by the id of a new message for each."""
    query = select(WebhookRow.id, WebhookRow.events).where(
        WebhookRow.owner == owner, WebhookRow.disabled.is_(None)
    )
    # Locked against deletion, in which case the insert would break what is told of.
    query = query.order_by(WebhookRow.id).with_for_update(read=True, key_share=True)
    return {new_id("msg"): row.id for row in session.execute(query) if event in row.events}


def _facts(session: Session, job_id: str) -> dict[str, Any]:
    """What a message says of a job; results are for who asks with a key."""
    row = session.execute(
        select(
            JobRow.id, JobRow.state, JobRow.label, JobRow.model_id, JobRow.hardware_id,
            JobRow.created, JobRow.started, JobRow.finished, JobRow.bundle_digest, JobRow.error,
        ).where(JobRow.id == job_id)
    ).one()  # fmt: skip
    error = None
    if row.error is not None:
        text = str(row.error.get("detail", ""))[:_MOST_MESSAGE_CHARS]
        error = {"code": row.error.get("code"), "detail": text}
    return {
        "id": row.id, "state": row.state, "label": row.label, "model": row.model_id,
        "hardware": row.hardware_id, "created": row.created, "started": row.started,
        "finished": row.finished, "bundle_sha256": row.bundle_digest, "error": error,
        "url": f"/v1/jobs/{row.id}",
    }  # fmt: skip


def insert(
    session: Session, delivery_id: str, webhook_id: str, kind: str, facts: Mapping[str, Any]
) -> None:
    """Write one message that is about no job, to be sent at once."""
    _insert(session, {delivery_id: webhook_id}, kind, facts, None)


def _insert(
    session: Session, receivers: Mapping[str, str], kind: str, facts: Mapping[str, Any],
    job_id: str | None,
) -> None:  # fmt: skip
    """Write the same message to subscriptions, by the id that it has for each."""
    now = float(session.scalar(select(db_now())) or 0.0)
    moment = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
    body = {"type": kind, "timestamp": moment.replace("+00:00", "Z"), "data": dict(facts)}
    row = {
        "job_id": job_id, "type": str(kind), "body": json.dumps(body, separators=(",", ":")),
        "state": _PENDING, "attempts": 0, "tries": 0, "not_before": now, "since": now, "fence": 0,
        "lease_until": None, "created": now, "finished": None,
    }  # fmt: skip
    session.connection().execute(
        _INSERT,
        [{**row, "id": one, "webhook_id": webhook_id} for one, webhook_id in receivers.items()],
    )


def _is_free() -> ColumnElement[bool]:
    return or_(DeliveryRow.lease_until.is_(None), DeliveryRow.lease_until < db_now())


def _is_due() -> ColumnElement[bool]:
    return and_(DeliveryRow.state == _PENDING, DeliveryRow.not_before <= db_now(), _is_free())


def has_due(session: Session) -> bool:
    """Whether something is to be sent.  Takes no lock."""
    return session.scalar(select(literal(1)).where(_is_due()).limit(1)) is not None


def _leased(session: Session, webhook_ids: Sequence[str] | None = None) -> dict[str, int]:
    """How many messages of each subscription are leased now."""
    query = select(DeliveryRow.webhook_id, func.count()).where(
        DeliveryRow.state == _PENDING, DeliveryRow.lease_until >= db_now()
    )
    if webhook_ids is not None:
        query = query.where(DeliveryRow.webhook_id.in_(webhook_ids))
    rows = session.execute(query.group_by(DeliveryRow.webhook_id))
    return {row[0]: row[1] for row in rows}


def lease(session: Session, *, ttl_s: float, limit: int, each: int) -> list[Due]:
    """Take what is due, of who has waited longest first, and note an attempt of each.

    Of one subscription at most `each` are leased at a time, so that a receiver that hangs does not
    keep others waiting.  Cost: a look into an index for each subscription there is.
    """
    full = [webhook_id for webhook_id, held in _leased(session).items() if held >= each]
    # Asked of each subscription, by an index: of one alone thousands may be due.
    oldest = (
        select(DeliveryRow.not_before)
        .where(DeliveryRow.webhook_id == WebhookRow.id, DeliveryRow.state == _PENDING, _is_free())
        .order_by(DeliveryRow.not_before)
        .limit(1)
        .scalar_subquery()
    )
    waiting = list(
        session.scalars(
            select(WebhookRow.id)
            .where(oldest <= db_now(), WebhookRow.id.not_in(full))
            .order_by(oldest, WebhookRow.id)
            .limit(limit)
        )
    )
    # Whoever counts holds the subscription: two that count at once would both find room.
    mine = set(
        session.scalars(
            select(WebhookRow.id)
            .where(WebhookRow.id.in_(waiting))
            .order_by(WebhookRow.id)
            .with_for_update(key_share=True, skip_locked=True)
        )
    )
    held = _leased(session, sorted(mine))
    chosen: list[str] = []
    for webhook_id in (one for one in waiting if one in mine):
        room = min(each - held.get(webhook_id, 0), limit - len(chosen))
        if room > 0:
            first = select(DeliveryRow.id).where(DeliveryRow.webhook_id == webhook_id, _is_due())
            first = first.order_by(DeliveryRow.not_before, DeliveryRow.id).limit(room)
            chosen += session.scalars(first)
    taken = session.execute(
        update(DeliveryRow)
        # Still pending, said so that SQLite finds the rows by their ids, not all that are pending.
        .where(DeliveryRow.id.in_(chosen), DeliveryRow.finished.is_(None), _is_free())
        .values(
            fence=DeliveryRow.fence + 1, attempts=DeliveryRow.attempts + 1,
            tries=DeliveryRow.tries + 1, lease_until=db_now() + ttl_s,
        )
        .returning(
            DeliveryRow.id, DeliveryRow.webhook_id, DeliveryRow.type, DeliveryRow.body,
            DeliveryRow.attempts,
            DeliveryRow.tries, DeliveryRow.since, DeliveryRow.fence, db_now(),
        ),
        execution_options=_FOLD,
    ).all()  # fmt: skip
    found = sorted((Due(*row) for row in taken), key=lambda due: due.id)
    for due in found:
        session.add(
            DeliveryAttemptRow(
                delivery_id=due.id, number=due.number, started=due.now, duration_s=None,
                status=None, error=None,
            )
        )  # fmt: skip
    session.flush()
    return found


def note_attempt(
    session: Session, due: Due, *, duration_s: float, status: int | None, error: str | None
) -> None:
    """Note how an attempt ended, also one whose lease is gone."""
    affected(
        session,
        update(DeliveryAttemptRow)
        .where(DeliveryAttemptRow.delivery_id == due.id, DeliveryAttemptRow.number == due.number)
        .values(duration_s=duration_s, status=status, error=error),
    )


def _held(due: Due) -> tuple[ColumnElement[bool], ...]:
    return (
        DeliveryRow.id == due.id, DeliveryRow.fence == due.fence, DeliveryRow.state == _PENDING,
    )  # fmt: skip


def end(session: Session, due: Due, state: DeliveryState) -> bool:
    """The message needs no further attempt; False when the lease is somebody else's."""
    values = {"state": str(state), "finished": db_now(), "lease_until": None}
    return affected(session, update(DeliveryRow).where(*_held(due)).values(**values)) == 1


def put_off(session: Session, due: Due, pause_s: float) -> bool:
    """Try again after a pause; False when the lease is somebody else's."""
    values = {"not_before": db_now() + pause_s, "lease_until": None}
    return affected(session, update(DeliveryRow).where(*_held(due)).values(**values)) == 1


def give_up_all(session: Session, webhook_id: str) -> int:
    """Give up what waits for a subscription; what is being sent ends on its own."""
    return affected(
        session,
        update(DeliveryRow)
        .where(DeliveryRow.webhook_id == webhook_id, DeliveryRow.state == _PENDING, _is_free())
        .values(state=str(DeliveryState.GIVEN_UP), finished=db_now()),
    )


def replay(session: Session, delivery_id: str) -> bool:
    """Send a message that has ended again, at once; False when it has not ended."""
    return (
        affected(
            session,
            update(DeliveryRow)
            .where(DeliveryRow.id == delivery_id, DeliveryRow.state != _PENDING)
            .values(
                state=_PENDING, tries=0, not_before=db_now(), since=db_now(), finished=None,
                lease_until=None,
            ),
        )
        == 1
    )  # fmt: skip


def _record(row: DeliveryRow, now: float) -> DeliveryRecord:
    return DeliveryRecord(
        id=row.id, webhook_id=row.webhook_id, job_id=row.job_id, type=row.type, body=row.body,
        state=DeliveryState(row.state), attempts=row.attempts, tries=row.tries,
        not_before=row.not_before, since=row.since,
        is_leased=row.lease_until is not None and row.lease_until >= now,
        created=row.created, finished=row.finished,
    )  # fmt: skip


def get(session: Session, delivery_id: str) -> DeliveryRecord | None:
    """One message."""
    query = select(DeliveryRow, db_now()).where(DeliveryRow.id == delivery_id)
    found = session.execute(query, execution_options={"populate_existing": True}).one_or_none()
    return None if found is None else _record(*found)


def page(
    session: Session, webhook_id: str, *, state: DeliveryState | None,
    before: tuple[float, str] | None, limit: int,
) -> list[DeliveryRecord]:  # fmt: skip
    """Messages of a subscription, newest first, strictly older than `before` (created, id)."""
    query = select(DeliveryRow, db_now()).where(DeliveryRow.webhook_id == webhook_id)
    if state is not None:
        query = query.where(DeliveryRow.state == str(state))
    if before is not None:
        created, delivery_id = before
        query = query.where(
            or_(
                DeliveryRow.created < created,
                and_(DeliveryRow.created == created, DeliveryRow.id < delivery_id),
            )
        )
    query = query.order_by(DeliveryRow.created.desc(), DeliveryRow.id.desc()).limit(limit)
    return [_record(*row) for row in session.execute(query)]


def attempts(session: Session, delivery_id: str) -> list[DeliveryAttemptRecord]:
    """All attempts at a message, the first one first."""
    query = (
        select(DeliveryAttemptRow)
        .where(DeliveryAttemptRow.delivery_id == delivery_id)
        .order_by(DeliveryAttemptRow.number)
    )
    return [
        DeliveryAttemptRecord(row.number, row.started, row.duration_s, row.status, row.error)
        for row in session.scalars(query)
    ]


def drop_of_job(session: Session, job_id: str) -> None:
    """Delete messages on a job that have ended: the job is being deleted."""
    affected(
        session,
        delete(DeliveryRow).where(DeliveryRow.job_id == job_id, DeliveryRow.state != _PENDING),
    )
