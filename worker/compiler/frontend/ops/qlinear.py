"""QLinearConv and QLinearMatMul: integer contraction in i32, then one rescaling operator."""

from __future__ import annotations

from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.conv import channel_zero_points, contract, geometry, zero_point
from worker.compiler.frontend.ops.matmul import emit_matmul, matmul_shape, matmul_zero
from worker.compiler.frontend.ops.quantize import requantize
from worker.compiler.ir.dtype import DType


def qlinear_conv(call: Call) -> None:
    """QLinearConv: x, its scale and zero point, w, its ..., y's ..., and an i32 bias."""
    x, w = call.tensor(0), call.tensor(3)
    windows, groups = geometry(call, x, w)
    shape = (x.shape[0], w.shape[0], *(v.out for v in windows))
    out = call.output(0, shape, call.dtype(7))
    acc = call.temp("acc", shape, DType.I32)
    contract(
        call, acc, x, w, windows, groups,
        x_zero=zero_point(call, 2), w_zero=channel_zero_points(call, 5, w),
    )  # fmt: skip
    requantize(call, out, acc, (1, 4, 6), 7, channel=1, bias_at=8)


def qlinear_matmul(call: Call) -> None:
    """QLinearMatMul."""
    a, b = call.tensor(0), call.tensor(3)
    out = call.output(0, matmul_shape(a, b), call.dtype(7))
    acc = call.temp("acc", out.shape, DType.I32)
    emit_matmul(call, acc, a, b, matmul_zero(call, 2, a, -2), matmul_zero(call, 5, b, -1))
    channel = len(out.shape) - 1 if len(b.shape) > 1 else None
    requantize(call, out, acc, (1, 4, 6), 7, channel=channel)


EXPRESSIONS: dict[str, Expression] = {
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_matmul,
}
