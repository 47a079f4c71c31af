"""Links that are shared; times are seconds since the epoch."""

from __future__ import annotations

from typing import Self

from service.api.schemas.base import AnswerModel
from service.store.records import LinkRecord


class LinkAnswer(AnswerModel):
    """A link to a job's page, without what makes it one."""

    id: str
    """Revoke it by this."""
    job: str
    """Id of the job whose page it shows."""
    created: float
    """When it was made."""
    expires: float
    """When it ends."""
    revoked: float | None
    """When it was revoked; null: it was not."""

    @classmethod
    def from_record(cls, record: LinkRecord) -> Self:
        """Build the answer."""
        return cls(
            id=record.id, job=record.job_id, created=record.created, expires=record.expires,
            revoked=record.revoked,
        )  # fmt: skip


class NewLinkAnswer(LinkAnswer):
    """A link that was made now."""

    path: str
    """Where it leads on this server, which is told here and never again."""


class LinkList(AnswerModel):
    """Links that have not ended."""

    items: list[LinkAnswer]
    """The links, the youngest first; at most a hundred."""
