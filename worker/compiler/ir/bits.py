"""What numpy has not: bfloat16 as bit patterns in uint16, narrow types in bytes.

A float of 8 or 4 bits is a sign, an exponent and a fraction; its values in the order of their codes
are ascending, so that rounding is a search among them.  Arithmetic is in float32.
Source: ONNX, "Float stored in 8 bits" and "4 bit floating point" technical notes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

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


@dataclass(frozen=True, slots=True)
class NarrowFloat:
    """A float type of up to 8 bits."""

    exponent_bits: int
    fraction_bits: int
    bias: int
    num_finite: int
    """Codes without sign that are numbers; those above, if any, are infinity or not numbers."""
    infinity: int | None
    """Code of infinity."""
    nan: int | None
    """Code of what is not a number; one without sign where `has_negative_zero` is false."""
    has_negative_zero: bool

    @property
    def sign(self) -> int:
        """The sign's bit."""
        return 1 << (self.exponent_bits + self.fraction_bits)


NARROW_FLOATS: dict[DType, NarrowFloat] = {
    DType.F8E4M3FN: NarrowFloat(4, 3, 7, 0x7F, None, 0x7F, has_negative_zero=True),
    DType.F8E4M3FNUZ: NarrowFloat(4, 3, 8, 0x80, None, 0x80, has_negative_zero=False),
    DType.F8E5M2: NarrowFloat(5, 2, 15, 0x7C, 0x7C, 0x7E, has_negative_zero=True),
    DType.F8E5M2FNUZ: NarrowFloat(5, 2, 16, 0x80, None, 0x80, has_negative_zero=False),
    DType.F4E2M1: NarrowFloat(2, 1, 1, 8, None, None, has_negative_zero=True),
}


@cache
def _magnitudes(dtype: DType) -> npt.NDArray[np.float64]:
    """The finite values without sign, ascending: element k has code k."""
    kind = NARROW_FLOATS[dtype]
    codes = np.arange(kind.num_finite)
    exponent, fraction = codes >> kind.fraction_bits, codes % (1 << kind.fraction_bits)
    leading = np.where(exponent == 0, 0, 1 << kind.fraction_bits)
    scale = np.maximum(exponent, 1) - kind.bias - kind.fraction_bits
    return np.asarray(np.ldexp((leading + fraction).astype(np.float64), scale))


def largest(dtype: DType) -> float:
    """The largest finite value of a narrow float."""
    return float(_magnitudes(dtype)[-1])


@cache
def _decoded(dtype: DType) -> npt.NDArray[np.float32]:
    """Value of every byte; bits above the type's are not looked at."""
    kind = NARROW_FLOATS[dtype]
    codes = np.arange(256) % (2 * kind.sign)
    found = np.full(256, np.nan)
    places = codes % kind.sign
    finite = places < kind.num_finite
    found[finite] = _magnitudes(dtype)[places[finite]]
    if kind.infinity is not None:
        found[places == kind.infinity] = np.inf
    found = np.where(codes >= kind.sign, -found, found)
    if not kind.has_negative_zero:
        found[codes == kind.nan] = np.nan
    return found.astype(np.float32)


def _encoded(values: npt.NDArray[np.float32], dtype: DType) -> npt.NDArray[np.uint8]:
    """Codes of the nearest values, ties to even; beyond the largest: infinity or not a number.

    4 bits have neither: they saturate, and what is not a number becomes a zero.
    """
    kind, table = NARROW_FLOATS[dtype], _magnitudes(dtype)
    with np.errstate(invalid="ignore"):  # a signalling not-a-number
        wide = values.astype(np.float64)
    size = np.abs(wide)
    step = table[-1] - table[-2]
    edges = (np.append(table[:-1], table[-1]) + np.append(table[1:], table[-1] + step)) / 2
    codes = np.searchsorted(edges, size, "left")
    tied = (codes < len(edges)) & (size == edges[np.minimum(codes, len(edges) - 1)])
    codes = np.where(tied & (codes % 2 == 1), codes + 1, codes)
    beyond = codes >= kind.num_finite
    outside = kind.nan if kind.infinity is None else kind.infinity
    codes = np.where(beyond, kind.num_finite - 1 if outside is None else outside, codes)
    signed = np.signbit(wide) & ((codes != 0) | kind.has_negative_zero)
    codes = np.where(signed, codes | kind.sign, codes)
    nan = 0 if kind.nan is None else kind.nan
    return np.where(np.isnan(wide), nan, codes).astype(np.uint8)


def held_type(dtype: DType) -> np.dtype[np.generic]:
    """The type in which `load` gives values: float32 where numpy has no type of its own."""
    has_own = dtype is not DType.BF16 and not dtype.is_narrow_float
    return dtype.numpy if has_own else np.dtype(np.float32)


def wrapped(values: npt.NDArray[np.generic], dtype: DType) -> npt.NDArray[np.generic]:
    """Integers cut to the low bits of a narrow integer type, in its storage type."""
    low = values.astype(np.int64) & ((1 << dtype.bits) - 1)
    half = 1 << (dtype.bits - 1)
    return ((low ^ half) - half if dtype.is_signed else low).astype(dtype.numpy)


def load(array: npt.NDArray[np.generic], dtype: DType) -> npt.NDArray[np.generic]:
    """Storage -> values (bf16 and narrow floats differ)."""
    if dtype.is_narrow_float:
        return _decoded(dtype)[array.astype(np.uint8)]
    return bf16_to_f32(array.astype(np.uint16)) if dtype is DType.BF16 else array


def store(values: npt.NDArray[np.generic], dtype: DType) -> npt.NDArray[np.generic]:
    """Values -> storage: integers wrap, floats round to nearest even."""
    if dtype is DType.BF16:
        return f32_to_bf16(values.astype(np.float32))
    if dtype.is_narrow_float:
        return _encoded(values.astype(np.float32), dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.is_narrow_int:
            return wrapped(values, dtype)
        return values.astype(dtype.numpy)
