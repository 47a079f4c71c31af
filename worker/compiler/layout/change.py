"""What laying a region out did to its tensors, as rows for the report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ChangeKind(StrEnum):
    BOUNDARY_IN = "boundary_in"
    """An operator converts a region input."""
    BOUNDARY_OUT = "boundary_out"
    """An operator converts a region output."""
    INTERIOR = "interior"
    """An operator converts a tensor inside the region."""
    PREPACKED_CONSTANT = "prepacked_constant"
    """A constant was rearranged while compiling; nothing runs."""
    REFUSED = "refused"
    """The wanted layout could not be given."""


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """One tensor that changed its layout, or could not."""

    tensor: str
    """Name in the model."""
    from_layout: str
    to_layout: str
    kind: ChangeKind
    reason: str
    """One sentence: who wanted it, or what stood against it."""
