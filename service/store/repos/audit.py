"""The audit log: rows are added and, when old, deleted; nothing changes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy import insert as insert_into
from sqlalchemy.orm import Session

from service.store.records import AuditFilter, AuditRecord
from service.store.repos.rows import affected
from service.store.tables import AuditRow, db_now

_INSERT = insert_into(AuditRow).values(ts=db_now())


def add(session: Session, values: Mapping[str, Any]) -> None:
    """Add one row, with the database's time.  A plain statement: every accepted job adds one."""
    session.connection().execute(_INSERT, values)


def page(
    session: Session, wanted: AuditFilter, before: int | None, limit: int
) -> list[AuditRecord]:
    """List rows, the youngest first, with an id below `before`; all filters must hold."""
    query = select(AuditRow)
    for column, value in (
        (AuditRow.owner, wanted.project), (AuditRow.key_id, wanted.key),
        (AuditRow.route, wanted.route), (AuditRow.subject, wanted.subject),
        (AuditRow.outcome, wanted.outcome),
    ):  # fmt: skip
        if value is not None:
            query = query.where(column == value)
    if wanted.since is not None:
        query = query.where(AuditRow.ts >= wanted.since)
    if wanted.until is not None:
        query = query.where(AuditRow.ts < wanted.until)
    if before is not None:
        query = query.where(AuditRow.id < before)
    query = query.order_by(AuditRow.id.desc()).limit(limit)
    return [
        AuditRecord(
            id=row.id, time=row.ts, project=row.owner, key_id=row.key_id, who=row.who,
            route=row.route, subject=row.subject, outcome=row.outcome, status=row.status,
            request_id=row.request_id,
        )
        for row in session.scalars(query)
    ]  # fmt: skip


def drop_old(session: Session, older_than_s: float, limit: int) -> int:
    """Delete rows that are so old, the oldest first; give how many."""
    old = (
        select(AuditRow.id).where(AuditRow.ts < db_now() - older_than_s)
        .order_by(AuditRow.ts, AuditRow.id).limit(limit)
    )  # fmt: skip
    return affected(session, delete(AuditRow).where(AuditRow.id.in_(old)))
