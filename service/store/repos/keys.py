"""API keys.  Of a secret only its digest is here."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from service.keys import Scope
from service.store.records import KeyRecord
from service.store.repos.rows import affected, insert_or_ignore
from service.store.tables import ApiKeyRow, db_now


def _record(row: ApiKeyRow, now: float) -> KeyRecord:
    return KeyRecord(
        id=row.id, prefix=row.prefix, secret_sha256=row.secret_sha256, project=row.owner,
        name=row.name, scopes=tuple(Scope(name) for name in row.scopes), created=row.created,
        expires=row.expires, revoked=row.revoked, last_used=row.last_used, rate=row.rate,
        is_live=row.revoked is None and (row.expires is None or row.expires > now),
    )  # fmt: skip


def add(
    session: Session, *, key_id: str, prefix: str, secret_sha256: str, project: str, name: str,
    scopes: Sequence[Scope], lasts_s: float | None, rate: str | None,
) -> bool:  # fmt: skip
    """Insert a key that ends in `lasts_s` seconds (None: never); False: id or prefix is taken."""
    now = float(session.scalar(select(db_now())) or 0.0)
    return insert_or_ignore(
        session,
        ApiKeyRow,
        {
            "id": key_id, "prefix": prefix, "secret_sha256": secret_sha256, "owner": project,
            "name": name, "scopes": [str(scope) for scope in scopes], "created": now,
            "expires": None if lasts_s is None else now + lasts_s,
            "revoked": None, "last_used": None, "rate": rate,
        },
    )  # fmt: skip


def find(session: Session, prefix: str) -> KeyRecord | None:
    """The key with this prefix, dead ones too."""
    query = select(ApiKeyRow, db_now()).where(ApiKeyRow.prefix == prefix)
    row = session.execute(query).one_or_none()
    return None if row is None else _record(*row)


def get(session: Session, key_id: str) -> KeyRecord | None:
    """The key with this id, dead ones too."""
    row = session.execute(select(ApiKeyRow, db_now()).where(ApiKeyRow.id == key_id)).one_or_none()
    return None if row is None else _record(*row)


def hold(session: Session, key_id: str) -> KeyRecord | None:
    """The same, which nobody else changes until this transaction ends."""
    query = select(ApiKeyRow, db_now()).where(ApiKeyRow.id == key_id).with_for_update()
    row = session.execute(query).one_or_none()
    return None if row is None else _record(*row)


def listing(session: Session, project: str | None = None) -> list[KeyRecord]:
    """All keys, or those of a project, by project, the oldest first."""
    query = select(ApiKeyRow, db_now()).order_by(ApiKeyRow.owner, ApiKeyRow.created, ApiKeyRow.id)
    if project is not None:
        query = query.where(ApiKeyRow.owner == project)
    return [_record(*row) for row in session.execute(query)]


def revoke(session: Session, key_id: str) -> bool:
    """End a key now; False when it is unknown or revoked."""
    statement = update(ApiKeyRow).where(ApiKeyRow.id == key_id, ApiKeyRow.revoked.is_(None))
    return affected(session, statement.values(revoked=db_now())) == 1


def allow(session: Session, key_id: str, scopes: Sequence[Scope]) -> bool:
    """Give a key that was not revoked other scopes; False: there is no such key."""
    statement = update(ApiKeyRow).where(ApiKeyRow.id == key_id, ApiKeyRow.revoked.is_(None))
    return affected(session, statement.values(scopes=[str(scope) for scope in scopes])) == 1


def touch(session: Session, key_id: str, every_s: float) -> None:
    """Note that a key was used, once in so many seconds."""
    is_old = or_(ApiKeyRow.last_used.is_(None), ApiKeyRow.last_used < db_now() - every_s)
    affected(
        session,
        update(ApiKeyRow).where(ApiKeyRow.id == key_id, is_old).values(last_used=db_now()),
    )
