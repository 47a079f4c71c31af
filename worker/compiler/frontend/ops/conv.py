"""Conv and ConvInteger: one contraction over input channels and taps, then the bias."""

from __future__ import annotations

import numpy as np

from worker.compiler.frontend.ops.body import add, lit, mul, sub
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.refusal import (
    Refusal,
    data_dependent,
    shape_mismatch,
    unsupported_attribute,
)
from worker.compiler.frontend.ops.window import Window, check_spatial, read_windows
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Scalar
from worker.compiler.rejection import ReasonCode

_ZERO_BIAS_LIMIT = 1 << 16
"""Constant biases up to this many elements are inspected; an all-zero one emits no operator."""


def conv(call: Call) -> None:
    """Conv: y[n, co, o] = b[co] + sum over ci, k of x[n, ci, o*stride + k*dilation - pad] * w."""
    x, w = call.tensor(0), call.tensor(1)
    windows, groups = geometry(call, x, w)
    shape = (x.shape[0], w.shape[0], *(v.out for v in windows))
    if not x.dtype.is_float or w.dtype is not x.dtype:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"Conv of {x.dtype} with {w.dtype}")
    out = call.output(0, shape, x.dtype)
    if not call.has_input(2) or is_zero(call, 2):
        contract(call, out, x, w, windows, groups)
        return
    partial = call.temp("acc", shape, x.dtype.accumulator)
    contract(call, partial, x, w, windows, groups)
    add_channel_bias(call, out, partial, 2)


def conv_integer(call: Call) -> None:
    """ConvInteger: zero points are subtracted inside the contraction; padding reads as zero."""
    x, w = call.tensor(0), call.tensor(1)
    windows, groups = geometry(call, x, w)
    x_zero = zero_point(call, 2)
    w_zeros = channel_zero_points(call, 3, w)
    shape = (x.shape[0], w.shape[0], *(v.out for v in windows))
    out = call.output(0, shape, DType.I32)
    contract(call, out, x, w, windows, groups, x_zero=x_zero, w_zero=w_zeros)


def is_zero(call: Call, k: int) -> bool:
    """Whether input k is a small constant of zeros."""
    if not call.is_constant(k) or call.tensor(k).num_elems > _ZERO_BIAS_LIMIT:
        return False
    return not np.any(call.array(k))


def zero_point(call: Call, k: int) -> int:
    """A per-tensor zero point (input k; 0 when absent)."""
    if not call.has_input(k):
        return 0
    values = call.integers(k)
    if len(set(values)) != 1:
        raise data_dependent(f"input {k} of {call.node.op_type} must be one zero point")
    return values[0]


def channel_zero_points(call: Call, k: int, w: Tensor) -> int | Tensor:
    """Zero points of the weights (input k; 0 when absent): one, or one per output channel."""
    if not call.has_input(k):
        return 0
    if call.is_constant(k) and len(set(call.integers(k))) == 1:
        return call.integers(k)[0]
    zeros = call.tensor(k)
    if zeros.shape != (w.shape[0],):
        raise shape_mismatch(f"zero points of shape {zeros.shape} for {w.shape[0]} channels")
    return zeros


def add_channel_bias(call: Call, out: Tensor, partial: Tensor, k: int) -> None:
    """out[n, c, ...] = partial[n, c, ...] + input k [c]."""
    bias = call.tensor(k)
    if bias.shape != (out.shape[1],):
        raise shape_mismatch(f"a bias of shape {bias.shape} for {out.shape[1]} channels")
    nest = call.nest()
    index = nest.axes("i", out.shape)
    nest.write(out, index, add(nest.read(partial, index), nest.read(bias, (index[1],))))


def geometry(call: Call, x: Tensor, w: Tensor) -> tuple[tuple[Window, ...], int]:
    """Windows and group count of a convolution of `x` with `w`."""
    check_spatial(call.node.op_type, len(x.shape))
    if len(w.shape) != len(x.shape):
        raise shape_mismatch(f"weights of shape {w.shape} for an input of shape {x.shape}")
    groups = call.attrs.integer("group", 1)
    if groups < 1 or w.shape[0] % groups or w.shape[1] * groups != x.shape[1]:
        raise shape_mismatch(f"{groups} groups do not divide weights {w.shape} and input {x.shape}")
    kernel = call.attrs.integers("kernel_shape")
    if kernel is not None and kernel != w.shape[2:]:
        raise unsupported_attribute(f"kernel_shape is {kernel} but the weights are {w.shape}")
    return read_windows(call, x.shape[2:], w.shape[2:]), groups


def contract(
    call: Call,
    out: Tensor,
    x: Tensor,
    w: Tensor,
    windows: tuple[Window, ...],
    groups: int,
    *,
    x_zero: int = 0,
    w_zero: int | Tensor = 0,
) -> None:
    """Emit the contraction, axes ordered n, g, co, outputs, ci, taps; all indices linear.

    Padding is the read's fill, set to the input's zero point so that it contributes nothing.
    """
    out_channels, in_channels = w.shape[0] // groups, w.shape[1]
    nest = call.nest()
    n = nest.axis("n", out.shape[0])
    g = nest.axis("g", groups)
    co = nest.axis("co", out_channels) + g * out_channels
    o = nest.axes("o", [v.out for v in windows])
    ci = nest.axis("ci", in_channels, AxisKind.REDUCE)
    k = nest.reduce_axes("k", [v.kernel for v in windows])
    positions = (v.position(a, b) for v, a, b in zip(windows, o, k, strict=True))
    padding = lit(x_zero, x.dtype).value if any(v.is_padded for v in windows) else None
    left = nest.read(x, (n, ci + g * in_channels, *positions), padding)
    right = nest.read(w, (co, ci, *k))
    zero: Scalar | None = None
    if isinstance(w_zero, Tensor):
        zero = nest.read(w_zero, (co,))
    elif w_zero:
        zero = lit(w_zero, w.dtype)
    left = sub(left, lit(x_zero, x.dtype)) if x_zero else left
    right = right if zero is None else sub(right, zero)
    nest.write(out, (n, co, *o), mul(left, right), Reduce.ADD)


EXPRESSIONS: dict[str, Expression] = {"Conv": conv, "ConvInteger": conv_integer}
