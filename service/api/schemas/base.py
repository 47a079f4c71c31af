"""The two bases of every schema."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from service.text import uncarried


class RequestModel(BaseModel):
    """A body that a client sends: no unknown fields, no coercion (`"3"` is not 3)."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _is_text_that_can_be_stored(cls, value: Any) -> Any:
        place = uncarried(value)
        if place is not None:
            raise ValueError(f"text at {place or 'the top'} holds half a surrogate pair")
        return value


class AnswerModel(BaseModel):
    """A body that the service sends.  What stands below a field is its description for clients."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)
