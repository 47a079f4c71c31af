"""The service about itself."""

from __future__ import annotations

from pydantic import JsonValue

from service.api.schemas.base import AnswerModel


class ErrorEntryAnswer(AnswerModel):
    """One code of the error catalogue."""

    code: str
    """The code."""
    title: str
    """What it means."""
    fault: str
    """Whose fault it is: user, service or transient."""
    stage: str
    """Where it is found."""
    status: int
    """HTTP status."""
    exit_code: int
    """Exit status of the command line."""
    remedy: str
    """What to do."""


class ErrorCatalogAnswer(AnswerModel):
    """The closed list of codes."""

    items: list[ErrorEntryAnswer]
    """The codes."""


class VersionAnswer(AnswerModel):
    """What runs here."""

    version: str
    """Version of the package."""
    api: str
    """Version of the API: the first part of every path."""
    python: str
    """Version of Python."""
    embedded: bool
    """Whether API and worker share one process."""


class HealthAnswer(AnswerModel):
    """The process answers."""

    status: str
    """`ok`."""


class ReadinessAnswer(AnswerModel):
    """Whether jobs would be accepted and worked on now."""

    ready: bool
    """True: otherwise the answer is a 503 problem."""
    checks: dict[str, JsonValue]
    """What was looked at, by name."""
