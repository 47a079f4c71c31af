"""Axes of an operator's iteration domain."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AxisKind(StrEnum):
    """PARALLEL: any order. REDUCE: combined by the operator's `reduce`. SCAN: order matters."""

    PARALLEL = "parallel"
    REDUCE = "reduce"
    SCAN = "scan"


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis with values 0 .. extent-1; extent >= 1."""

    name: str
    extent: int
    kind: AxisKind = AxisKind.PARALLEL
