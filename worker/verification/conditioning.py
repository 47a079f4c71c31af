"""How far the reference itself moves when the model's inputs move by one rounding.

Two correct programs differ by their roundings, and a model may magnify those more than the fixed
tolerances allow (differences of nearly equal sums, logarithms of small powers).  What one rounding
of every input does to the reference measures that, without knowing what the kernels computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SIDES = 2
"""The reference and the kernels each round: their distance may be twice one rounding's."""
MAX_EASING = 8.0
"""Of a tolerance at most: a wrong halo or a missing term stands out by far more, and a model that
jumps (a comparison, a rounding to integers) must not excuse everything."""


def nudged(inputs: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Every float input moved to a neighbouring float, up or down by a seeded coin; else as is."""
    rng = np.random.default_rng(seed)
    moved: dict[str, Array] = {}
    for name, value in inputs.items():
        if value.dtype.kind == "f":
            away = np.where(rng.random(value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype)
            moved[name] = np.nextafter(value, away)
        else:
            moved[name] = value
    return moved


def eased_tolerances(
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    inputs: Mapping[str, Array],
    reference: Mapping[str, Array],
    tolerances: Mapping[str, float],
    seed: int,
) -> dict[str, float]:
    """Bounds of max |error| / max |reference| for the floats among `tolerances`, never lower.

    `run` gives the reference's values by name from inputs.
    Cost: one run of the reference; none when no input is a float.
    """
    if not any(value.dtype.kind == "f" for value in inputs.values()):
        return {}
    moved = run(nudged(inputs, seed))
    eased: dict[str, float] = {}
    for name, bound in tolerances.items():
        if name not in moved or np.asarray(reference[name]).dtype.kind != "f":
            continue
        here = np.asarray(reference[name]).astype(np.float64)
        there = np.asarray(moved[name]).astype(np.float64)
        if here.shape != there.shape or not (np.isfinite(here) & np.isfinite(there)).all():
            continue
        scale = float(np.max(np.abs(here), initial=0.0))
        change = float(np.max(np.abs(here - there), initial=0.0))
        relative = change / scale if scale > 0 else 0.0
        eased[name] = max(bound, min(SIDES * relative, MAX_EASING * bound))
    return eased
