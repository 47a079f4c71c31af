"""Scales and zero points: from a range to parameters, and numpy's QuantizeLinear.

    q = saturate(round_half_even(x / scale) + zero_point)        x' = (q - zero_point) * scale

Source: BYOC Fig. 4a.  Deviates: the paper's offset Z is a real number, T_q = (T + Z) / S; ONNX's
zero point is the integer z = Z / S, which represents 0 exactly, so padding adds no error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import ModelError
from worker.compiler.ir.dtype import DType

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]

_SYMMETRIC_STEPS = 127
"""Steps on each side of zero: -128 has no counterpart, so symmetric ranges do not use it."""
_TINY = float(np.finfo(np.float32).tiny)
_BLOCK_ELEMS = 1 << 22
"""Elements quantised at once: bounds the temporaries of large weights to 16 MB each."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantParameters:
    """How one tensor is quantised."""

    scale: F32
    """Shape (), or (channels,) along `axis`.  Positive and finite."""
    zero_point: Array
    """Shape of `scale`, element type `dtype`."""
    axis: int | None
    """Axis of the tensor the scales lie along; None: one scale for the whole tensor."""
    dtype: DType
    """I8, U8 or I32."""


def from_range(
    low: float, high: float, dtype: DType, *, symmetric: bool, power_of_two: bool, node: str
) -> QuantParameters:
    """Parameters of one tensor (I8 or U8) whose values lie in [low, high], 0 included.

    A range of nothing but zeros gets scale 1.  A power-of-two scale is rounded up, so it clips
    nothing.

    Raises:
        ModelError: TW-CAL-004, the range is not finite; names `node`.
    """
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ModelError(
            "TW-CAL-004",
            f"{node}: its values include infinity or NaN, for which {dtype} has no scale",
            node=node, limit="finite values", actual=f"{low:g} to {high:g}",
        )  # fmt: skip
    low, high = min(low, 0.0), max(high, 0.0)
    lowest, highest = integer_range(dtype)
    widths = (max(-low, high), _SYMMETRIC_STEPS) if symmetric else (high - low, highest - lowest)
    step = widths[0] / widths[1]
    scale = as_scale(np.array(step), power_of_two)
    zero = _middle(dtype)
    if not symmetric:
        zero = int(np.clip(np.rint(lowest - low / float(scale)), lowest, highest))
    return QuantParameters(scale, np.array(zero, dtype.numpy), None, dtype)


def of_weights(
    weights: Array,
    axis: int | None,
    dtype: DType,
    *,
    power_of_two: bool,
    node: str,
    least_scale: npt.NDArray[np.float64] | float = 0.0,
) -> QuantParameters:
    """Symmetric parameters of constant weights: [-127, 127] around 0 (I8) or 128 (U8).

    Args:
        weights: any float tensor.
        axis: output channels, one scale each; None: one scale.
        least_scale: scales do not go below it (per channel or one).

    A channel of nothing but zeros takes the largest scale of the others (1 if there is none), so
    that a bias in its units stays exact enough.  Of two neighbouring powers of two the one with
    the smaller squared error wins.

    Raises:
        ModelError: TW-CAL-004, a weight is infinite or not a number; names `node`.
    """
    reach = np.atleast_1d(_reach(weights, axis))
    if not np.isfinite(reach).all():
        raise ModelError(
            "TW-CAL-004", f"{node}: its weights hold infinite values or NaN", node=node,
            limit="finite values", actual="inf or nan",
        )  # fmt: skip
    step = reach / _SYMMETRIC_STEPS
    present = step >= _TINY
    step = np.where(present, step, step[present].max() if present.any() else 1.0)
    step = np.maximum(step, least_scale)
    scale = as_scale(step if axis is not None else step[0], power_of_two)
    zero = np.full(scale.shape, _middle(dtype), dtype.numpy)
    found = QuantParameters(scale, zero, axis, dtype)
    return finer_power(weights, found, least_scale) if power_of_two else found


def finer_power(
    x: Array, coarse: QuantParameters, least_scale: npt.NDArray[np.float64] | float = 0.0
) -> QuantParameters:
    """Halve the scales where that lowers the squared error on `x`; zero points stay.

    For symmetric power-of-two scales, which were rounded up: clipping a few elements often costs
    less than a doubled step.  Scales do not go below `least_scale`.

    Cost: two quantisations of `x`.
    """
    half = np.asarray(coarse.scale / 2, np.float32)
    fine = QuantParameters(half, coarse.zero_point, coarse.axis, coarse.dtype)
    wins = (_squared_error(x, fine) < _squared_error(x, coarse)) & (half >= least_scale)
    scale = np.asarray(np.where(wins, half, coarse.scale), np.float32)
    return QuantParameters(scale, coarse.zero_point, coarse.axis, coarse.dtype)


