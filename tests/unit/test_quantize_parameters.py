"""Scales, zero points and rounding: the paper's vector, limits, and ranges without a scale."""

from __future__ import annotations

import math

import numpy as np
import pytest

from worker.compiler.errors import ModelError
from worker.compiler.ir.dtype import DType
from worker.compiler.quantize.parameters import (
    QuantParameters,
    dequantise,
    finer_power,
    from_range,
    of_bias,
    of_scalar,
    of_weights,
    quantise,
)
from worker.compiler.quantize.sqnr import sqnr_db


def _plain(scale: float, zero: int, dtype: DType = DType.I8) -> QuantParameters:
    return QuantParameters(np.array(scale, np.float32), np.array(zero, dtype.numpy), None, dtype)


def test_tv_by_6_rounds_halves_to_even() -> None:
    parameters = _plain(0.1, 3)
    q = quantise(np.array([1.25], np.float32), parameters)
    assert q.tolist() == [15]
    assert dequantise(q, parameters)[0] == pytest.approx(1.2, abs=1e-6)


def test_halves_go_to_the_even_neighbour_on_both_sides() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    assert quantise(x, _plain(1.0, 0)).tolist() == [0, 2, 2, 0, -2, -2]


@pytest.mark.parametrize(
    ("dtype", "lowest", "highest"), [(DType.I8, -128, 127), (DType.U8, 0, 255)]
)
def test_values_out_of_range_saturate(dtype: DType, lowest: int, highest: int) -> None:
    x = np.array([-1e30, -1e4, 1e4, 1e30], np.float32)
    assert quantise(x, _plain(0.1, 3, dtype)).tolist() == [lowest, lowest, highest, highest]


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.5, 2.0), (-4.0, -1.0), (0.0, 6.0)])
def test_asymmetric_ranges_use_every_integer_and_keep_zero(
    dtype: DType, low: float, high: float
) -> None:
    p = from_range(low, high, dtype, symmetric=False, power_of_two=False, node="n")
    ends = np.array([min(low, 0.0), 0.0, max(high, 0.0)], np.float32)
    q = quantise(ends, p).astype(int)
    assert q[2] - q[0] == 255
    assert dequantise(quantise(ends, p), p)[1] == 0.0
    assert float(p.scale) == pytest.approx((ends[2] - ends[0]) / 255, rel=1e-6)


@pytest.mark.parametrize(("dtype", "middle"), [(DType.I8, 0), (DType.U8, 128)])
def test_symmetric_ranges_put_zero_in_the_middle(dtype: DType, middle: int) -> None:
    p = from_range(-1.0, 2.54, dtype, symmetric=True, power_of_two=False, node="n")
    assert (int(p.zero_point), float(p.scale)) == (middle, pytest.approx(0.02))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("high", [1e-20, 0.3, 1.0, 127.0, 128.0, 3e20])
def test_power_of_two_scales_cover_the_range(high: float, symmetric: bool) -> None:
    p = from_range(-high / 3, high, DType.I8, symmetric=symmetric, power_of_two=True, node="n")
    exact = from_range(-high / 3, high, DType.I8, symmetric=symmetric, power_of_two=False, node="n")
    mantissa, _ = math.frexp(float(p.scale))
    assert mantissa == 0.5
    assert 1.0 - 1e-6 <= float(p.scale) / float(exact.scale) < 2.0


def test_a_scale_that_is_a_power_of_two_stays() -> None:
    p = from_range(-127.0, 127.0, DType.I8, symmetric=True, power_of_two=True, node="n")
    assert float(p.scale) == 1.0


def test_a_range_of_zeros_has_scale_one() -> None:
    p = from_range(0.0, 0.0, DType.I8, symmetric=False, power_of_two=False, node="n")
    assert float(p.scale) == 1.0
    assert dequantise(quantise(np.zeros(3, np.float32), p), p).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [(0.0, math.inf), (-math.inf, 0.0), (math.nan, 1.0)])
def test_ranges_that_are_not_finite_are_refused_with_the_node(bad: tuple[float, float]) -> None:
    with pytest.raises(ModelError) as refused:
        from_range(*bad, DType.I8, symmetric=False, power_of_two=False, node="stem/conv")
    assert refused.value.code == "TW-CAL-004"
    assert refused.value.place.node == "stem/conv"
    assert "stem/conv" in refused.value.message


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_and_scalars_that_are_not_finite_are_refused(bad: float) -> None:
    weights = np.ones((2, 3), np.float32)
    weights[1, 2] = bad
    for attempt in (
        lambda: of_weights(weights, 0, DType.I8, power_of_two=False, node="fc"),
        lambda: of_scalar(bad, DType.I8, "fc"),
    ):
        with pytest.raises(ModelError, match="fc") as refused:
            attempt()
        assert refused.value.code == "TW-CAL-004"


