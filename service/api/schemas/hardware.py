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
    """Digest of the resolved document; a job names the spec by it."""
    name: str
    """Name that the document gives itself."""
    machine_digest: str
    """Equal for two specs that describe the same machine under different names."""
    created: float
    """When it was stored, in seconds since the epoch."""
    document: dict[str, JsonValue]
    """The spec with all that it inherits written out."""

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
    """Digest of the resolved document; a job names the spec by it."""
    name: str
    """Name that the document gives itself."""
    machine_digest: str
    """Equal for two specs that describe the same machine under different names."""
    created: float
    """When it was stored, in seconds since the epoch."""


class HardwarePage(AnswerModel):
    """One page of stored specs, newest first."""

    items: list[HardwareSummary]
    """Specs of the page."""
    next_cursor: str | None = None
    """Give it as `cursor` for the next page; null on the last one."""


class PresetAnswer(AnswerModel):
    """A preset that ships with the service."""

    name: str
    """A job names the preset by it, and a spec that inherits it."""
    description: str
    """What chip it describes, in a sentence."""
    document: dict[str, JsonValue]
    """The spec as it ships, with the evidence of its numbers."""


class PresetList(AnswerModel):
    """All presets, by name."""

    items: list[PresetAnswer]
    """The presets."""


class LintAnswer(AnswerModel):
    """All findings about a spec at once."""

    valid: bool
    """False when a finding would make the service refuse the spec."""
    machine_digest: str | None = None
    """Digest of the machine; null where the spec describes none."""
    errors: list[FindingAnswer]
    """What makes the service refuse the spec."""
    warnings: list[FindingAnswer]
    """What is doubtful about it: the service takes it all the same."""
