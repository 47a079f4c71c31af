"""Blobs, artifacts and attempts: what work leaves behind."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import and_, bindparam, delete, exists, func, literal, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import BindParameter, ColumnElement

from service.store.records import ArtifactRecord, AttemptRecord, BlobRef
from service.store.repos.rows import affected, insert_all_or_ignore, upsert
from service.store.tables import (
    ArtifactRow,
    AttemptRow,
    BlobRow,
    CacheEntryRow,
    CalibrationRow,
    JobItemRow,
    JobRow,
    ModelRow,
    db_now,
)


def add_blobs(session: Session, refs: Iterable[BlobRef]) -> None:
    """Record content that is already in the blob store; known digests are left alone.

    In the order of digests, so that two jobs with the same content cannot deadlock.
    """
    by_digest = {ref.sha256: ref for ref in refs}
    rows = [
        {"sha256": digest, "size_bytes": ref.size_bytes, "media_type": ref.media_type}
        for digest, ref in sorted(by_digest.items())
    ]
    insert_all_or_ignore(session, BlobRow, rows, "created", "verified_at")


def get_blob(session: Session, sha256: str, owner: str | None = None) -> BlobRef | None:
    """Give a known blob, one that something of a project refers to where one is named, or None."""
    row = session.get(BlobRow, sha256)
    if owner is not None and not session.scalar(_IS_OF, {"sha256": sha256, "owner": owner}):
        return None
    return None if row is None else BlobRef(row.sha256, row.size_bytes, row.media_type)


_SHA256: BindParameter[str] = bindparam("sha256")
_OWNER: BindParameter[str] = bindparam("owner")
_IS_OF = select(
    or_(
        exists().where(ModelRow.blob_sha256 == _SHA256, ModelRow.owner == _OWNER),
        exists().where(CalibrationRow.blob_sha256 == _SHA256, CalibrationRow.owner == _OWNER),
        exists().where(
            ArtifactRow.blob_sha256 == _SHA256,
            ArtifactRow.item_id == JobItemRow.item_id,
            JobItemRow.job_id == JobRow.id,
            JobRow.owner == _OWNER,
        ),
    )
)


def put_artifacts(
    session: Session, artifacts: Iterable[tuple[str, str, BlobRef]], *, item_id: str, fence: int
) -> None:
    """Record an item's artifacts (name, file name, content); those of a later attempt replace them.

    Cost: two statements.
    """
    by_name = {name: (file_name, ref) for name, file_name, ref in artifacts}
    add_blobs(session, (ref for _, ref in by_name.values()))
    rows = [
        {"item_id": item_id, "name": name, "file_name": file_name, "blob_sha256": ref.sha256,
         "fence": fence}
        for name, (file_name, ref) in sorted(by_name.items())
    ]  # fmt: skip
    upsert(session, ArtifactRow, ["item_id", "name"], rows, "created")


def drop_stale_artifacts(session: Session, item_id: str, fence: int) -> int:
    """Forget artifacts that an earlier attempt left and the final one did not produce."""
    return affected(
        session,
        delete(ArtifactRow).where(ArtifactRow.item_id == item_id, ArtifactRow.fence < fence),
    )


def artifacts_of_job(
    session: Session, job_id: str, name: str | None = None
) -> list[ArtifactRecord]:
    """List a job's artifacts by name."""
    query = (
        select(ArtifactRow, BlobRow)
        .join(BlobRow, BlobRow.sha256 == ArtifactRow.blob_sha256)
        .join(JobItemRow, JobItemRow.item_id == ArtifactRow.item_id)
        .where(JobItemRow.job_id == job_id)
        .order_by(ArtifactRow.name)
    )
    if name is not None:
        query = query.where(ArtifactRow.name == name)
    return [_artifact(job_id, artifact, blob) for artifact, blob in session.execute(query)]


def _artifact(job_id: str, artifact: ArtifactRow, blob: BlobRow) -> ArtifactRecord:
    return ArtifactRecord(
        job_id=job_id,
        name=artifact.name,
        file_name=artifact.file_name,
        sha256=artifact.blob_sha256,
        size_bytes=blob.size_bytes,
        media_type=blob.media_type,
        created=artifact.created,
    )


