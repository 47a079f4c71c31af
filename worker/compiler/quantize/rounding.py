"""Round weights so that the error of their product is least, not their own.

    minimise  mean of |E x|^2 = tr(E H E^T)     E = integers - weights / scale,  H = mean of x x^T

by coordinate descent over the integers: each step moves one column of the weights to the integer
that is best while the others stay, so the error never grows, and the same data give the same bits.

Source: the problem is that of M. Nagel et al., Up or Down? Adaptive Rounding (ICML 2020).
Deviates: exact moves on the integers take the place of gradient descent on a relaxation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_SWEEPS = 8
"""At most; most problems stand still after four."""
_LEAST_SHRINKAGE = 0.01


def second_moments(rows: F64) -> F64:
    """H of `rows` [rows, elements], drawn towards a multiple of the identity.

    The fewer rows there are for the elements, the more: what few samples say of correlations is
    chance, and under the identity the nearest integers are best.
    """
    count, elements = rows.shape
    moments = rows.T @ rows / count
    share = max(_LEAST_SHRINKAGE, elements / (elements + count))
    mean = float(np.trace(moments)) / elements
    return np.asarray((1.0 - share) * moments + share * mean * np.eye(elements))


def rounded(weights: F64, moments: F64, least: int, most: int) -> F64:
    """Integers for `weights` [channels, elements], in units of their scales, within [least, most].

    Cost: channels * elements^2 a sweep.
    """
    integers = np.clip(np.rint(weights), least, most)
    diagonal = np.diagonal(moments)
    if not float(diagonal.max(initial=0.0)) > 0.0:
        return integers
    gradient = (integers - weights) @ moments
    for _ in range(_SWEEPS):
        moved = False
        for k in range(weights.shape[1]):
            if diagonal[k] <= 0.0:
                continue
            best = np.clip(
                np.rint(integers[:, k] - gradient[:, k] / diagonal[k]), least, most
            )  # fmt: skip
            step = best - integers[:, k]
            # A step must pay for itself beyond the roundings of this arithmetic.
            gain = -step * (2.0 * gradient[:, k] + step * diagonal[k])
            step = np.where(gain > 1e-9 * diagonal[k], step, 0.0)
            changed = np.flatnonzero(step)
            if changed.size:
                moved = True
                integers[changed, k] += step[changed]
                gradient[changed] += step[changed, None] * moments[k]
        if not moved:
            break
    return integers
