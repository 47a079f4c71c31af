"""Calibration arrays that users bring for partial quantisation."""

from __future__ import annotations

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from service.store.records import CalibrationRecord
from service.store.repos.rows import insert_or_ignore
from service.store.tables import BlobRow, CalibrationRow, db_now


def _record(row: CalibrationRow, blob: BlobRow) -> CalibrationRecord:
    return CalibrationRecord(
        sha256=row.blob_sha256,
        owner=row.owner,
        name=row.name,
        size_bytes=blob.size_bytes,
        created=row.created,
    )


def add_calibration(session: Session, *, owner: str, name: str, sha256: str) -> bool:
    """Insert arrays unless the owner already has these bytes; True when inserted."""
    return insert_or_ignore(
        session,
        CalibrationRow,
        {"owner": owner, "blob_sha256": sha256, "name": name, "created": db_now()},
    )


def find_calibration(session: Session, owner: str, sha256: str) -> CalibrationRecord | None:
    """Give the owner's arrays with these bytes, or None."""
    query = (
        select(CalibrationRow, BlobRow)
        .join(BlobRow, BlobRow.sha256 == CalibrationRow.blob_sha256)
        .where(CalibrationRow.owner == owner, CalibrationRow.blob_sha256 == sha256)
    )
    row = session.execute(query).one_or_none()
    return None if row is None else _record(*row)


def list_calibrations(
    session: Session, *, owner: str, before: tuple[float, str] | None, limit: int
) -> list[CalibrationRecord]:
    """List the owner's arrays, newest first."""
    query = (
        select(CalibrationRow, BlobRow)
        .join(BlobRow, BlobRow.sha256 == CalibrationRow.blob_sha256)
        .where(CalibrationRow.owner == owner)
    )
    if before is not None:
        created, sha256 = before
        query = query.where(
            or_(
                CalibrationRow.created < created,
                and_(CalibrationRow.created == created, CalibrationRow.blob_sha256 < sha256),
            )
        )
    query = query.order_by(CalibrationRow.created.desc(), CalibrationRow.blob_sha256.desc())
    return [_record(*row) for row in session.execute(query.limit(limit))]