def newest_of_model(session: Session, model_id: str, name: str) -> ArtifactRecord | None:
    """Give the artifact of this name that the model's youngest job left, or None."""
    query = (
        select(ArtifactRow, BlobRow, JobRow.id)
        .join(BlobRow, BlobRow.sha256 == ArtifactRow.blob_sha256)
        .join(JobItemRow, JobItemRow.item_id == ArtifactRow.item_id)
        .join(JobRow, JobRow.id == JobItemRow.job_id)
        .where(JobRow.model_id == model_id, ArtifactRow.name == name)
        .order_by(JobRow.created.desc(), JobRow.id.desc())
        .limit(1)
    )
    row = session.execute(query).one_or_none()
    return None if row is None else _artifact(row[2], row[0], row[1])


def start_attempt(session: Session, item_id: str, fence: int, worker_id: str) -> None:
    """Open the account of one try."""
    session.add(AttemptRow(item_id=item_id, fence=fence, worker_id=worker_id, started=db_now()))
    session.flush()


def first_attempt_age_s(session: Session, item_id: str) -> float:
    """Give the seconds since an item's first try began, 0 before it."""
    query = select(db_now() - func.min(AttemptRow.started)).where(AttemptRow.item_id == item_id)
    return float(session.scalar(query) or 0.0)


def quiet_s(session: Session) -> float | None:
    """Give the seconds since an attempt last began or ended, None before the first."""
    last = session.scalar(select(func.max(func.coalesce(AttemptRow.ended, AttemptRow.started))))
    if last is None:
        return None
    now = session.scalar(select(db_now()))
    return max(0.0, float(now or 0.0) - float(last))


def end_attempt(
    session: Session,
    item_id: str,
    fence: int,
    outcome: str,
    *,
    cpu_s: float | None = None,
    max_rss_bytes: int | None = None,
    log: BlobRef | None = None,
) -> None:
    """Close the account of one try, unless it was closed already."""
    if log is not None:
        add_blobs(session, [log])
    affected(
        session,
        update(AttemptRow)
        .where(AttemptRow.item_id == item_id, AttemptRow.fence == fence, AttemptRow.ended.is_(None))
        .values(
            ended=db_now(),
            outcome=outcome,
            cpu_s=cpu_s,
            max_rss_bytes=max_rss_bytes,
            log_sha256=None if log is None else log.sha256,
        ),
    )


def attempts_of_job(session: Session, job_id: str) -> list[AttemptRecord]:
    """List a job's attempts, oldest first."""
    query = (
        select(AttemptRow)
        .join(JobItemRow, JobItemRow.item_id == AttemptRow.item_id)
        .where(JobItemRow.job_id == job_id)
        .order_by(AttemptRow.started, AttemptRow.fence)
    )
    return [
        AttemptRecord(
            item_id=row.item_id,
            fence=row.fence,
            worker_id=row.worker_id,
            started=row.started,
            ended=row.ended,
            outcome=row.outcome,
            cpu_s=row.cpu_s,
            max_rss_bytes=row.max_rss_bytes,
            log_sha256=row.log_sha256,
        )
        for row in session.scalars(query)
    ]


def count_attempts(session: Session) -> tuple[tuple[str, int], ...]:
    """Count attempts by outcome; `running` for those still open."""
    outcome = func.coalesce(AttemptRow.outcome, "running").label("outcome")
    query = select(outcome, func.count()).group_by(outcome).order_by(outcome)
    return tuple((name, count) for name, count in session.execute(query))


def _unused(grace_s: float) -> ColumnElement[bool]:
    users = (
        select(literal(1)).where(ArtifactRow.blob_sha256 == BlobRow.sha256),
        select(literal(1)).where(ModelRow.blob_sha256 == BlobRow.sha256),
        select(literal(1)).where(CalibrationRow.blob_sha256 == BlobRow.sha256),
        select(literal(1)).where(CacheEntryRow.blob_sha256 == BlobRow.sha256),
        select(literal(1)).where(AttemptRow.log_sha256 == BlobRow.sha256),
    )
    return and_(BlobRow.created < db_now() - grace_s, *(~exists(user) for user in users))


def unreferenced_blobs(session: Session, grace_s: float, limit: int) -> list[str]:
    """List blobs that nothing refers to and that are older than `grace_s`."""
    query = select(BlobRow.sha256).where(_unused(grace_s)).order_by(BlobRow.sha256)
    return list(session.scalars(query.limit(limit)))


def all_digests(session: Session) -> set[str]:
    """Every blob that has a row."""
    return set(session.scalars(select(BlobRow.sha256)))


def remove_unused_blob(session: Session, sha256: str, grace_s: float) -> bool:
    """Forget a blob if nothing refers to it now; False when something does."""
    statement = delete(BlobRow).where(BlobRow.sha256 == sha256, _unused(grace_s))
    return affected(session, statement) == 1
