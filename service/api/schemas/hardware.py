"""Hardware specs."""

from __future__ import annotations

from typing import Self

from pydantic import JsonValue

from service.api.schemas.base import AnswerModel
from service.api.schemas.problem import FindingAnswer
from service.store.records import HardwareRecord


class HardwareAnswer(AnswerModel):
    """A stored hardware spec with its inheritance resolved."""

    id: str
    name: str
    machine_digest: str
    """Equal for two specs that describe the same machine under different names."""
    created: float
    document: dict[str, JsonValue]

    @classmethod
    def from_record(cls, record: HardwareRecord) -> Self:
        """Build the answer."""
        return cls(
            id=record.id,
            name=record.name,
            machine_digest=record.machine_digest,
            created=record.created,
            document=dict(record.document),
        )


class HardwareSummary(AnswerModel):
    """A spec in a list."""

    id: str
    name: str
    machine_digest: str
    created: float


class HardwarePage(AnswerModel):
    """One page of stored specs, newest first."""

    items: list[HardwareSummary]
    next_cursor: str | None = None


class PresetAnswer(AnswerModel):
    """A preset that ships with the service."""

    name: str
    description: str
    document: dict[str, JsonValue]


class PresetList(AnswerModel):
    """All presets, by name."""

    items: list[PresetAnswer]


class LintAnswer(AnswerModel):
    """All findings about a spec at once."""

    valid: bool
    """False when a finding would make the service refuse the spec."""
    machine_digest: str | None = None
    errors: list[FindingAnswer]
    warnings: list[FindingAnswer]
