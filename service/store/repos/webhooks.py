"""Subscriptions of a project."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.states import EventType
from service.store.records import WebhookRecord
from service.store.repos.rows import affected
from service.store.tables import WebhookRow, db_now


def _record(row: WebhookRow, now: float) -> WebhookRecord:
    has_former = row.former_until is not None and row.former_until > now
    return WebhookRecord(
        id=row.id, project=row.owner, name=row.name, url=row.url,
        events=tuple(EventType(name) for name in row.events), secret=row.secret,
        former_secret=row.former_secret if has_former else None,
        former_until=row.former_until if has_former else None, created=row.created,
        failing_since=row.failing_since, disabled=row.disabled, disabled_why=row.disabled_why,
    )  # fmt: skip


def insert(
    session: Session, *, webhook_id: str, project: str, name: str, url: str,
    events: Sequence[EventType], secret: str,
) -> None:  # fmt: skip
    """Insert a subscription."""
    session.add(
        WebhookRow(
            id=webhook_id, owner=project, name=name, url=url, events=[str(e) for e in events],
            secret=secret, former_secret=None, former_until=None, created=db_now(),
            failing_since=None, disabled=None, disabled_why=None,
        )
    )  # fmt: skip
    session.flush()


def get(session: Session, webhook_id: str) -> WebhookRecord | None:
    """The subscription with this id."""
    query = select(WebhookRow, db_now()).where(WebhookRow.id == webhook_id)
    found = session.execute(
        query, execution_options={"populate_existing": True}
    ).one_or_none()  # fmt: skip
    return None if found is None else _record(*found)


def listing(session: Session, project: str) -> list[WebhookRecord]:
    """All of a project, the oldest first."""
    query = (
        select(WebhookRow, db_now())
        .where(WebhookRow.owner == project)
        .order_by(WebhookRow.created, WebhookRow.id)
    )
    return [_record(*row) for row in session.execute(query)]


def count(session: Session, project: str) -> int:
    """How many a project has."""
    query = select(func.count()).select_from(WebhookRow).where(WebhookRow.owner == project)
    return int(session.scalar(query) or 0)


def remove(session: Session, webhook_id: str) -> None:
    """Delete a subscription with its deliveries."""
    affected(session, delete(WebhookRow).where(WebhookRow.id == webhook_id))


def rotate(session: Session, webhook_id: str, secret: str, former_s: float) -> None:
    """Give a new secret; the one before signs, too, for so long."""
    affected(
        session,
        update(WebhookRow)
        .where(WebhookRow.id == webhook_id)
        .values(
            secret=secret, former_secret=WebhookRow.secret, former_until=db_now() + former_s
        ),
    )  # fmt: skip


def enable(session: Session, webhook_id: str) -> None:
    """Send to it again."""
    affected(
        session,
        update(WebhookRow)
        .where(WebhookRow.id == webhook_id)
        .values(disabled=None, disabled_why=None, failing_since=None),
    )


def disable(session: Session, webhook_id: str, why: str) -> None:
    """Send nothing to it any more; what was the first reason stays."""
    affected(
        session,
        update(WebhookRow)
        .where(WebhookRow.id == webhook_id, WebhookRow.disabled.is_(None))
        .values(disabled=db_now(), disabled_why=why),
    )


def heard(session: Session, webhook_id: str, *, is_good: bool) -> float:
    """Note how an attempt ended; give for how many seconds none has succeeded."""
    since = None if is_good else func.coalesce(WebhookRow.failing_since, db_now())
    changed = update(WebhookRow).where(WebhookRow.id == webhook_id).values(failing_since=since)
    affected(session, changed)
    query = select(WebhookRow.failing_since, db_now()).where(WebhookRow.id == webhook_id)
    row = session.execute(query).one_or_none()
    return 0.0 if row is None or row[0] is None else float(row[1] - row[0])
