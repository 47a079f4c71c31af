"""What is not known of a machine: numbers that are guesses, energies that are ranges."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guess:
    """A number of the spec that is a guess: listed in every report."""

    pointer: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class EnergyRange:
    """An energy or power of the spec that may as well be any other between two."""

    pointer: str
    owner: str
    """Name of the level, engine or link; `host`, or empty for the whole chip."""
    field: str
    """Of its owner; of an engine the number format of the operation."""
    low: float
    high: float
