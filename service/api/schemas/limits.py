"""What projects may use."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from service.api.schemas.base import AnswerModel, RequestModel
from service.api.schemas.key import RateText
from service.jobs.quotas import Usage
from service.store.records import ProjectLimits

MOST = 2**53


class LimitsRequest(RequestModel):
    """Limits of a project in place of those of the server's settings; null: as settings say."""

    rate: RateText | None = None
    """Requests of all its keys together."""
    max_active_jobs: Annotated[int, Field(ge=0, le=MOST)] | None = None
    """Unfinished jobs at a time; 0 lets it submit none."""
    max_bytes: Annotated[int, Field(ge=0, le=MOST)] | None = None
    """Bytes of its models, arrays, results and logs; 0: as many as come."""

    def to_record(self) -> ProjectLimits:
        return ProjectLimits(self.rate, self.max_active_jobs, self.max_bytes)


class LimitsAnswer(AnswerModel):
    """What a project may use, and does."""

    project: str
    """Whose limits they are."""
    rate: str
    """Requests of all its keys together; empty: no bound."""
    max_active_jobs: int
    """Unfinished jobs at a time."""
    active_jobs: int
    """Unfinished jobs now."""
    max_bytes: int
    """Bytes of its models, arrays, results and logs; 0: no bound."""
    kept_bytes: int
    """How many it has; equal content counts once."""
    own: LimitsRequest
    """What was set for this project; what is null follows the server's settings."""

    @classmethod
    def from_usage(cls, usage: Usage) -> Self:
        own = usage.own
        return cls(
            project=usage.project, rate=usage.rate, max_active_jobs=usage.max_active_jobs,
            active_jobs=usage.active_jobs, max_bytes=usage.max_bytes,
            kept_bytes=usage.kept_bytes,
            own=LimitsRequest(
                rate=own.rate, max_active_jobs=own.max_active_jobs, max_bytes=own.max_bytes
            ),
        )  # fmt: skip
