"""Cache entries: results of sub-graphs, shared between jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.keys import LOCAL
from service.store.records import BlobRef, CacheEntryRecord, CacheStats
from service.store.repos.results import add_blobs
from service.store.repos.rows import affected, few_lengths, insert_or_ignore
from service.store.tables import CacheEntryRow, db_now

_AT_ONCE = 1 << 10
"""Digests that one statement names."""


def _record(row: CacheEntryRow) -> CacheEntryRecord:
    return CacheEntryRecord(
        digest=row.digest.partition("@")[0],
        kind=row.kind,
        fields=tuple((name, value) for name, value in row.fields),
        size_bytes=row.size_bytes,
        filled_by_job=row.filled_by_job,
        created=row.created,
        last_used=row.last_used,
        hits=row.hits,
    )


def _stored(digest: str, owner: str) -> str:
    """How the entry of a project is told from another's with the same key."""
    return digest if owner == LOCAL else f"{digest}@{owner}"


def load(
    session: Session, digest: str, owner: str = LOCAL
) -> tuple[bytes | None, str | None] | None:
    """Give (inline bytes, blob digest) of an entry (one of the two is None), or None for a miss."""
    query = select(CacheEntryRow.value, CacheEntryRow.blob_sha256).where(
        CacheEntryRow.digest == _stored(digest, owner)
    )
    row = session.execute(query).one_or_none()
    return None if row is None else (row[0], row[1])


def load_many(
    session: Session, digests: Iterable[str], owner: str = LOCAL
) -> dict[str, tuple[bytes | None, str | None]]:
    """`load` of many, those that are there, by digest.  Cost: a statement for each thousand."""
    stored = {_stored(digest, owner): digest for digest in digests}
    every = sorted(stored)
    found: dict[str, tuple[bytes | None, str | None]] = {}
    for at in range(0, len(every), _AT_ONCE):
        query = select(CacheEntryRow.digest, CacheEntryRow.value, CacheEntryRow.blob_sha256).where(
            CacheEntryRow.digest.in_(few_lengths(every[at : at + _AT_ONCE]))
        )
        found |= {stored[row[0]]: (row[1], row[2]) for row in session.execute(query)}
    return found


def store(
    session: Session,
    *,
    digest: str,
    kind: str,
    fields: Sequence[tuple[str, str]],
    value: bytes | BlobRef,
    job_id: str | None,
    owner: str = LOCAL,
) -> bool:
    """Insert an entry unless its digest is taken: the first writer wins.  True when inserted."""
    if isinstance(value, BlobRef):
        add_blobs(session, [value])
        inline, blob, size = None, value.sha256, value.size_bytes
    else:
        inline, blob, size = value, None, len(value)
    return insert_or_ignore(
        session,
        CacheEntryRow,
        {
            "digest": _stored(digest, owner),
            "owner": owner,
            "kind": kind,
            "fields": [list(pair) for pair in fields],
            "value": inline,
            "blob_sha256": blob,
            "size_bytes": size,
            "filled_by_job": job_id,
            "created": db_now(),
            "last_used": db_now(),
            "hits": 0,
        },
    )


def touch(session: Session, hits: Iterable[tuple[str, int]], owner: str = LOCAL) -> None:
    """Count hits.

    Rows are locked in the order of digests first, so that two jobs cannot deadlock; then a
    statement for each number of hits, of which a job has few, not for each row.
    """
    by_count: dict[int, list[str]] = {}
    for digest, count in sorted(hits):
        by_count.setdefault(count, []).append(_stored(digest, owner))
    every = sorted(stored for found in by_count.values() for stored in found)
    for at in range(0, len(every), _AT_ONCE):
        rows = select(CacheEntryRow.digest).where(
            CacheEntryRow.digest.in_(few_lengths(every[at : at + _AT_ONCE]))
        )
        session.execute(rows.order_by(CacheEntryRow.digest).with_for_update())
    for count, found in sorted(by_count.items()):
        for at in range(0, len(found), _AT_ONCE):
            affected(
                session,
                update(CacheEntryRow)
                .where(CacheEntryRow.digest.in_(few_lengths(found[at : at + _AT_ONCE])))
                .values(hits=CacheEntryRow.hits + count, last_used=db_now()),
            )


def drop(session: Session, digest: str, owner: str = LOCAL) -> bool:
    """Delete an entry; False when it is unknown."""
    statement = delete(CacheEntryRow).where(CacheEntryRow.digest == _stored(digest, owner))
    return affected(session, statement) == 1


def get(session: Session, digest: str, owner: str = LOCAL) -> CacheEntryRecord | None:
    """Describe one entry, or None."""
    row = session.get(CacheEntryRow, _stored(digest, owner))
    return None if row is None else _record(row)


def newest(
    session: Session, *, owner: str, kind: str | None, limit: int, job_id: str | None = None
) -> list[CacheEntryRecord]:
    """List a project's entries, most recently used first."""
    query = select(CacheEntryRow).where(CacheEntryRow.owner == owner)
    if kind is not None:
        query = query.where(CacheEntryRow.kind == kind)
    if job_id is not None:
        query = query.where(CacheEntryRow.filled_by_job == job_id)
    query = query.order_by(CacheEntryRow.last_used.desc(), CacheEntryRow.digest).limit(limit)
    return [_record(row) for row in session.scalars(query)]


def stats(session: Session, owner: str | None = None) -> tuple[CacheStats, ...]:
    """Give totals per kind, of a project or of all."""
    query = (
        select(
            CacheEntryRow.kind,
            func.count(),
            func.sum(CacheEntryRow.size_bytes),
            func.sum(CacheEntryRow.hits),
        )
        .group_by(CacheEntryRow.kind)
        .order_by(CacheEntryRow.kind)
    )
    if owner is not None:
        query = query.where(CacheEntryRow.owner == owner)
    return tuple(
        CacheStats(kind, count, int(size), int(hits))
        for kind, count, size, hits in session.execute(query)
    )


def prune(session: Session, *, owner: str, unused_for_s: float, limit: int) -> int:
    """Delete a project's entries that nobody used for a while; give how many."""
    old = (
        select(CacheEntryRow.digest)
        .where(CacheEntryRow.owner == owner, CacheEntryRow.last_used < db_now() - unused_for_s)
        .order_by(CacheEntryRow.last_used)
        .limit(limit)
    )
    return affected(session, delete(CacheEntryRow).where(CacheEntryRow.digest.in_(old)))