@pytest.mark.parametrize("axis", [0, 1, None])
def test_weights_use_127_steps_per_channel(axis: int | None) -> None:
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((4, 5, 3)) * np.array([1, 5, 25, 125])[:, None, None]).astype(
        np.float32
    )
    p = of_weights(weights, axis, DType.I8, power_of_two=False, node="n")
    q = quantise(weights, p).astype(int)
    assert not p.zero_point.any()
    if axis is None:
        assert p.scale.shape == () and np.abs(q).max() == 127
        return
    rows = np.moveaxis(q, axis, 0).reshape(weights.shape[axis], -1)
    assert np.abs(rows).max(axis=1).tolist() == [127] * weights.shape[axis]


def test_a_channel_of_zeros_takes_the_largest_scale() -> None:
    weights = np.array([[0.0, 0.0], [1.27, 0.5], [2.54, -0.1], [1e-42, 0.0]], np.float32)
    p = of_weights(weights, 0, DType.I8, power_of_two=False, node="n")
    np.testing.assert_allclose(p.scale, [0.02, 0.01, 0.02, 0.02], rtol=1e-6)
    nothing = of_weights(np.zeros((2, 2), np.float32), 0, DType.I8, power_of_two=False, node="n")
    assert nothing.scale.tolist() == [1.0, 1.0]


def test_the_least_scale_of_weights_holds() -> None:
    weights = np.array([[1.27], [127.0]], np.float32)
    least = np.array([0.5, 0.5])
    p = of_weights(weights, 0, DType.I8, power_of_two=False, node="n", least_scale=least)
    assert p.scale.tolist() == [0.5, 1.0]


def test_large_weights_are_quantised_block_by_block_as_in_one_piece() -> None:
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((4200, 1024)).astype(np.float32)
    p = of_weights(weights, 0, DType.I8, power_of_two=False, node="n")
    want = np.clip(np.rint(weights / p.scale[:, None]), -128, 127)
    assert np.array_equal(quantise(weights, p), want)


def test_the_finer_power_of_two_wins_where_it_loses_less() -> None:
    weights = np.full((1, 1000), 0.3, np.float32) + np.linspace(0, 0.6, 1000, dtype=np.float32)
    weights[0, 0] = 1.05  # alone above 127/128
    p = of_weights(weights, None, DType.I8, power_of_two=True, node="n")
    assert float(p.scale) == 2.0**-7
    coarse = _plain(2.0**-6, 0)
    error = [np.square(dequantise(quantise(weights, c), c) - weights).sum() for c in (p, coarse)]
    assert error[0] < error[1]
    assert float(finer_power(np.array([2.0, -2.0], np.float32), coarse).scale) == 2.0**-6


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8])
@pytest.mark.parametrize("value", [2.0, -0.1, 3.4e38, 1e-30, 0.0])
def test_a_single_constant_survives_exactly(dtype: DType, value: float) -> None:
    x = np.array([value], np.float32)
    p = of_scalar(float(x[0]), dtype, "n")
    assert dequantise(quantise(x, p), p).tolist() == x.tolist()


def test_a_bias_is_counted_in_steps_of_the_accumulator() -> None:
    p = of_bias(np.float32(0.5) * np.ones((), np.float32), np.array([0.25, 0.125], np.float32), 0)
    assert p.scale.tolist() == [0.125, 0.0625]
    assert quantise(np.array([1.0, 3e8]), p).tolist() == [8, 2**31 - 1]


def test_sqnr_is_the_textbook_ratio() -> None:
    exact = np.array([3.0, -4.0])
    assert sqnr_db(exact, np.array([3.0, -3.5])).db == pytest.approx(20.0)
    huge, tiny = exact * 1e200, exact * 1e-200
    assert sqnr_db(huge, huge * 1.1).db == pytest.approx(20.0)
    assert sqnr_db(tiny, tiny * 1.1).db == pytest.approx(20.0)


def test_a_ratio_that_does_not_exist_says_why() -> None:
    one, zero = np.ones(3), np.zeros(3)
    assert (sqnr_db(one, one).db, sqnr_db(one, one).reason) == (None, "exact: the noise is zero")
    assert sqnr_db(zero, one).reason == "the signal is zero"
    assert sqnr_db(one, one * np.nan).reason == "a value is infinite or NaN"
    assert sqnr_db(one[:0], one[:0]).reason == "the tensor is empty"
    with pytest.raises(ValueError, match="differ"):
        sqnr_db(one, np.ones(2))
