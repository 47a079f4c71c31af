"""The compile cache."""

from __future__ import annotations

from typing import Self

from service.api.schemas.base import AnswerModel
from service.store.records import CacheEntryRecord


class CacheKindStats(AnswerModel):
    """Totals of one kind of entry."""

    kind: str
    """Kind of entries: schedule, program, simulation or verdict."""
    entries: int
    """Entries of the kind."""
    size_bytes: int
    """Bytes of their values."""
    hits: int
    """How often they were used."""


class CacheStatsAnswer(AnswerModel):
    """Totals of the cache."""

    entries: int
    """Entries of all kinds."""
    size_bytes: int
    """Bytes of their values."""
    hits: int
    """How often they were used."""
    kinds: list[CacheKindStats]
    """The same kind by kind."""


class CacheEntryAnswer(AnswerModel):
    """One entry without its value: what its key was made of, and who filled it."""

    digest: str
    """Digest of the key: what `cache explain` and the entries of a job's run name."""
    kind: str
    """What is cached: schedule, program, simulation or verdict."""
    fields: dict[str, str]
    """What the key is made of, by name."""
    size_bytes: int
    """Size in bytes."""
    filled_by_job: str | None
    """Id of the job that computed the value; null where it was none."""
    created: float
    """When it was stored, in seconds since the epoch."""
    last_used: float
    """When a job last used it, in seconds since the epoch."""
    hits: int
    """How often jobs used it."""

    @classmethod
    def from_record(cls, record: CacheEntryRecord) -> Self:
        """Build the answer."""
        return cls(
            digest=record.digest,
            kind=record.kind,
            fields=dict(record.fields),
            size_bytes=record.size_bytes,
            filled_by_job=record.filled_by_job,
            created=record.created,
            last_used=record.last_used,
            hits=record.hits,
        )


class CachePage(AnswerModel):
    """One page of entries, last used first."""

    items: list[CacheEntryAnswer]
    """Entries of the page."""
    next_cursor: str | None = None
    """Always null: the list has one page."""
