"""Ranges of integers against numpy and scipy, method by method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from quantize_nets import I8
from scipy import stats

from worker.compiler.errors import PassContractError
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Conversion
from worker.compiler.quantization import DEFAULT, Quantization, Ranges
from worker.compiler.quantize.clipping import Bent, range_of
from worker.compiler.quantize.parameters import dequantise, from_range, quantise
from worker.compiler.quantize.ranges import Observed

SYMMETRIC = replace(I8, symmetric=True)
SHIFTS = Conversion(DType.I8, (DType.F32,), automatic=False, symmetric=True, power_of_two=True)
MSE = Quantization(ranges=Ranges.MSE)


def observed(batches: npt.NDArray[np.float32]) -> Observed:
    """What calibration tells of a value, one batch per row."""
    spans = tuple((float(x.min()), float(x.max())) for x in batches)
    low, high = float(batches.min()), float(batches.max())
    return Observed(low, high, True, batches.shape[1], batches.ravel(), spans)


def error(x: npt.NDArray[Any], span: tuple[float, float], conversion: Conversion) -> float:
    """Mean squared error of integers of that range."""
    made = from_range(
        *span, conversion.dtype, symmetric=conversion.symmetric,
        power_of_two=conversion.power_of_two, node="x",
    )  # fmt: skip
    return float(np.square(dequantise(quantise(x, made), made) - x, dtype=np.float64).mean())


@pytest.mark.parametrize("percentile", [99.99, 99.0, 60.0])
def test_percentiles_are_those_of_numpy(percentile: float) -> None:
    x = np.random.default_rng(0).standard_t(3, (4, 4000)).astype(np.float32)
    chosen = Quantization(ranges=Ranges.PERCENTILE, percentile=percentile)
    low, high = range_of(observed(x), chosen, I8)
    tail = (100.0 - percentile) / 2
    assert abs((x < low).mean() * 100 - tail) <= 200 / x.size
    assert abs((x > high).mean() * 100 - tail) <= 200 / x.size
    assert low in x
    assert high in x
    whole = Quantization(ranges=Ranges.PERCENTILE, percentile=100.0)
    assert range_of(observed(x), whole, I8) == (x.min(), x.max()) == range_of(
        observed(x), DEFAULT, I8
    )  # fmt: skip


@pytest.mark.parametrize("conversion", [I8, SYMMETRIC, SHIFTS], ids=["i8", "symmetric", "shifts"])
@pytest.mark.parametrize("shape", ["normal", "heavy", "relu", "skewed"])
def test_the_least_error_is_near_that_of_every_range(conversion: Conversion, shape: str) -> None:
    """No one multiple of the range seen, chosen with fresh samples at hand, is much better."""
    rng = np.random.default_rng(1)
    draw = {
        "normal": lambda: rng.standard_normal((8, 1024)),
        "heavy": lambda: rng.laplace(size=(8, 1024)),
        "relu": lambda: np.maximum(rng.standard_normal((8, 1024)), 0.0),
        "skewed": lambda: rng.gamma(2.0, size=(8, 1024)) - 0.5,
    }[shape]
    grid = np.geomspace(0.4, 1.6, 25)
    found, others = 0.0, np.zeros(len(grid))  # decibels: one unlucky draw must not decide
    for _ in range(12):
        seen, fresh = draw().astype(np.float32), draw().astype(np.float32)
        low, high = float(seen.min()), float(seen.max())
        mine = range_of(observed(seen), MSE, conversion)
        found += 10 * np.log10(error(fresh, mine, conversion)) / 12
        others += [
            10 * np.log10(error(fresh, (low * f, high * f), conversion)) / 12 for f in grid
        ]  # fmt: skip
    assert found <= others.min() + 1.0


def test_few_samples_leave_room_for_what_they_did_not_show() -> None:
    """What a batch more would show lies beyond: on average the margin pays."""
    rng = np.random.default_rng(2)
    gains = []
    for _ in range(40):
        seen, fresh = (rng.standard_normal((4, 12)).astype(np.float32) for _ in range(2))
        exact = range_of(observed(seen), DEFAULT, I8)
        wider = range_of(observed(seen), MSE, I8)
        gains.append(10 * np.log10(error(fresh, exact, I8) / error(fresh, wider, I8)))
    assert np.mean(gains) > 1.0


def test_errors_where_a_sigmoid_is_flat_do_not_count() -> None:
    x = (np.random.default_rng(3).standard_normal((4, 4096)) * 12.0).astype(np.float32)

    def sigmoid(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        return np.asarray(1.0 / (1.0 + np.exp(-values.astype(np.float64))))

    def after(span: tuple[float, float]) -> float:
        made = from_range(*span, DType.I8, symmetric=False, power_of_two=False, node="x")
        return float(np.square(sigmoid(dequantise(quantise(x, made), made)) - sigmoid(x)).mean())

    plain = range_of(observed(x), MSE, I8)
    bent = range_of(observed(x), MSE, I8, Bent(sigmoid, x.ravel()))
    assert bent[1] < plain[1] / 2
    assert after(bent) < after(plain) / 3


def test_entropy_cuts_where_integers_tell_most() -> None:
    """The divergence of the cut found is no larger than that of cuts beside it, by scipy."""
    x = np.random.default_rng(4).laplace(size=(4, 4096)).astype(np.float32)
    x[0, 0] = 60.0
    low, high = range_of(observed(x), Quantization(ranges=Ranges.ENTROPY), I8)
    assert high < 30.0
    assert low == max(float(x.min()), -high)
    magnitudes = np.abs(x.astype(np.float64)).ravel()
    counts, edges = np.histogram(magnitudes, bins=2048, range=(0.0, 60.0))
    counts[0] = 0

    def divergence(stop: int) -> float:
        p = counts[:stop].astype(np.float64)
        level = np.arange(stop) * 128 // stop
        q = np.zeros(stop)
        for k in range(128):
            at = (level == k) & (p > 0)
            q[at] = p[level == k].sum() / max(1, at.sum())
        p[-1] += counts[stop:].sum()
        q[-1] = q[-1] or 1e-3 * bool(p[-1])
        return float(stats.entropy(p, q))

    chosen = int(np.argmin(np.abs(edges - high)))
    least = min(divergence(stop) for stop in range(128, 2049, 8))
    assert divergence(chosen) == pytest.approx(least, rel=1e-6)


def test_what_has_no_spread_or_no_end_keeps_its_range() -> None:
    flat = observed(np.full((2, 8), 3.0, np.float32))
    endless = replace(observed(np.zeros((2, 8), np.float32)), is_finite=False)
    for ranges in (r for r in Ranges if r is not Ranges.AUTO):
        chosen = Quantization(ranges=ranges)
        assert range_of(flat, chosen, I8) == (3.0, 3.0)
        assert range_of(endless, chosen, I8) == (-np.inf, np.inf)
    with pytest.raises(PassContractError, match="auto"):
        range_of(observed(np.arange(8, dtype=np.float32)[None]), Quantization(Ranges.AUTO), I8)