def of_scalar(value: float, dtype: DType, node: str) -> QuantParameters:
    """Parameters under which the single number `value` survives exactly: it is one step.

    Raises:
        ModelError: TW-CAL-004, it is infinite or not a number; names `node`.
    """
    if not np.isfinite(value):
        raise ModelError(
            "TW-CAL-004", f"{node}: the constant {value:g} has no scale in {dtype}", node=node,
            limit="finite values", actual=f"{value:g}",
        )  # fmt: skip
    scale = np.array(abs(value) if abs(value) >= _TINY else 1.0, np.float32)
    return QuantParameters(scale, np.array(_middle(dtype), dtype.numpy), None, dtype)


def of_bias(input_scale: F32, weight_scale: F32, axis: int) -> QuantParameters:
    """Parameters of a bias in the units of the i32 accumulator: scale sx * sw, zero point 0."""
    scale = np.asarray(input_scale * weight_scale, np.float32)
    zero = np.zeros(scale.shape, np.int32)
    return QuantParameters(scale, zero, axis if scale.ndim else None, DType.I32)


def quantise(x: Array, parameters: QuantParameters) -> Array:
    """Integers of `x`, exactly as ONNX QuantizeLinear: halves to even, then saturation.

    The division is in f32, as ONNX says; for I32 (which QuantizeLinear does not offer) in f64,
    because f32 cannot hold every 32-bit integer.

    Shapes: any; with `axis`, x.shape[axis] equals the number of scales.
    Cost: linear, temporaries of at most 16 MB for f32.
    """
    work = np.float64 if parameters.dtype is DType.I32 else np.float32
    lowest, highest = integer_range(parameters.dtype)
    result = np.empty(x.shape, parameters.dtype.numpy)
    for at in _blocks(x):
        scale, zero = _laid_out(parameters, x.ndim, at, np.dtype(work))
        steps = np.rint(np.asarray(x[at], work) / scale)
        result[at] = np.clip(steps, lowest - zero, highest - zero) + zero
    return result


def dequantise(q: Array, parameters: QuantParameters) -> F32:
    """Numbers that integers stand for, exactly as ONNX DequantizeLinear in f32."""
    scale, zero = _laid_out(parameters, q.ndim, (), np.dtype(np.float32))
    return np.asarray((q.astype(np.int64) - zero.astype(np.int64)).astype(np.float32) * scale)


def integer_range(dtype: DType) -> tuple[int, int]:
    """Smallest and largest integer of a type."""
    limits = np.iinfo(str(dtype.numpy))
    return int(limits.min), int(limits.max)


def _middle(dtype: DType) -> int:
    return 128 if dtype is DType.U8 else 0


def as_scale(step: Array, power_of_two: bool) -> F32:
    """Steps as f32 scales; steps too small for a normal f32 become 1."""
    usable = np.where(step >= _TINY, step, 1.0)
    if power_of_two:
        mantissa, exponent = np.frexp(usable)
        usable = np.ldexp(1.0, exponent - (mantissa == 0.5))
    return np.asarray(usable, np.float32)


def _squared_error(weights: Array, parameters: QuantParameters) -> npt.NDArray[np.float64]:
    total = np.zeros(parameters.scale.shape)
    keep = parameters.axis
    others = tuple(d for d in range(weights.ndim) if d != keep)
    for at in _blocks(weights):
        scale, zero = _laid_out(parameters, weights.ndim, at, np.dtype(np.float32))
        lowest, highest = (b - zero for b in integer_range(parameters.dtype))
        part = np.asarray(weights[at], np.float32)
        error = np.clip(np.rint(part / scale), lowest, highest) * scale - part
        summed = np.square(error, dtype=np.float64).sum(axis=others if keep is not None else None)
        if keep == 0 and at:
            total[at] += summed
        else:
            total += summed
    return total


def _reach(weights: Array, axis: int | None) -> npt.NDArray[np.float64]:
    """Largest magnitude per channel, or of all; not finite where a weight is not."""
    others = None if axis is None else tuple(d for d in range(weights.ndim) if d != axis)
    if not weights.size:
        return np.zeros(() if axis is None else weights.shape[axis])
    low, high = weights.min(axis=others), weights.max(axis=others)
    return np.maximum(-np.asarray(low, np.float64), np.asarray(high, np.float64))


def _blocks(x: Array) -> Iterator[tuple[slice, ...]]:
    """Slices along axis 0 of at most _BLOCK_ELEMS elements (or one row)."""
    if x.size <= _BLOCK_ELEMS:
        yield ()
        return
    rows = max(1, _BLOCK_ELEMS // (x.size // x.shape[0]))
    for start in range(0, x.shape[0], rows):
        yield (slice(start, start + rows),)


def _laid_out(
    parameters: QuantParameters, rank: int, at: tuple[slice, ...], work: np.dtype[Any]
) -> tuple[Array, Array]:
    """Scale and zero point, shaped to combine with block `at` of a tensor of `rank`."""
    scale = parameters.scale.astype(work)
    zero = parameters.zero_point.astype(work)
    if parameters.axis is None:
        return scale, zero
    shape = [1] * rank
    shape[parameters.axis] = -1
    if parameters.axis == 0 and at:
        scale, zero = scale[at], zero[at]
    return scale.reshape(shape), zero.reshape(shape)
