"""bfloat16 in numpy: bit patterns in uint16, arithmetic in float32."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.dtype import DType


def bf16_to_f32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Widen exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to nearest even; NaN stays NaN (quiet)."""
    raw = np.asarray(values, dtype=np.float32, order="C").view(np.uint32)
    rounded = (raw + np.uint32(0x7FFF) + ((raw >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = np.isnan(values)
    return np.where(nan, np.uint32(0x7FC0), rounded).astype(np.uint16)


def load(array: npt.NDArray[np.generic], dtype: DType) -> npt.NDArray[np.generic]:
    """Storage -> values (only bf16 differs)."""
    return bf16_to_f32(array.astype(np.uint16)) if dtype is DType.BF16 else array


def store(values: npt.NDArray[np.generic], dtype: DType) -> npt.NDArray[np.generic]:
    """Values -> storage: integers wrap, floats round to nearest even."""
    if dtype is DType.BF16:
        return f32_to_bf16(values.astype(np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype.numpy)
