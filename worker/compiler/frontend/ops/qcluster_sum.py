"""Quantised cores that sum: contractions and means, in i32, then one rescaling operator.

    acc = sum of (x - x_zero) * (w - w_zero)           i32, exact
    y   = saturate(round((acc + bias) * multiplier) + y_zero)

The multiplier x_scale * w_scale / y_scale is one f32 number, or one per output channel; it is
rounded once, from f64.  A device holds it as a 32-bit fixed-point factor and a shift, so the
operator is priced by the types of its tensors.  Source: the QDQ convention for biases (scale
x_scale * w_scale, zero point 0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.frontend.ops.body import add, div, lit, mul, sub
from worker.compiler.frontend.ops.conv import contract, geometry
from worker.compiler.frontend.ops.conv_transpose import gather_taps, transposed
from worker.compiler.frontend.ops.matmul import (
    emit_gemm,
    emit_matmul,
    gemm_shape,
    gemm_turned,
    matmul_shape,
)
from worker.compiler.frontend.ops.nest import Nest
from worker.compiler.frontend.ops.pool import (
    has_constant_count,
    pool_geometry,
    pooled_shape,
    slide,
    window_count,
)
from worker.compiler.frontend.ops.qcluster_call import ClusterCall
from worker.compiler.frontend.ops.qcluster_scheme import Scheme
from worker.compiler.frontend.ops.quantize import saturated
from worker.compiler.frontend.ops.reduce import reduce_over, reduction_axes
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch, unsupported_attribute
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Cast, Scalar
from worker.compiler.rejection import ReasonCode

_F64 = npt.NDArray[np.float64]
_I32 = npt.NDArray[np.int32]
_I32_MAX = (1 << 31) - 1
_SAME_SCALE = 2.0**-21
"""Relative difference up to which a bias's scale counts as x_scale * w_scale rounded to f32."""
_HALF_STEP = 0.5 + 1e-6

Divisor = Callable[[Sequence[Affine]], Scalar]
"""What to divide by at one point of the result."""


@dataclass(frozen=True, slots=True, eq=False)
class _Total:
    """An i32 sum and what makes it a number: value = (acc + bias) * scale."""

    acc: Tensor
    scale: _F64
    """Shape () or (channels,)."""
    channel: int | None
    """Dimension of the result that `scale` runs along."""
    reach: int
    """Largest magnitude that the sum can have."""


