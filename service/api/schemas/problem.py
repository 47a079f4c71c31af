"""The problem document, for the OpenAPI description of every refusal."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, JsonValue

from service.api.schemas.base import AnswerModel

PROBLEM_MEDIA_TYPE = "application/problem+json"


class FindingAnswer(AnswerModel):
    """One of several defects reported together."""

    code: str
    """A code of `/v1/errors`."""
    message: str
    """What is wrong."""
    pointer: str | None = None
    """JSON pointer into the body, or `query:name` / `header:name`."""
    node: str | None = None
    """Name of the model's node it is about."""
    allowed: JsonValue = None
    """What would have been right: a limit, or the values there are."""
    actual: JsonValue = None
    """What was there instead."""


class ProblemAnswer(AnswerModel):
    """RFC 9457 with this service's members."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    type: str
    """A URN of the code."""
    title: str
    """What the code means."""
    status: int
    """HTTP status."""
    code: str
    """A code of `/v1/errors`; programs go by it."""
    fault: str
    """Whose fault it is: user, service or transient."""
    retryable: bool
    """Whether the same request may succeed later."""
    stage: str
    """Where it was found: a stage of the compile, service or client."""
    detail: str
    """What happened this time."""
    errors: list[FindingAnswer]
    """All findings, where there are several."""
    hints: list[str]
    """What to do."""
    exit_code: int
    """Exit status of the command line for it."""


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
