"""Comparing outputs with a reference: tolerances, NaN, infinities, integers, shapes."""

from __future__ import annotations

import numpy as np
import pytest

from worker.compiler.ir.bits import f32_to_bf16
from worker.compiler.ir.dtype import DType
from worker.compiler.package.verify_numerics import (
    Comparison,
    coarsest,
    compare_outputs,
    tolerance,
)


def one(have: np.ndarray, want: np.ndarray, precision: DType = DType.F32) -> Comparison:
    return compare_outputs({"y": have}, {"y": want}, tolerance(precision))


def test_float_error_is_relative_to_the_largest_value() -> None:
    want = np.array([[1000.0, 1e-3], [0.0, -1.0]], np.float32)
    close = want + np.array([[0, 5e-3], [0, 0]], np.float32)
    assert one(close, want).passed
    far = want + np.array([[0, 0], [2e-2, 0]], np.float32)
    result = one(far, want)
    assert not result.passed
    assert result.outputs[0].worst_index == (1, 0)
    assert result.max_rel_err == pytest.approx(2e-5, rel=1e-3)
    assert result.max_abs_err == pytest.approx(2e-2, rel=1e-3)


@pytest.mark.parametrize(
    ("have", "want"),
    [
        ([1.0, np.nan], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, np.nan]),
        ([1.0, np.inf], [1.0, -np.inf]),
        ([1.0, np.inf], [1.0, 3.0]),
        ([1.0, 2.0], [1.0, np.inf]),
    ],
)
def test_nan_and_infinity_must_agree(have: list[float], want: list[float]) -> None:
    result = one(np.array(have, np.float32), np.array(want, np.float32))
    assert not result.passed and result.outputs[0].worst_index == (1,)
    assert "on one side only" in result.outputs[0].reason


def test_equal_nan_and_infinity_pass_and_do_not_hide_other_errors() -> None:
    want = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert one(want.copy(), want).passed
    have = want.copy()
    have[3] = 1.1
    assert not one(have, want).passed


def test_zero_reference_allows_only_zero() -> None:
    zero = np.zeros(3, np.float32)
    assert one(zero, zero).passed
    assert not one(zero + 1e-12, zero).passed


def test_integers_are_exact_except_one_quantisation_step() -> None:
    wide = np.array([5, 6], np.int64)
    assert one(wide, wide).passed
    assert not one(wide + np.array([0, 1]), wide).passed
    narrow = np.array([5, 255], np.uint8)
    assert one(np.array([6, 254], np.uint8), narrow).passed
    assert not one(np.array([7, 255], np.uint8), narrow).passed
    extremes = np.array([np.iinfo(np.int64).min, np.iinfo(np.uint32).max], np.int64)
    assert not one(np.array([np.iinfo(np.int64).max, 0]), extremes).passed
    flags = np.array([True, False])
    assert one(flags, flags).passed and not one(~flags, flags).passed


def test_shapes_missing_outputs_and_strings() -> None:
    want = np.zeros((2, 3), np.float32)
    assert "shape (3, 2)" in one(want.T, want).outputs[0].reason
    missing = compare_outputs({}, {"y": want}, 0.0)
    assert not missing.passed and missing.outputs[0].reason == "it is missing"
    words = np.array(["a", "b"], object)
    assert one(words, words).passed and not one(words[::-1], words).passed
    assert one(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)).passed


def test_bf16_bits_are_compared_as_values() -> None:
    values = np.array([1.0, -2.5, 300.0], np.float32)
    bits = f32_to_bf16(values)
    result = compare_outputs({"y": bits}, {"y": values}, 0.0, dtypes={"y": DType.BF16})
    assert result.passed and result.max_abs_err == 0


def test_tolerance_follows_the_coarsest_type_and_the_depth() -> None:
    assert coarsest([DType.F32, DType.I64, DType.F16]) is DType.F16
    assert coarsest([DType.F32, DType.I8]) is DType.I8
    assert coarsest([DType.I64]) is DType.F32
    assert tolerance(DType.F32) == tolerance(DType.F32, 64) == 1e-5
    assert tolerance(DType.F32, 256) == pytest.approx(2e-5)
    assert tolerance(DType.F64) < tolerance(DType.F32) < tolerance(DType.F16)


LENGTH = 100_003
"""Several blocks, the last one short."""


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "i4", "i8", "u8", "?"])
@pytest.mark.parametrize("at", [0, 32_767, 32_768, LENGTH - 1])
def test_the_worst_element_is_found_in_every_block(dtype: str, at: int) -> None:
    rng = np.random.default_rng(at)
    want = rng.integers(0, 2, LENGTH).astype(dtype)
    have = want.copy()
    have[at] = 1 - want[at]
    (found,) = compare_outputs({"y": have}, {"y": want}, 0.1).outputs
    assert not found.passed and found.worst_index == (at,)
    assert found.max_abs_err == 1.0 and found.max_rel_err == 1.0
    (same,) = compare_outputs({"y": want}, {"y": want}, 0.0).outputs
    assert same.passed and same.max_abs_err == 0.0


def test_differences_of_wide_integers_do_not_wrap() -> None:
    ends = np.iinfo(np.int64)
    have, want = np.array([ends.max, 3]), np.array([ends.min, 3])
    (found,) = compare_outputs({"y": have}, {"y": want}, 0.0).outputs
    assert found.max_abs_err == float(2**64 - 1) and found.max_rel_err == (2**64 - 1) / 2**63


def test_odd_elements_are_counted_over_all_blocks() -> None:
    want = np.zeros(LENGTH, np.float32)
    want[5], want[50_000] = np.inf, np.nan
    (same,) = compare_outputs({"y": want.copy()}, {"y": want}, 0.0).outputs
    assert same.passed
    have = want.copy()
    have[[40_000, 90_000]] = np.nan
    have[5] = -np.inf
    (found,) = compare_outputs({"y": have}, {"y": want}, 1.0).outputs
    assert not found.passed and found.worst_index == (5,)
    assert found.reason.startswith("3 elements are NaN or infinite on one side only, the first")


def test_the_lowest_value_is_a_mask_like_infinity() -> None:
    """It is equal to it, and is no scale for the other values."""
    lowest = float(np.finfo(np.float32).min)
    want = np.array([lowest, 1.0, 2.0], np.float32)
    for masked in (-np.inf, lowest):
        have = np.array([masked, 1.0, 2.0], np.float32)
        assert compare_outputs({"y": have}, {"y": want}, 1e-6).passed
        assert not compare_outputs({"y": have + np.float32([0, 0, 0.1])}, {"y": want}, 1e-6).passed
    for wrong in (np.inf, 0.0, np.nan):
        have = np.array([wrong, 1.0, 2.0], np.float32)
        assert not compare_outputs({"y": have}, {"y": want}, 1e-6).passed
