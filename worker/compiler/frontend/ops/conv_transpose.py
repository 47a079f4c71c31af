"""ConvTranspose as a gather: each output sums the taps that reach it, and only those."""

from __future__ import annotations

from dataclasses import dataclass

from worker.compiler.frontend.ops.body import call as apply
from worker.compiler.frontend.ops.body import lit, mul, select, sub
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.conv import add_channel_bias, is_zero
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch, unsupported_attribute
from worker.compiler.frontend.ops.window import check_spatial, spatial_attribute
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Fn, Index, Scalar
from worker.compiler.rejection import ReasonCode


@dataclass(frozen=True, slots=True)
class Spread:
    """One spatial dimension: input i and tap k meet at output i*stride + k*dilation - pad."""

    kernel: int
    stride: int
    dilation: int
    pad: int
    out: int

    @property
    def taps(self) -> int:
        """Taps walked per output: with undilated strides only every stride-th one can reach it."""
        return -(-self.kernel // self.stride) if self.dilation == 1 else self.kernel

    def places(self, out: Affine, t: Affine) -> tuple[Affine, Affine, Affine | None]:
        """(input index, tap, remainder that must be 0) for the t-th tap walked at `out`.

        Either index may leave its tensor, where the fill 0 stands.
        """
        at = out + self.pad
        if self.stride == 1:
            return at - t * self.dilation, t, None
        if self.dilation == 1:
            return at.floordiv(self.stride) - t, at.mod(self.stride) + t * self.stride, None
        reach = at - t * self.dilation
        return reach.floordiv(self.stride), t, reach.mod(self.stride)


def conv_transpose(call: Call) -> None:
    """ConvTranspose with groups, dilations, output_padding and output_shape."""
    x, w = call.tensor(0), call.tensor(1)
    if not x.dtype.is_float or w.dtype is not x.dtype:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"ConvTranspose of {x.dtype} with {w.dtype}")
    spread = transposed(call, x, w)
    out = call.output(0, spread.shape, x.dtype)
    if not call.has_input(2) or is_zero(call, 2):
        gather_taps(call, out, x, w, spread)
        return
    partial = call.temp("acc", out.shape, x.dtype.accumulator)
    gather_taps(call, partial, x, w, spread)
    add_channel_bias(call, out, partial, 2)


@dataclass(frozen=True, slots=True)
class Transposed:
    """Geometry of one ConvTranspose."""

    spreads: tuple[Spread, ...]
    groups: int
    shape: tuple[int, ...]
    """Of the result."""


def transposed(call: Call, x: Tensor, w: Tensor) -> Transposed:
    """Geometry of a transposed convolution of `x` with `w`.  Refuses shapes that do not match."""
    check_spatial("ConvTranspose", len(x.shape))
    groups = call.attrs.integer("group", 1)
    if len(w.shape) != len(x.shape) or w.shape[0] != x.shape[1] or x.shape[1] % max(groups, 1):
        raise shape_mismatch(f"ConvTranspose of {x.shape} with weights {w.shape}, {groups} groups")
    kernel = call.attrs.integers("kernel_shape")
    if kernel is not None and kernel != w.shape[2:]:
        raise unsupported_attribute(f"kernel_shape is {kernel} but the weights are {w.shape}")
    spreads = _geometry(call, x.shape[2:], w.shape[2:])
    shape = (x.shape[0], w.shape[1] * groups, *(s.out for s in spreads))
    return Transposed(spreads, groups, shape)


def gather_taps(
    call: Call,
    out: Tensor,
    x: Tensor,
    w: Tensor,
    spread: Transposed,
    *,
    x_zero: int = 0,
    w_zero: int = 0,
) -> None:
    """Emit the sum over input channels and the taps that reach each output.

    Beyond the tensors stand their zero points, which contribute nothing.
    """
    spreads, groups = spread.spreads, spread.groups
    in_channels, out_channels = w.shape[0] // groups, w.shape[1]
    nest = call.nest()
    n = nest.axis("n", out.shape[0])
    g = nest.axis("g", groups)
    co = nest.axis("co", out_channels)
    o = nest.axes("o", [s.out for s in spreads])
    ci = nest.axis("ci", in_channels, AxisKind.REDUCE) + g * in_channels
    t = nest.reduce_axes("k", [s.taps for s in spreads])
    places = [s.places(a, b) for s, a, b in zip(spreads, o, t, strict=True)]
    left = nest.read(x, (n, ci, *(p[0] for p in places)), lit(x_zero, x.dtype).value)
    right = nest.read(w, (ci, co, *(p[1] for p in places)), lit(w_zero, w.dtype).value)
    left = sub(left, lit(x_zero, x.dtype)) if x_zero else left
    right = sub(right, lit(w_zero, w.dtype)) if w_zero else right
    body: Scalar = mul(left, right)
    for _, _, remainder in places:
        if remainder is not None:
            meets = apply(Fn.EQ, Index(remainder), lit(0, DType.I64))
            body = select(meets, body, lit(0, x.dtype))
    nest.write(out, (n, co + g * out_channels, *o), body, Reduce.ADD)


def _geometry(call: Call, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[Spread, ...]:
    count = len(spatial)
    strides = spatial_attribute(call, "strides", count, 1)
    dilations = spatial_attribute(call, "dilations", count, 1)
    extra = call.attrs.integers("output_padding") or (0,) * count
    wanted = call.attrs.integers("output_shape")
    pads = call.attrs.integers("pads") or (0,) * (2 * count)
    auto_pad = call.attrs.choice(
        "auto_pad", "NOTSET", ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    )
    if auto_pad == "VALID":
        pads = (0,) * (2 * count)
    if len(extra) != count or len(pads) != 2 * count or min(*extra, 0) < 0:
        raise unsupported_attribute(f"output_padding {extra} and pads {pads} of ConvTranspose")
    if wanted is not None:
        wanted = wanted[-count:]
    elif auto_pad.startswith("SAME"):
        wanted = tuple(n * s for n, s in zip(spatial, strides, strict=True))
    spreads = []
    for d in range(count):
        full = (spatial[d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 + extra[d]
        if wanted is None:
            begin, out = pads[d], full - pads[d] - pads[count + d]
        else:
            total = max(full - wanted[d], 0)
            begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            out = wanted[d]
        spreads.append(Spread(kernel[d], strides[d], dilations[d], begin, out))
    return tuple(spreads)


EXPRESSIONS: dict[str, Expression] = {"ConvTranspose": conv_transpose}
