"""The two bases of every schema."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RequestModel(BaseModel):
    """A body that a client sends: no unknown fields, no coercion (`"3"` is not 3)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class AnswerModel(BaseModel):
    """A body that the service sends."""

    model_config = ConfigDict(frozen=True)
