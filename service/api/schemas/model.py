"""Models and resumable uploads."""

from __future__ import annotations

from typing import Self

from pydantic import Field, JsonValue

from service.api.schemas.base import AnswerModel, RequestModel
from service.store.records import ModelRecord


class ModelAnswer(AnswerModel):
    """An uploaded model."""

    id: str
    """The model's id: a job names it by this."""
    name: str
    """Name it was uploaded with."""
    kind: str
    """`onnx`, or `zip` for a model with external data."""
    sha256: str
    """Digest of the bytes, in hexadecimal."""
    size_bytes: int
    """Size in bytes."""
    created: float
    """When it was stored, in seconds since the epoch."""
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
    """Models of the page."""
    next_cursor: str | None = None
    """Give it as `cursor` for the next page; null on the last one."""


class UploadRequest(RequestModel):
    """Start of a resumable upload."""

    name: str = Field(min_length=1, max_length=200)
    """Name of the model."""
    size_bytes: int | None = Field(default=None, ge=1, le=2**62)
    """Size of the whole file; lets the server refuse early."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest of the whole file, which is checked at the end."""


class UploadAnswer(AnswerModel):
    """A resumable upload."""

    id: str
    """The upload's id, part of its address."""
    name: str
    """Name of the model."""
    offset: int
    """Bytes the server has; the next PATCH must start here."""
    size_limit_bytes: int
    """Bytes that the file may have at most."""
    expires: float
    """When it is dropped unless more comes, in seconds since the epoch."""
    chunk_bytes: int
    """Recommended size of one PATCH."""