def contraction(call: ClusterCall) -> None:
    """Conv, ConvTranspose, Gemm or MatMul of quantised operands, with a constant bias."""
    left, right = call.scheme(0), call.scheme(1)
    if left.axis is not None and right.axis is not None:
        raise Refusal(ReasonCode.UNSUPPORTED_INPUT, "scales per channel of both operands")
    a, b = call.tensor(0), call.tensor(1)
    factor, bias_factor = 1.0, 1.0
    match call.node.op_type:
        case "Conv":
            acc = _conv(call, a, b, left, right)
        case "ConvTranspose":
            acc = _conv_transpose(call, a, b, left, right)
        case "Gemm":
            acc = _gemm(call, a, b, left, right)
            factor, bias_factor = call.attrs.real("alpha", 1.0), call.attrs.real("beta", 1.0)
            if factor == 0.0:
                raise unsupported_attribute("a Gemm scaled by 0")
        case _:
            acc = _matmul(call, a, b, left, right)
    scale = left.scales.astype(np.float64) * right.scales.astype(np.float64) * factor
    channel = _channel(call, acc, left, right)
    if channel is not None and call.node.op_type == "ConvTranspose":
        scale = np.tile(scale, acc.shape[channel] // scale.size)  # every group has these channels
    reach = call.summands() * left.reach * right.reach
    total = _Total(acc, scale, channel, reach)
    _rescale(call, total, _bias(call, total, bias_factor), None)


def _channel(call: ClusterCall, acc: Tensor, left: Scheme, right: Scheme) -> int | None:
    """Dimension of the result along which an operand's scales differ."""
    rank = len(acc.shape)
    if right.axis is not None:
        return 1 if call.node.op_type in ("Conv", "ConvTranspose") else rank - 1
    if left.axis is not None:
        return rank - 2 if len(call.shape(1)) > 1 else rank - 1
    return None


def _zeros(call: ClusterCall, k: int, scheme: Scheme, axis: int) -> int | Tensor:
    """Zero points of operand k, whose parameters may differ along `axis` only."""
    if scheme.axis is not None and scheme.axis != axis:
        raise Refusal(
            ReasonCode.UNSUPPORTED_INPUT,
            f"input {k} of {call.node.op_type} has scales along axis {scheme.axis}, which is summed"
            f" over; scales along axis {axis} or one scale are needed",
        )
    if np.unique(scheme.zeros).size == 1:
        return scheme.zero
    zeros = scheme.zeros
    return call.constant(f"zero{k}", zeros.shape, scheme.dtype, lambda: zeros)


def _conv(call: ClusterCall, x: Tensor, w: Tensor, left: Scheme, right: Scheme) -> Tensor:
    _require_one_scale(call, left)
    windows, groups = geometry(call, x, w)
    acc = call.temp("acc", (x.shape[0], w.shape[0], *(v.out for v in windows)), DType.I32)
    w_zero = _zeros(call, 1, right, 0)
    contract(call, acc, x, w, windows, groups, x_zero=left.zero, w_zero=w_zero)
    return acc


def _conv_transpose(call: ClusterCall, x: Tensor, w: Tensor, left: Scheme, right: Scheme) -> Tensor:
    _require_one_scale(call, left)
    spread = transposed(call, x, w)
    w_zero = _zeros(call, 1, right, 1)
    if not isinstance(w_zero, int):
        raise Refusal(
            ReasonCode.UNSUPPORTED_INPUT,
            "ConvTranspose weights with zero points that differ between channels",
        )
    acc = call.temp("acc", spread.shape, DType.I32)
    gather_taps(call, acc, x, w, spread, x_zero=left.zero, w_zero=w_zero)
    return acc


def _require_one_scale(call: ClusterCall, scheme: Scheme) -> None:
    if scheme.axis is not None:
        raise Refusal(
            ReasonCode.UNSUPPORTED_INPUT,
            f"the input of {call.node.op_type} has scales that differ between channels, which are"
            " summed over",
        )


def _gemm(call: ClusterCall, a: Tensor, b: Tensor, left: Scheme, right: Scheme) -> Tensor:
    acc = call.temp("acc", gemm_shape(call, a, b), DType.I32)
    a_turned, b_turned = gemm_turned(call)
    a_zero = _zeros(call, 0, left, 1 if a_turned else 0)
    b_zero = _zeros(call, 1, right, 0 if b_turned else 1)
    emit_gemm(call, acc, a, b, a_zero, b_zero)
    return acc


def _matmul(call: ClusterCall, a: Tensor, b: Tensor, left: Scheme, right: Scheme) -> Tensor:
    acc = call.temp("acc", matmul_shape(a, b), DType.I32)
    # a vector's only axis is summed over: no axis of it may have several scales
    a_zero = _zeros(call, 0, left, len(a.shape) - 2)
    b_zero = _zeros(call, 1, right, len(b.shape) - 1 if len(b.shape) > 1 else -1)
    emit_matmul(call, acc, a, b, a_zero, b_zero)
    return acc


def _bias(call: ClusterCall, total: _Total, factor: float) -> _I32 | None:
    """The constant in input 2 on the grid of the sum, per output channel; None when all zero."""
    if not call.has_input(2) or factor == 0.0 or call.node.op_type == "MatMul":
        return None
    channels = total.acc.shape[1]
    if call.is_dequantised(2):
        scheme = call.scheme(2)
        integers = np.asarray(call.array(2), np.int64)
        if integers.ndim > 1 and scheme.axis is not None:
            raise shape_mismatch(f"scales per channel of a bias of shape {integers.shape}")
        wanted = total.scale / factor
        on_grid = not scheme.zeros.any() and np.allclose(
            scheme.scales.astype(np.float64), wanted, rtol=_SAME_SCALE, atol=0.0
        )
        if on_grid:
            return _per_channel(call, integers, channels).astype(np.int32)
        values = (integers - scheme.zeros) * scheme.scales.astype(np.float64)
    else:
        values = np.asarray(call.array(2), np.float64)
    exact = _per_channel(call, values, channels) * factor / total.scale
    rounded = np.clip(np.rint(exact), -_I32_MAX, _I32_MAX)
    step = total.scale / call.quantisation(len(total.acc.shape)).scale
    if not (np.abs((exact - rounded) * step) <= _HALF_STEP).all():
        raise Refusal(
            ReasonCode.UNSUPPORTED_INPUT,
            f"the bias of {call.node.op_type} is off the grid of its i32 sum by more than half a"
            " step of the result; quantise the bias with the scale of input times weights",
        )
    return rounded.astype(np.int32) if rounded.any() else None


def _per_channel(call: ClusterCall, values: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """`values` as one row of `channels`; refuses what differs between rows."""
    if values.size != 1 and (values.size != channels or values.shape[-1] != channels):
        raise shape_mismatch(
            f"a bias of shape {values.shape} for {channels} channels in an integer cluster"
        )
    return np.broadcast_to(values.reshape(-1), (channels,))


def mean(call: ClusterCall) -> None:
    """AveragePool, GlobalAveragePool, ReduceMean or ReduceSum of a quantised tensor."""
    scheme = call.scheme(0)
    _require_one_scale(call, scheme)
    x = call.tensor(0)
    count, divisor = 1, None
    match call.node.op_type:
        case "AveragePool":
            acc, count, divisor = _average(call, scheme)
        case "GlobalAveragePool":
            acc = _reduced(call, scheme, tuple(range(2, len(x.shape))), keeps_axes=True)
        case _:
            axes = reduction_axes(call, len(x.shape))
            keeps = call.attrs.integer("keepdims", 1) != 0
            acc = _reduced(call, scheme, axes, keeps_axes=keeps)
    summands = call.summands()
    if call.node.op_type in ("GlobalAveragePool", "ReduceMean"):
        count = summands
    scale = np.asarray(scheme.scale / count, np.float64)
    _rescale(call, _Total(acc, scale, None, summands * scheme.reach), None, divisor)


def _reduced(
    call: ClusterCall, scheme: Scheme, axes: tuple[int, ...], *, keeps_axes: bool
) -> Tensor:
    x = call.tensor(0)
    shape = tuple(
        1 if d in axes else n for d, n in enumerate(x.shape) if keeps_axes or d not in axes
    )
    acc = call.temp("acc", shape, DType.I32)
    zero = lit(scheme.zero, x.dtype)

    def body(read: Callable[[Tensor], Scalar]) -> Scalar:
        return sub(read(x), zero) if scheme.zero else read(x)

    return reduce_over(call, acc, x.shape, axes, Reduce.ADD, body)


def _average(call: ClusterCall, scheme: Scheme) -> tuple[Tensor, int, Divisor | None]:
    """Sums of windows, and their common count or the count at each output."""
    counts_padding = call.attrs.integer("count_include_pad", 0) != 0
    x, windows = pool_geometry(call)
    acc = call.temp("acc", pooled_shape(x, windows), DType.I32)
    slide(call, acc, x, windows, Reduce.ADD, scheme.zero, zero=scheme.zero)
    if all(has_constant_count(w, counts_padding) for w in windows):
        return acc, prod(w.kernel for w in windows), None

    def divisor(index: Sequence[Affine]) -> Scalar:
        return Cast(DType.F32, window_count(windows, index[2:], counts_padding))

    return acc, 1, divisor


def _rescale(call: ClusterCall, total: _Total, bias: _I32 | None, divisor: Divisor | None) -> None:
    """Write the cluster's output: one pointwise operator on the sum."""
    acc = total.acc
    largest = total.reach + (0 if bias is None else int(np.abs(bias.astype(np.int64)).max()))
    if largest > _I32_MAX:
        raise Refusal(
            ReasonCode.SIZE_LIMIT,
            f"the sum of {call.node.op_type} can reach {largest}, beyond i32's {_I32_MAX}; use"
            " 8-bit operands or fewer summands",
        )
    target = call.quantisation(len(acc.shape))
    low, high = (target.quantised(v) for v in call.limits())
    factors = (total.scale / target.scale).astype(np.float32)
    if not np.isfinite(factors).all():
        raise Refusal(ReasonCode.UNSUPPORTED_INPUT, "scales whose quotient is not finite")
    out = call.result(acc.shape)
    nest = call.nest()
    index = nest.axes("i", acc.shape)
    value: Scalar = nest.read(acc, index)
    if bias is not None:
        # Conv, ConvTranspose and Gemm all have their output channels in dimension 1
        value = add(value, _parameter(call, nest, "bias", bias, DType.I32, index[1]))
    where = Affine() if total.channel is None else index[total.channel]
    value = Cast(DType.F32, value)
    value = mul(value, _parameter(call, nest, "multiplier", factors, DType.F32, where))
    if divisor is not None:
        value = div(value, divisor(index))
    floor, ceiling = target.limits
    nest.write(
        out,
        index,
        saturated(
            value,
            lit(target.zero, target.dtype),
            target.dtype,
            low if low > floor else None,
            high if high < ceiling else None,
        ),
    )


def _parameter(
    call: ClusterCall,
    nest: Nest,
    suffix: str,
    values: npt.NDArray[Any],
    dtype: DType,
    index: Affine,
) -> Scalar:
    """A literal when all values agree, else a constant read at `index`."""
    if np.unique(values).size == 1:
        return lit(values.reshape(-1)[0].item(), dtype)
    table = call.constant(suffix, values.shape, dtype, lambda: values)
    return nest.read(table, (index,))
