"""Which range of the values that calibration saw gets integers: four ways.

All look at the sample of `Observed` only; extremes beyond it are known as such.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import PassContractError
from worker.compiler.machine.machine import Conversion
from worker.compiler.quantization import Quantization, Ranges
from worker.compiler.quantize.parameters import as_scale
from worker.compiler.quantize.ranges import Observed

F64 = npt.NDArray[np.float64]
Range = tuple[float, float]

_FACTORS = np.geomspace(0.25, 2.0, 37)
"""Of the range seen: `mse` tries these; steps of 6 %, within which the error hardly changes."""
_AS_GOOD = 1.03
"""Of the least error: what samples cannot tell apart; the range seen is then as good as any."""
_UNSEEN = 0.3
"""Extremes of the tail beyond all that calibration saw, per calibration: 0 trusts few samples too
much, 1 widens ranges of many."""
_TOP = 8
"""Elements that a tail is judged by."""
_BINS = 2048
_LEVELS = 128
"""Levels of each side of zero: those of an 8-bit integer."""
_BIN_STEP = 8


@dataclass(frozen=True, slots=True, eq=False)
class Bent:
    """What the only reader makes of a value: errors count by what is left of them there."""

    function: Callable[[F64], F64]
    """Of the elements that it reads; what it reads differs from the value by a constant."""
    at: npt.NDArray[np.float32]
    """Its operand's elements, in the places of the value's sample."""


def range_of(
    observed: Observed, chosen: Quantization, conversion: Conversion, bent: Bent | None = None
) -> Range:
    """(low, high); not finite where an element was not.

    `bent`: for `mse`; None: all of the error counts.

    Cost: `mse` and `entropy` some hundred passes over the sample, the others one.
    """
    if not observed.is_finite:
        return float("-inf"), float("inf")
    if not observed.sample.size or observed.low == observed.high:
        return observed.low, observed.high
    match chosen.ranges:
        case Ranges.MINMAX:
            return observed.low, observed.high
        case Ranges.PERCENTILE:
            return _percentile(observed, chosen.percentile)
        case Ranges.ENTROPY:
            return _entropy(observed)
        case Ranges.AUTO:
            raise PassContractError("quantize.clipping", "auto was not settled")
        case Ranges.MSE:
            return _least_error(observed, conversion, bent)
        case _:
            assert_never(chosen.ranges)


def _percentile(observed: Observed, percentile: float) -> Range:
    """The tails left out are alike; what is kept is elements of the sample."""
    if percentile == 100.0:
        return observed.low, observed.high
    tail = (100.0 - percentile) / 2
    low = np.percentile(observed.sample, tail, method="lower")
    high = np.percentile(observed.sample, 100.0 - tail, method="higher")
    return float(low), float(high)


def _entropy(observed: Observed) -> Range:
    """Cut magnitudes where the integers' histogram diverges least from the values' (in nats).

    Source: S. Migacz, 8-bit inference with TensorRT (2017).  Deviates: one magnitude for both sides
        where there are two, since zero points move.
    """
    magnitudes = np.abs(observed.sample.astype(np.float64))
    reach = max(-observed.low, observed.high)
    counts, edges = np.histogram(magnitudes, bins=_BINS, range=(0.0, reach))
    counts[0] = 0  # exact zeros keep their integer whatever the range
    if not counts.any():
        return observed.low, observed.high
    above = counts[::-1].cumsum()[::-1]
    best, cut = np.inf, reach
    for stop in range(_LEVELS, _BINS + 1, _BIN_STEP):
        p = counts[:stop].astype(np.float64)
        if not p.any():
            continue
        beyond = 0.0 if stop == _BINS else float(above[stop])
        found = _divergence(p, beyond)
        if found < best:
            best, cut = found, float(edges[stop])
    return max(observed.low, -cut), min(observed.high, cut)


def _divergence(p: F64, beyond: float) -> float:
    """KL divergence of bins `p`, the last of which also holds what saturates, from their levels."""
    level = np.arange(p.size) * _LEVELS // p.size
    present = p > 0
    total = np.bincount(level, weights=p, minlength=_LEVELS)
    members = np.bincount(level, weights=present, minlength=_LEVELS)
    spread = np.divide(total, members, out=np.zeros(_LEVELS), where=members > 0)
    q = np.where(present, spread[level], 0.0)
    clipped = p.copy()
    clipped[-1] += beyond
    if q[-1] == 0.0 and clipped[-1] > 0.0:
        q[-1] = 1e-3  # nothing inside tells of what saturates
    clipped, q = clipped / clipped.sum(), q / q.sum()
    at = clipped > 0
    return float((clipped[at] * np.log(clipped[at] / q[at])).sum())


def _least_error(observed: Observed, conversion: Conversion, bent: Bent | None) -> Range:
    """The multiple of the range seen that gives other samples the least squared error.

    The extremes of few samples say little about the next one's: for each batch the range is taken
    from all others, times a factor, and the factor with the least error over all batches wins;
    what none of them shows, one more extreme with an exponential tail, has its share.
    With a single batch the range can only be clipped.
    """
    spans = np.array(observed.spans, np.float64)
    batches = len(spans)
    low, high = np.minimum(spans[:, 0], 0.0), np.maximum(spans[:, 1], 0.0)
    x = observed.sample.astype(np.float64).reshape(batches, -1)
    weight = x.shape[1] / observed.elements
    at = x if bent is None else bent.at.astype(np.float64).reshape(x.shape)
    exact = x if bent is None else bent.function(at)
    edges = np.stack([low, high], axis=1)
    seen, factors = (low, high), _FACTORS[_FACTORS <= 1.0]
    tails = (0.0, 0.0)
    if batches > 1:
        seen, factors = (_of_others(low, np.minimum), _of_others(high, np.maximum)), _FACTORS
        tails = _tail(-x), _tail(x)

    def error(below: float, above: float) -> float:
        span = seen[0] * below, seen[1] * above
        rounded = _rounded(x, *span, conversion)
        if bent is not None:
            return float(np.square(bent.function(at + rounded - x) - exact).sum())
        found = float(np.square(rounded - x).sum())
        if weight < 1.0:
            found += weight * float(np.square(_rounded(edges, *span, conversion) - edges).sum())
        for factor, reach, tail in ((below, -low.min(), tails[0]), (above, high.max(), tails[1])):
            if tail > 0.0:
                margin = max(factor - 1.0, 0.0) * reach
                found += weight * _UNSEEN * 2.0 * tail**2 * float(np.exp(-margin / tail))
        return found

    below = above = _least(factors, lambda f: error(f, f))
    if low.min() < 0.0 < high.max() and not conversion.symmetric:
        below = _least(factors, lambda f: error(f, above))
        above = _least(factors, lambda f: error(below, f))
    return float(low.min() * below), float(high.max() * above)


def _least(factors: F64, error: Callable[[float], float]) -> float:
    """The factor nearest to 1 whose error is as good as the least."""
    errors = {float(f): error(float(f)) for f in factors}
    good = min(errors.values()) * _AS_GOOD
    return min((f for f in errors if errors[f] <= good), key=lambda f: abs(np.log(f)))


def _tail(x: F64) -> float:
    """Mean excess of the largest positive elements over the least of them: an exponential tail's
    scale."""
    top = np.sort(x[x > 0.0])[-_TOP:]
    return float(top.mean() - top[0]) if top.size > 1 else 0.0


def _of_others(values: F64, pick: np.ufunc) -> F64:
    """For each element the least or largest of all others."""
    return np.array([pick.reduce(np.delete(values, k)) for k in range(values.size)])


def _rounded(x: F64, low: F64, high: F64, conversion: Conversion) -> F64:
    """`x` as 8-bit integers keep it, a range per row."""
    if conversion.symmetric:
        scale = np.maximum(-low, high) / 127
        least, most = np.full(low.shape, -128.0), np.full(low.shape, 127.0)
    else:
        scale = (high - low) / 255
    step = as_scale(scale, conversion.power_of_two).astype(np.float64)
    if not conversion.symmetric:
        least = -np.clip(np.rint(-low / step), 0, 255)
        most = least + 255
    return np.asarray(
        np.clip(np.rint(x / step[:, None]), least[:, None], most[:, None]) * step[:, None]
    )
