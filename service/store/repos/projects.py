"""What projects may use instead of what settings say, and what they do use."""

from __future__ import annotations

from sqlalchemy import bindparam, func, select, union
from sqlalchemy.orm import Session

from service.store.records import ProjectLimits
from service.store.repos.jobs import COUNT_ACTIVE
from service.store.repos.rows import upsert
from service.store.tables import (
    ArtifactRow,
    AttemptRow,
    BlobRow,
    CalibrationRow,
    JobItemRow,
    JobRow,
    ModelRow,
    ProjectLimitRow,
)

_LIMITS = select(
    ProjectLimitRow.rate, ProjectLimitRow.max_active_jobs, ProjectLimitRow.max_bytes
).where(ProjectLimitRow.owner == bindparam("owner"))
_ITEMS = (
    select(JobItemRow.item_id)
    .join(JobRow, JobRow.id == JobItemRow.job_id)
    .where(JobRow.owner == bindparam("owner"))
)
_DIGESTS = union(  # equal content counts once
    select(ModelRow.blob_sha256).where(ModelRow.owner == bindparam("owner")),
    select(CalibrationRow.blob_sha256).where(CalibrationRow.owner == bindparam("owner")),
    select(ArtifactRow.blob_sha256).where(ArtifactRow.item_id.in_(_ITEMS)),
    select(AttemptRow.log_sha256).where(AttemptRow.item_id.in_(_ITEMS)),
).subquery()
_KEPT = select(func.coalesce(func.sum(BlobRow.size_bytes), 0)).where(
    BlobRow.sha256.in_(select(_DIGESTS.c[0]))
)


_STANDING = select(
    *(
        statement.scalar_subquery()
        for statement in (
            COUNT_ACTIVE,
            *(
                select(column).where(ProjectLimitRow.owner == bindparam("owner"))
                for column in (ProjectLimitRow.max_active_jobs, ProjectLimitRow.max_bytes)
            ),
        )
    )
)


def standing(session: Session, project: str) -> tuple[int, ProjectLimits]:
    """A project's unfinished jobs and its own limits but the rate, in one statement: every submit
    asks for them."""
    active, most_jobs, most_bytes = (
        session.connection().execute(_STANDING, {"owner": project}).one()
    )
    return int(active), ProjectLimits(None, most_jobs, most_bytes)


def limits(session: Session, project: str) -> ProjectLimits:
    """A project's own limits; none where it has no row."""
    row = session.connection().execute(_LIMITS, {"owner": project}).one_or_none()
    return ProjectLimits() if row is None else ProjectLimits(*row)


def set_limits(session: Session, project: str, given: ProjectLimits) -> None:
    """Give a project limits of its own, in place of those that it had."""
    upsert(
        session, ProjectLimitRow, ["owner"],
        [{
            "owner": project, "rate": given.rate, "max_active_jobs": given.max_active_jobs,
            "max_bytes": given.max_bytes,
        }],
        "changed",
    )  # fmt: skip


def kept_bytes(session: Session, project: str) -> int:
    """Bytes of a project's models, arrays, artifacts and logs.  Cost: linear in its jobs' files."""
    return int(session.connection().execute(_KEPT, {"owner": project}).scalar_one())
