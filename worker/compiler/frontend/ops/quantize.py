"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, QLinearConv, QLinearMatMul."""

from __future__ import annotations

from collections.abc import Sequence

from worker.compiler.frontend.ops.body import (
    add,
    div,
    lit,
    maximum,
    minimum,
    mul,
    select,
    sub,
    to_compute,
)
from worker.compiler.frontend.ops.body import (
    call as apply,
)
from worker.compiler.frontend.ops.call import DTYPES, Call, Expression, Operand
from worker.compiler.frontend.ops.cast import saturate
from worker.compiler.frontend.ops.nest import Nest
from worker.compiler.frontend.ops.pointwise import pointwise
from worker.compiler.frontend.ops.reduce import normal_axis, reduce_over
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Cast, Const, Fn, Scalar
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.rejection import ReasonCode

_QUANTIZED = (
    DType.I8, DType.U8, DType.I16, DType.U16, DType.I4, DType.U4, DType.I2, DType.U2,
    *(dtype for dtype in DType if dtype.is_narrow_float),
)  # fmt: skip


class _Parameters:
    """Scale and zero point (inputs 1 and 2): per tensor, per axis, or per block."""

    def __init__(self, call: Call, shape: tuple[int, ...]) -> None:
        self._call = call
        self._shape = shape
        self._axis = call.attrs.integer("axis", 1)
        self._block = call.attrs.integer("block_size", 0)
        self._scale_shape = call.shape(1)
        if call.has_input(2) and not self._agrees(call.shape(2)):
            raise shape_mismatch(
                f"zero points of shape {call.shape(2)} for scales of {self._scale_shape}"
            )
        self._check()

    def _check(self) -> None:
        given, shape = self._scale_shape, self._shape
        if self.is_per_tensor:
            return
        axis = normal_axis(self._axis, len(shape))
        if self._block:
            blocks = tuple(-(-n // self._block) if d == axis else n for d, n in enumerate(shape))
            if given != blocks:
                raise shape_mismatch(f"scales of {given}, not {blocks}, for {shape}")
        elif given != (shape[axis],):
            raise shape_mismatch(f"scales of {given} along axis {axis} of {shape}")

    def _agrees(self, zeros: tuple[int, ...]) -> bool:
        """Equal shapes, or one element each, however written."""
        return zeros == self._scale_shape or (self.is_per_tensor and zeros in ((), (1,)))

    @property
    def is_per_tensor(self) -> bool:
        return self._scale_shape in ((), (1,)) and not self._block

    def value(self, nest: Nest, k: int, index: Sequence[Affine]) -> Scalar:
        """Input k at output point `index`."""
        operand: Operand = self._call.operand(k)
        if isinstance(operand, Const):
            return operand
        if self.is_per_tensor:
            return nest.read(operand, (0,) * len(operand.shape))
        axis = normal_axis(self._axis, len(self._shape))
        if self._block:
            return nest.read(
                operand,
                [e.floordiv(self._block) if d == axis else e for d, e in enumerate(index)],
            )
        return nest.read(operand, (index[axis],))


def _named_type(code: int, default: DType) -> DType:
    if code == 0:
        return default
    found = next((d for t, d in DTYPES.items() if t.value == code), None)
    if found is None:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"output_dtype {code}")
    return found


def quantize_linear(call: Call) -> None:
    """QuantizeLinear: saturate(round(x / scale) + zero point)."""
    x = call.tensor(0)
    named = _named_type(call.attrs.integer("output_dtype", 0), DType.U8)
    target = call.dtype(2) if call.has_input(2) else named
    is_saturated = call.attrs.integer("saturate", 1) != 0
    if call.attrs.integer("precision", 0) not in (0, 1):
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, "QuantizeLinear in a precision other than f32")
    if target not in _QUANTIZED or x.dtype not in (DType.F32, DType.F16, DType.BF16, DType.I32):
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"QuantizeLinear of {x.dtype} to {target}")
    parameters = _Parameters(call, x.shape)
    out = call.output(0, x.shape, target)
    nest = call.nest()
    index = nest.axes("i", x.shape)
    value = to_compute(nest.read(x, index), x.dtype, DType.F32)
    scale = parameters.value(nest, 1, index)
    if call.dtype(1) is DType.I32:  # ONNX wants the scale in the type of x
        scale = (
            lit(float(scale.value), DType.F32)
            if isinstance(scale, Const)
            else Cast(DType.F32, scale)
        )
    steps = div(value, scale)
    zero = parameters.value(nest, 2, index) if call.has_input(2) else None
    if target.is_narrow_float:
        if zero is not None and not (isinstance(zero, Const) and zero.value == 0):
            steps = add(steps, zero)
        nest.write(out, index, saturate(steps, target) if is_saturated else steps)
        return
    nest.write(out, index, saturated(steps, zero, target))


