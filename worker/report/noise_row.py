"""One line of the report's noise table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NoiseRow:
    """One value of the converted model against the same value of the user's."""

    value: str
    sqnr_db: float | None
    reason: str
    """Why there is no ratio."""
    min_db: float | None
    """What the spec asks of outputs; None: nothing."""
    passed: bool | None
