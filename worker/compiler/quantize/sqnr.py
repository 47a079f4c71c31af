"""Signal to quantisation-noise ratio: how much of a tensor a number format keeps.

SQNR = 10 log10( sum x^2 / sum (x - x')^2 )   in decibels
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log10
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Sqnr:
    """One measured ratio; a null says why."""

    db: float | None
    """Decibels.  None: infinite or undefined, see `reason`."""
    reason: str = ""
    elements: int = 0
    """Compared."""


def sqnr_db(reference: Array, approximate: Array) -> Sqnr:
    """Compare two tensors of one shape, in f64.

    Exact equality, an all-zero signal and non-finite values have no ratio: `db` is None then.
    """
    exact = np.asarray(reference, np.float64)
    noise_of = np.asarray(approximate, np.float64)
    if exact.shape != noise_of.shape:
        raise ValueError(f"shapes {exact.shape} and {noise_of.shape} differ")
    if not exact.size:
        return Sqnr(None, "the tensor is empty")
    if not (np.isfinite(exact).all() and np.isfinite(noise_of).all()):
        return Sqnr(None, "a value is infinite or NaN", exact.size)
    # Scaled by the largest magnitude, so that squares neither overflow nor vanish.
    largest = max(float(np.abs(exact).max()), float(np.abs(noise_of).max()))
    if largest == 0.0 or np.array_equal(exact, noise_of):
        return Sqnr(None, "exact: the noise is zero", exact.size)
    signal = float(np.square(exact / largest).sum())
    noise = float(np.square((exact - noise_of) / largest).sum())
    if signal == 0.0:
        return Sqnr(None, "the signal is zero", exact.size)
    if noise == 0.0:
        return Sqnr(None, "exact: the noise is zero", exact.size)
    return Sqnr(10.0 * (log10(signal) - log10(noise)), "", exact.size)