def saturated(
    steps: Scalar,
    zero: Scalar | None,
    target: DType,
    low: int | None = None,
    high: int | None = None,
) -> Scalar:
    """saturate(round(steps) + zero point), half to even, clamped to [low, high] where given.

    The clamp works on whole numbers: Relu and Clip after quantisation, which is monotone.
    """
    rounded = apply(Fn.ROUND, steps)
    if zero is not None and not (isinstance(zero, Const) and zero.value == 0):
        shift = (
            lit(float(zero.value), DType.F32) if isinstance(zero, Const) else Cast(DType.F32, zero)
        )
        rounded = add(rounded, shift)
    if low is not None:
        rounded = maximum(rounded, lit(low, DType.F32))
    if high is not None:
        rounded = minimum(rounded, lit(high, DType.F32))
    return Cast(target, rounded)


def dequantize_linear(call: Call) -> None:
    """DequantizeLinear: (x - zero point) * scale."""
    x = call.tensor(0)
    target = _named_type(call.attrs.integer("output_dtype", 0), call.dtype(1))
    if x.dtype not in (*_QUANTIZED, DType.I32) or target not in (
        DType.F32,
        DType.F16,
        DType.BF16,
    ):
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"DequantizeLinear of {x.dtype} to {target}")
    if call.has_input(2) and call.dtype(2) is not x.dtype:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"a zero point of {call.dtype(2)}")
    parameters = _Parameters(call, x.shape)
    out = call.output(0, x.shape, target)
    nest = call.nest()
    index = nest.axes("i", x.shape)
    value: Scalar = nest.read(x, index)
    if call.has_input(2):
        zero = parameters.value(nest, 2, index)
        if not (isinstance(zero, Const) and zero.value == 0):
            value = sub(value, zero)
    value = to_compute(value, x.dtype, DType.F32)
    nest.write(out, index, mul(value, parameters.value(nest, 1, index)))


def dynamic_quantize_linear(call: Call) -> None:
    """DynamicQuantizeLinear to u8: range (with 0), scale, zero point, then the values."""
    x = call.tensor(0)
    if x.dtype is not DType.F32:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"DynamicQuantizeLinear of {x.dtype}")
    out = call.output(0, x.shape, DType.U8)
    scale, zero = call.output(1, (), DType.F32), call.output(2, (), DType.U8)
    axes = tuple(range(len(x.shape)))
    low, high = (call.temp(name, (), DType.F32) for name in ("min", "max"))
    reduce_over(call, low, x.shape, axes, Reduce.MIN, lambda read: read(x))
    reduce_over(call, high, x.shape, axes, Reduce.MAX, lambda read: read(x))
    origin = lit(0, DType.F32)

    def span(v: Sequence[Scalar]) -> Scalar:
        width = sub(maximum(v[1], origin), minimum(v[0], origin))
        return div(width, lit(255, DType.F32))

    pointwise(call, scale, [low, high], span)

    def start(v: Sequence[Scalar]) -> Scalar:
        steps = div(sub(origin, minimum(v[0], origin)), v[1])
        # a constant zero tensor has scale 0 and zero point 0
        return Cast(DType.U8, select(apply(Fn.EQ, v[1], origin), origin, apply(Fn.ROUND, steps)))

    pointwise(call, zero, [low, scale], start)

    def body(v: Sequence[Scalar]) -> Scalar:
        steps = select(apply(Fn.EQ, v[1], origin), origin, div(v[0], v[1]))
        return saturated(steps, v[2], DType.U8)

    pointwise(call, out, [x, scale, zero], body)


def requantize(
    call: Call,
    out: Tensor,
    acc: Tensor,
    scales: tuple[int, int, int],
    zero_at: int,
    channel: int | None,
    bias_at: int | None = None,
) -> None:
    """out = saturate(round((acc + bias) * a_scale * b_scale / y_scale) + zero point).

    `scales` are the inputs holding a, b and y scales; b's may hold one per index of `channel`.
    """
    nest = call.nest()
    index = nest.axes("i", out.shape)

    def parameter(k: int) -> Scalar:
        operand = call.operand(k)
        if isinstance(operand, Const):
            return operand
        if operand.num_elems == 1:
            return nest.read(operand, (0,) * len(operand.shape))
        if channel is not None and operand.shape == (out.shape[channel],):
            return nest.read(operand, (index[channel],))
        raise shape_mismatch(f"parameters of shape {operand.shape} for {out.shape}")

    total: Scalar = nest.read(acc, index)
    if bias_at is not None and call.has_input(bias_at):
        total = add(total, parameter(bias_at))
    a, b, y = (to_compute(parameter(k), call.dtype(k), DType.F32) for k in scales)
    value = mul(Cast(DType.F32, total), div(mul(a, b), y))
    if promoted(out.dtype) is not DType.I32:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"{call.node.op_type} to {out.dtype}")
    nest.write(out, index, saturated(value, parameter(zero_at), out.dtype))


EXPRESSIONS: dict[str, Expression] = {
    "QuantizeLinear": quantize_linear,
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
}
