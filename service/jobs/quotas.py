"""What a project may use: unfinished jobs, and bytes that it keeps.

Bytes are those of its models, arrays, results and logs; equal content counts once, and what the
compile cache keeps has limits of its own (`service.jobs.retention`).  An upload is held against
what is true in its own transaction.  A submit, of which there are hundreds a second, is held
against a sum that is some seconds old: what came meanwhile may pass the limit once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from sqlalchemy.orm import Session

from service.errors import QuotaExceeded
from service.jobs import audit
from service.settings import Settings
from service.store.records import ProjectLimits
from service.store.repos import jobs, projects, results
from service.store.session import Database

SUMMED_S = 5.0
"""How old the sum may be that a submit is held against."""

_sums: WeakKeyDictionary[Database, dict[str, tuple[float, int]]] = WeakKeyDictionary()
"""Bytes that projects keep, and until when that is believed."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a project may use and does."""

    project: str
    own: ProjectLimits
    """Set for it; the others follow from settings where it is None."""
    rate: str
    max_active_jobs: int
    active_jobs: int
    max_bytes: int
    """0: no limit."""
    kept_bytes: int


def usage(database: Database, settings: Settings, project: str) -> Usage:
    """What a project may use and does, now."""
    with database.read() as session:
        own = projects.limits(session, project)
        return Usage(
            project, own, settings.project_rate if own.rate is None else own.rate,
            most_jobs(own, settings), jobs.count_active(session, project),
            most_bytes(own, settings), projects.kept_bytes(session, project),
        )  # fmt: skip


def set_limits(
    database: Database, project: str, own: ProjectLimits, before_commit: Callable[[], None]
) -> None:
    """Give a project limits of its own; what is None follows settings again."""
    with database.write() as session:
        projects.set_limits(session, project, own)
        audit.record(session, audit.current(), project)
        before_commit()


def check_submit(session: Session, database: Database, settings: Settings, project: str) -> None:
    """Hold one more job against the project's limits.

    Raises:
        QuotaExceeded: it has too many unfinished jobs, or keeps too many bytes.
    """
    active, own = projects.standing(session, project)
    most = most_jobs(own, settings)
    if active >= most:
        raise QuotaExceeded(
            f"{active} jobs are unfinished; the limit is {most}",
            limit=most, actual=active, headers={"Retry-After": "30"},
        )  # fmt: skip
    if room := most_bytes(own, settings):
        kept = _lately_kept(session, database, project)
        if kept >= room:
            raise _full(project, kept, room, "a job's results would come on top")


def room_for_jobs(session: Session, database: Database, settings: Settings, project: str) -> int:
    """How many more jobs the project may have now; none while it keeps too many bytes."""
    active, own = projects.standing(session, project)
    if (most := most_bytes(own, settings)) and _lately_kept(session, database, project) >= most:
        return 0
    return max(0, most_jobs(own, settings) - active)


def check_stored(session: Session, settings: Settings, project: str) -> None:
    """Hold what this transaction stored for the project against its limit.

    Raises:
        QuotaExceeded: it would keep too many bytes.
    """
    if most := most_bytes(projects.limits(session, project), settings):
        kept = projects.kept_bytes(session, project)
        if kept > most:
            raise _full(project, kept, most, "this upload included")


def check_room(
    database: Database, settings: Settings, project: str, size_bytes: int, sha256: str | None = None
) -> None:
    """Refuse an upload by its announced size before it comes, unless the project has its content.

    Raises:
        QuotaExceeded: there is no room for it.
    """
    with database.read() as session:
        most = most_bytes(projects.limits(session, project), settings)
        if not most or (sha256 is not None and results.get_blob(session, sha256, project)):
            return
        kept = projects.kept_bytes(session, project)
    if kept + size_bytes > most:
        raise _full(project, kept + size_bytes, most, "this upload included")


def most_jobs(own: ProjectLimits, settings: Settings) -> int:
    """Unfinished jobs that a project with these limits may have."""
    return settings.max_active_jobs if own.max_active_jobs is None else own.max_active_jobs


def most_bytes(own: ProjectLimits, settings: Settings) -> int:
    """Bytes that it may keep; 0: no limit."""
    return settings.max_project_bytes if own.max_bytes is None else own.max_bytes


def _lately_kept(session: Session, database: Database, project: str) -> int:
    known = _sums.setdefault(database, {})
    until, kept = known.get(project, (0.0, 0))
    if time.monotonic() >= until:
        kept = projects.kept_bytes(session, project)
        known[project] = time.monotonic() + SUMMED_S, kept
    return kept


def _full(project: str, actual: int, limit: int, why: str) -> QuotaExceeded:
    return QuotaExceeded(
        f"project {project} keeps {actual} bytes, {why}; the limit is {limit}",
        limit=limit, actual=actual,
        remedy="Delete jobs, and models that no job uses (`tilewright jobs rm`), or ask whoever"
        " runs the server for more.",
        headers={"Connection": "close"},
    )  # fmt: skip
