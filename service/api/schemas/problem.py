"""The problem document, for the OpenAPI description of every refusal."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, JsonValue

from service.api.schemas.base import AnswerModel

PROBLEM_MEDIA_TYPE = "application/problem+json"


class FindingAnswer(AnswerModel):
    """One of several defects reported together."""

    code: str
    message: str
    pointer: str | None = None
    """JSON pointer into the body, or `query:name` / `header:name`."""
    node: str | None = None
    allowed: JsonValue = None
    actual: JsonValue = None


class ProblemAnswer(AnswerModel):
    """RFC 9457 with this service's members."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str
    title: str
    status: int
    code: str
    fault: str
    retryable: bool
    stage: str
    detail: str
    errors: list[FindingAnswer]
    hints: list[str]
    exit_code: int


class JobError(ProblemAnswer):
    """The same object inside a failed job."""


def _problem(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ProblemAnswer"}
    return {"description": description, "content": {PROBLEM_MEDIA_TYPE: {"schema": schema}}}


PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": _problem("The request is refused; the document says why and what to do."),
    "5XX": _problem("The service failed; `retryable` says whether to try again."),
}
"""Every route may answer these."""
