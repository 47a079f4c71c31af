"""The service about itself."""

from __future__ import annotations

from pydantic import JsonValue

from service.api.schemas.base import AnswerModel


class ErrorEntryAnswer(AnswerModel):
    """One code of the error catalogue."""

    code: str
    title: str
    fault: str
    stage: str
    status: int
    exit_code: int
    remedy: str


class ErrorCatalogAnswer(AnswerModel):
    """The closed list of codes."""

    items: list[ErrorEntryAnswer]


class VersionAnswer(AnswerModel):
    """What runs here."""

    version: str
    api: str
    python: str
    embedded: bool


class HealthAnswer(AnswerModel):
    """The process answers."""

    status: str


class ReadinessAnswer(AnswerModel):
    """Whether jobs would be accepted and worked on now."""

    ready: bool
    checks: dict[str, JsonValue]
