"""The audit log."""

from __future__ import annotations

from typing import Self

from service.api.schemas.base import AnswerModel
from service.store.records import AuditRecord, Outcome


class AuditAnswer(AnswerModel):
    """One request that changed something, or was to."""

    id: int
    """Grows with time."""
    time: float
    """By the database's clock, in seconds since the epoch."""
    project: str
    """Of the caller."""
    key: str | None
    """Id of the caller's key; null: no key was needed."""
    who: str
    """Name of the key, or whose token it was."""
    route: str
    """Method and path, with names for the ids in it."""
    subject: str | None
    """Id of what was changed, as far as it is known; null: no single thing."""
    outcome: Outcome
    """`done` is written in the transaction of the change itself."""
    status: int | None
    """Of the answer; null with `done`, and where none was sent."""
    request_id: str
    """As the answer's X-Request-ID and the lines of the log have it."""

    @classmethod
    def from_record(cls, record: AuditRecord) -> Self:
        return cls(
            id=record.id, time=record.time, project=record.project, key=record.key_id,
            who=record.who, route=record.route, subject=record.subject,
            outcome=Outcome(record.outcome), status=record.status, request_id=record.request_id,
        )  # fmt: skip


class AuditPage(AnswerModel):
    """A page of the audit log."""

    items: list[AuditAnswer]
    """Rows, the youngest first."""
    next_cursor: str | None
    """Gives the next page; null at the end."""
