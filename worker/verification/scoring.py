"""What the noise of a conversion is measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Scoring:
    """Samples, and what they are."""

    batches: tuple[Mapping[str, npt.NDArray[Any]], ...]
    words: str
    """For the report: where they come from."""
    is_seen: bool = False
    """Calibration has seen them: the figures flatter."""
