"""Floats of 8 and 4 bits and integers of 4 and 2 against ml_dtypes, code by code."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from worker.compiler.frontend.ops.call import storage
from worker.compiler.ir.bits import largest, load, store, wrapped
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce

FLOATS: dict[DType, Any] = {
    DType.F8E4M3FN: ml_dtypes.float8_e4m3fn,
    DType.F8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    DType.F8E5M2: ml_dtypes.float8_e5m2,
    DType.F8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    DType.F4E2M1: ml_dtypes.float4_e2m1fn,
}
INTS: dict[DType, Any] = {
    DType.I4: ml_dtypes.int4, DType.U4: ml_dtypes.uint4,
    DType.I2: ml_dtypes.int2, DType.U2: ml_dtypes.uint2,
}  # fmt: skip


def codes(dtype: DType) -> npt.NDArray[np.uint8]:
    return np.arange(1 << dtype.bits, dtype=np.uint8)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_code_has_the_right_value(dtype: DType) -> None:
    want = codes(dtype).view(FLOATS[dtype]).astype(np.float32)
    have = load(codes(dtype), dtype)
    np.testing.assert_array_equal(have, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(have[number]), np.signbit(want[number]))
    assert largest(dtype) == float(ml_dtypes.finfo(FLOATS[dtype]).max)


def hard_numbers(dtype: DType) -> npt.NDArray[np.float32]:
    """Every value, every middle between two, the floats beside those, every f16, and odd ones."""
    values = load(codes(dtype), dtype).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    beyond = largest(dtype) + (values[-1] - values[-2]) * np.asarray([0.5, 1, 40])
    exact = np.concatenate([values, (values[:-1] + values[1:]) / 2, beyond, -beyond])
    exact = exact.astype(np.float32)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    odd = np.asarray([np.inf, -np.inf, np.nan, 0.0, -0.0, 3e38, -3e38, 1e-45, -1e-45], np.float32)
    near = [np.nextafter(exact, np.float32(s)) for s in (-np.inf, np.inf)]
    spread = np.random.default_rng(0).standard_normal(5000, np.float32) * largest(dtype) / 2
    return np.concatenate([exact, *near, halves, odd, spread]).astype(np.float32)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rounding_is_to_the_nearest_and_to_even(dtype: DType) -> None:
    numbers = hard_numbers(dtype)
    with np.errstate(all="ignore"):
        want = numbers.astype(FLOATS[dtype])
    have = store(numbers, dtype)
    is_number = ~np.isnan(want.astype(np.float32))
    if dtype is DType.F4E2M1:
        is_number &= ~np.isnan(numbers)  # 4 bits have no such code, and ONNX no rule
    np.testing.assert_array_equal(have[is_number], want.view(np.uint8)[is_number])
    if dtype is not DType.F4E2M1:
        assert np.isnan(load(have[~is_number], dtype)).all()


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers_keep_their_low_bits(dtype: DType) -> None:
    numbers = np.arange(-300, 300)
    want = numbers.astype(np.int8).astype(INTS[dtype]).astype(dtype.numpy)
    np.testing.assert_array_equal(wrapped(numbers, dtype), want)
    info = ml_dtypes.iinfo(INTS[dtype])
    assert (Reduce.MAX.identity(dtype), Reduce.MIN.identity(dtype)) == (info.min, info.max)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_a_constant_of_the_model_is_stored_as_it_is(dtype: DType) -> None:
    own = {**FLOATS, **INTS}[dtype]
    values = wrapped(codes(dtype), dtype) if dtype in INTS else load(codes(dtype), dtype)
    stored = storage(values.astype(own), dtype)
    assert stored.dtype == dtype.numpy
    np.testing.assert_array_equal(load(stored, dtype), values)
