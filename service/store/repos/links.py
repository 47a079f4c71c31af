"""Links to jobs that are shared.  What a link says is signed, so nothing of it is here."""

from __future__ import annotations

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from service.store.records import LinkRecord
from service.store.repos.rows import affected
from service.store.tables import LinkRow, db_now


def _record(row: LinkRow) -> LinkRecord:
    return LinkRecord(row.id, row.owner, row.job_id, row.created, row.expires, row.revoked)


def add(session: Session, *, link_id: str, owner: str, job_id: str, lasts_s: float) -> None:
    """Insert a link that ends in so many seconds."""
    session.add(
        LinkRow(
            id=link_id, owner=owner, job_id=job_id, created=db_now(), expires=db_now() + lasts_s,
            revoked=None,
        )
    )  # fmt: skip
    session.flush()


def get(session: Session, link_id: str) -> LinkRecord | None:
    """The link with this id, whether or not it was revoked; None: it has ended, or never was."""
    query = select(LinkRow).where(LinkRow.id == link_id, LinkRow.expires > db_now())
    row = session.scalar(query, execution_options={"populate_existing": True})
    return None if row is None else _record(row)


def listing(session: Session, owner: str, job_id: str | None, limit: int) -> list[LinkRecord]:
    """A project's that have not ended, of one job or of all, the youngest first."""
    query = select(LinkRow).where(LinkRow.owner == owner, LinkRow.expires > db_now())
    if job_id is not None:
        query = query.where(LinkRow.job_id == job_id)
    ordered = query.order_by(LinkRow.created.desc(), LinkRow.id.desc()).limit(limit)
    return [_record(row) for row in session.scalars(ordered)]


def revoke(session: Session, link_id: str) -> None:
    """End a link now; a revoked one stays as it was."""
    statement = update(LinkRow).where(LinkRow.id == link_id, LinkRow.revoked.is_(None))
    affected(session, statement.values(revoked=db_now()))


def drop_ended(session: Session) -> int:
    """Forget links that are past their end: these are refused without a row, too."""
    return affected(session, delete(LinkRow).where(LinkRow.expires <= db_now()))
