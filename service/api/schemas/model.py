"""Models and resumable uploads."""

from __future__ import annotations

from typing import Self

from pydantic import Field, JsonValue

from service.api.schemas.base import AnswerModel, RequestModel
from service.store.records import ModelRecord


class ModelAnswer(AnswerModel):
    """An uploaded model."""

    id: str
    name: str
    kind: str
    sha256: str
    size_bytes: int
    created: float
    summary: dict[str, JsonValue] | None = None
    """What the ingest stage of the model's first job found; null until then."""

    @classmethod
    def from_record(cls, record: ModelRecord) -> Self:
        """Build the answer."""
        return cls(
            id=record.id,
            name=record.name,
            kind=record.kind,
            sha256=record.sha256,
            size_bytes=record.size_bytes,
            created=record.created,
            summary=None if record.summary is None else dict(record.summary),
        )


class ModelPage(AnswerModel):
    """One page of models, newest first."""

    items: list[ModelAnswer]
    next_cursor: str | None = None


class UploadRequest(RequestModel):
    """Start of a resumable upload."""

    name: str = Field(min_length=1, max_length=200)
    size_bytes: int | None = Field(default=None, ge=1, le=2**62)
    """Size of the whole file; lets the server refuse early."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


class UploadAnswer(AnswerModel):
    """A resumable upload."""

    id: str
    name: str
    offset: int
    """Bytes the server has; the next PATCH must start here."""
    size_limit_bytes: int
    expires: float
    chunk_bytes: int
    """Recommended size of one PATCH."""
