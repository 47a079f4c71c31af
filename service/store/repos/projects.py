"""What projects may use instead of what settings say, and what they do use."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.records import ProjectLimits
from service.store.tables import ProjectLimitRow

_LIMITS = select(ProjectLimitRow.rate, ProjectLimitRow.max_active_jobs, ProjectLimitRow.max_bytes)


def limits(session: Session, project: str) -> ProjectLimits:
    """A project's own limits; none where it has no row."""
    row = session.execute(_LIMITS.where(ProjectLimitRow.owner == project)).one_or_none()
    return ProjectLimits() if row is None else ProjectLimits(*row)
