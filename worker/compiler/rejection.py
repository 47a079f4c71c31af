"""Why an operator cannot go to an accelerator: a value, not an exception.

Shared by the front end (what the algebra cannot say) and the partitioner (what a target refuses).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonCode(StrEnum):
    """The closed list of reasons; codes are never reused."""

    OFFLOADED = "OFFLOADED"
    """Not a refusal: the operator runs on the accelerator."""
    VIEW = "VIEW"
    """Not a refusal: the operator only renames memory; no kernel runs."""
    DOES_NOT_FIT = "DOES_NOT_FIT"
    """Even the smallest tile exceeds a memory, or no engine has a rate for the type."""
    UNSUPPORTED_OP = "UNSUPPORTED_OP"
    """The operator has no expression in the algebra."""
    UNSUPPORTED_ATTRIBUTE = "UNSUPPORTED_ATTRIBUTE"
    """An attribute is unknown, missing, of the wrong type, or has a value we cannot express."""
    UNSUPPORTED_DTYPE = "UNSUPPORTED_DTYPE"
    UNSUPPORTED_OUTPUT = "UNSUPPORTED_OUTPUT"
    """An optional output that we do not compute is used."""
    UNSUPPORTED_INPUT = "UNSUPPORTED_INPUT"
    """An input is missing, or has a form we cannot express."""
    DYNAMIC_SHAPE = "DYNAMIC_SHAPE"
    DATA_DEPENDENT = "DATA_DEPENDENT"
    """The result's shape or addressing depends on values known only at run time."""
    CONTROL_FLOW = "CONTROL_FLOW"
    RANK_LIMIT = "RANK_LIMIT"
    SIZE_LIMIT = "SIZE_LIMIT"
    """A dimension too long for the index tables that the operator needs."""
    EMPTY_TENSOR = "EMPTY_TENSOR"
    """A tensor with a zero dimension: nothing to compute."""
    SHAPE_MISMATCH = "SHAPE_MISMATCH"
    """Shapes contradict the operator's definition, or the recorded output shape."""
    CAPABILITY_OP = "CAPABILITY_OP"
    """The machine's capabilities do not list the operator."""
    CAPABILITY_DTYPE = "CAPABILITY_DTYPE"
    CAPABILITY_ATTRIBUTE = "CAPABILITY_ATTRIBUTE"
    CAPABILITY_RANK = "CAPABILITY_RANK"
    CONSTANT_INPUT = "CONSTANT_INPUT"
    """The target needs an initializer where the model computes a value."""
    COMPOSITE = "COMPOSITE"
    """Not a refusal: the operator runs as part of a composite of the target."""
    CRITERION = "CRITERION"
    """The target's region rules sent its region back."""
    SINGLE_REGION = "SINGLE_REGION"
    """The target takes one region per model, and another was better."""
    WEIGHED = "WEIGHED"
    """It could be offloaded, but the whole program is faster with it on the host."""
    ALL_ON_HOST = "ALL_ON_HOST"
    """The accelerator could run parts of the model, but the whole is best on the host."""
    BOUNDARY = "BOUNDARY"
    """A conversion between number formats at the edge of a region."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """One reason, with a sentence for the user (what, limit against actual, what to change)."""

    code: ReasonCode
    sentence: str
