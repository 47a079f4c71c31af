"""Tilings of one layer in arrays: what their places mean, and how rows become arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.tiling.nest.facts import Facts

Ints: TypeAlias = "npt.NDArray[np.int64]"
Floats: TypeAlias = "npt.NDArray[np.float64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"
WAYS, TRIPS = 0, 1
"""Places of numbers and of ends of boxes: [..., ways or trips, stages, axes]."""


def long_axes(facts: Facts) -> tuple[str, ...]:
    """Axes of more than one step: others stand in every tiling with one way and one trip.  There is
    at least one, where there are any."""
    found = tuple(name for name, extent in facts.extents.items() if extent > 1)
    return found or tuple(facts.extents)[:1]


def ints(rows: Iterable[object], width: int | None = None) -> Ints:
    """[rows], or [rows, width], which may be empty."""
    found = _listed(rows)
    return np.array(found, np.int64).reshape(len(found), *(() if width is None else (width,)))


def floats(rows: Iterable[object], width: int | None = None) -> Floats:
    """[rows], or [rows, width], which may be empty."""
    found = _listed(rows)
    return np.array(found, np.float64).reshape(len(found), *(() if width is None else (width,)))


def _listed(rows: Iterable[object]) -> list[object]:
    return [list(row) if isinstance(row, Iterable) else row for row in rows]


def starts(parts: Iterable[Sequence[object]]) -> Ints:
    """Where each part begins when they stand one after the other, and the end."""
    return np.array([0, *accumulate(map(len, parts))], np.int64)
