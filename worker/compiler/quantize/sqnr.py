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

_EXACT = "exact: the noise is zero"


@dataclass(frozen=True, slots=True)
class Sqnr:
    """One measured ratio; a null says why."""

    db: float | None
    """Decibels.  None: infinite or undefined, see `reason`."""
    reason: str = ""
    elements: int = 0
    """Compared."""

    @property
    def is_exact(self) -> bool:
        """Whether there is no ratio because there is no noise."""
        return self.reason == _EXACT


class Powers:
    """Signal and noise of one value, summed over any number of batches, in f64.

    Sums are kept in units of the largest magnitude so far, so that squares neither overflow nor
    vanish.
    """

    def __init__(self) -> None:
        self._unit = 0.0
        self._signal = 0.0
        self._noise = 0.0
        self._elements = 0
        self._is_finite = True
        self.is_measured = False
        """Whether anything was added."""

    def add(self, reference: Array, approximate: Array) -> None:
        """Compare two tensors of one shape."""
        exact = np.asarray(reference, np.float64)
        noise_of = np.asarray(approximate, np.float64)
        if exact.shape != noise_of.shape:
            raise ValueError(f"shapes {exact.shape} and {noise_of.shape} differ")
        self.is_measured = True
        self._elements += exact.size
        if not exact.size:
            return
        self._is_finite &= bool(np.isfinite(exact).all() and np.isfinite(noise_of).all())
        if not self._is_finite:
            return
        largest = max(float(np.abs(exact).max()), float(np.abs(noise_of).max()))
        if largest > self._unit:
            shrunk = (self._unit / largest) ** 2
            self._signal, self._noise = self._signal * shrunk, self._noise * shrunk
            self._unit = largest
        if largest > 0.0:
            self._signal += float(np.square(exact / self._unit).sum())
            self._noise += float(np.square((exact - noise_of) / self._unit).sum())

    def sqnr(self) -> Sqnr:
        """The ratio.  Exact equality, an all-zero signal and non-finite values have none."""
        if not self._elements:
            return Sqnr(None, "the tensor is empty")
        if not self._is_finite:
            return Sqnr(None, "a value is infinite or NaN", self._elements)
        if self._noise == 0.0:
            return Sqnr(None, _EXACT, self._elements)
        if self._signal == 0.0:
            return Sqnr(None, "the signal is zero", self._elements)
        db = 10.0 * (log10(self._signal) - log10(self._noise))
        return Sqnr(db, "", self._elements)


def sqnr_db(reference: Array, approximate: Array) -> Sqnr:
    """Compare two tensors of one shape; see `Powers`."""
    powers = Powers()
    powers.add(reference, approximate)
    return powers.sqnr()
