"""Links to a job's page for whoever has them: make, list, revoke.  Each is one transaction."""

from __future__ import annotations

from collections.abc import Callable

from service.errors import NotFound, QuotaExceeded
from service.jobs import audit
from service.store.ids import new_id
from service.store.records import LinkRecord
from service.store.repos import jobs, links
from service.store.session import Database

MOST = 100
"""Links of one job that have not ended."""


def create_link(
    database: Database,
    job_id: str,
    owner: str,
    lasts_s: float,
    before_commit: Callable[[LinkRecord], None],
) -> LinkRecord:
    """Make a link to a job.

    Raises:
        NotFound: the job is unknown, or another owner's.
        QuotaExceeded: the job has as many as it may.
    """
    link_id = new_id("link")
    with database.write() as session:
        job = jobs.get(session, job_id)
        if job is None or job.owner != owner:
            raise NotFound("no such job", actual=job_id[:80])
        if len(links.listing(session, owner, job_id, MOST)) == MOST:
            raise QuotaExceeded(
                f"a job has at most {MOST} links that have not ended", limit=MOST,
                remedy="Give out one of those that there are; revoked ones count until they end.",
            )  # fmt: skip
        links.add(session, link_id=link_id, owner=owner, job_id=job_id, lasts_s=lasts_s)
        audit.record(session, audit.current(), link_id)
        made = links.get(session, link_id)
        if made is None:
            raise NotFound("the link has ended already", actual=link_id)
        before_commit(made)
    return made


def list_links(
    database: Database, owner: str, job_id: str | None = None
) -> tuple[LinkRecord, ...]:  # fmt: skip
    """Links of a project that have not ended, revoked ones too, the youngest first.

    Raises:
        NotFound: the job is unknown, or another owner's.
    """
    with database.read() as session:
        if job_id is not None:
            job = jobs.get(session, job_id)
            if job is None or job.owner != owner:
                raise NotFound("no such job", actual=job_id[:80])
        return tuple(links.listing(session, owner, job_id, MOST))


def revoke_link(database: Database, link_id: str, owner: str) -> LinkRecord:
    """End a link, from the next request on; twice is fine.

    Raises:
        NotFound: it is unknown, another owner's, or has ended.
    """
    with database.write() as session:
        found = links.get(session, link_id)
        if found is None or found.owner != owner:
            raise NotFound("no such link", actual=link_id[:80])
        links.revoke(session, link_id)
        audit.record(session, audit.current(), link_id)
    return found


def followed(database: Database, link_id: str) -> LinkRecord | None:
    """The link that somebody follows; None: it was revoked, has ended, or never was."""
    with database.read() as session:
        found = links.get(session, link_id)
    return found if found is not None and found.revoked is None else None
