"""Calibration arrays."""

from __future__ import annotations

from typing import Self

from service.api.schemas.base import AnswerModel
from service.store.records import CalibrationRecord


class CalibrationAnswer(AnswerModel):
    """Uploaded arrays; a job names them by `sha256` in `options.calibration` or `.inputs`."""

    sha256: str
    """Digest of the bytes, in hexadecimal."""
    name: str
    """Name it was uploaded with."""
    size_bytes: int
    """Size in bytes."""
    created: float
    """When it was stored, in seconds since the epoch."""

    @classmethod
    def from_record(cls, record: CalibrationRecord) -> Self:
        """Build the answer."""
        return cls(
            sha256=record.sha256,
            name=record.name,
            size_bytes=record.size_bytes,
            created=record.created,
        )


class CalibrationPage(AnswerModel):
    """One page of calibration arrays, newest first."""

    items: list[CalibrationAnswer]
    """Arrays of the page."""
    next_cursor: str | None = None
    """Give it as `cursor` for the next page; null on the last one."""
