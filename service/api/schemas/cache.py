"""The compile cache."""

from __future__ import annotations

from typing import Self

from service.api.schemas.base import AnswerModel
from service.store.records import CacheEntryRecord


class CacheKindStats(AnswerModel):
    """Totals of one kind of entry."""

    kind: str
    entries: int
    size_bytes: int
    hits: int


class CacheStatsAnswer(AnswerModel):
    """Totals of the cache."""

    entries: int
    size_bytes: int
    hits: int
    kinds: list[CacheKindStats]


class CacheEntryAnswer(AnswerModel):
    """One entry without its value: what its key was made of, and who filled it."""

    digest: str
    kind: str
    fields: dict[str, str]
    size_bytes: int
    filled_by_job: str | None
    created: float
    last_used: float
    hits: int

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
    next_cursor: str | None = None
