"""Why an operator does not go to the accelerator: a value, with a stable code and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonCode(StrEnum):
    """Stable codes shown in the placement table of every report."""

    OFFLOADED = "OFFLOADED"
    """Not a refusal: the operator runs on the accelerator."""
    VIEW = "VIEW"
    """Not a refusal: the operator only renames memory; no kernel runs."""
    NOT_IN_CAPABILITIES = "NOT_IN_CAPABILITIES"
    """The machine's capability list does not name this op type."""
    UNSUPPORTED_DTYPE = "UNSUPPORTED_DTYPE"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    """An attribute limit of the capability list is exceeded."""
    RANK_LIMIT = "RANK_LIMIT"
    UNSUPPORTED_OP = "UNSUPPORTED_OP"
    """The compiler has no expression of this op type in its algebra."""
    UNSUPPORTED_ATTRIBUTE = "UNSUPPORTED_ATTRIBUTE"
    DYNAMIC_SHAPE = "DYNAMIC_SHAPE"
    DATA_DEPENDENT = "DATA_DEPENDENT"
    CONTROL_FLOW = "CONTROL_FLOW"
    DOES_NOT_FIT = "DOES_NOT_FIT"
    """Even the smallest tile of the operator exceeds a memory level."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A refusal: rule and detail."""

    code: ReasonCode
    sentence: str
