"""Activation functions."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import TypeAlias

from worker.compiler.frontend.ops.body import (
    add,
    div,
    less,
    lit,
    maximum,
    minimum,
    mul,
    select,
    sub,
)
from worker.compiler.frontend.ops.body import (
    call as apply,
)
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.elementwise import emit_same_type, require_float
from worker.compiler.frontend.ops.pointwise import broadcast_shape, pointwise
from worker.compiler.frontend.ops.refusal import shape_mismatch, unsupported_attribute
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.scalar import Cast, Fn, Scalar

Formula: TypeAlias = "Callable[[Call, Scalar, DType], Scalar]"
"""(node, x, element type) -> f(x), in the type in which the element type computes."""


def _activation(formula: Formula) -> Expression:
    def express(call: Call) -> None:
        require_float(call)
        dtype = call.dtype(0)
        emit_same_type(call, lambda v: formula(call, v[0], dtype))

    return express


def relu(call: Call) -> None:
    """Relu, for signed integers too."""
    zero = lit(0, call.dtype(0))
    emit_same_type(call, lambda v: maximum(v[0], zero))


def prelu(call: Call) -> None:
    """PRelu: the slope broadcasts to the input."""
    x, slope = call.operand(0), call.operand(1)
    dtype = call.dtype(0)
    shape = call.shape(0)
    if broadcast_shape([shape, call.shape(1)]) != shape:
        raise shape_mismatch(f"a slope of shape {call.shape(1)} does not fit {shape}")
    zero = lit(0, dtype)
    pointwise(
        call,
        call.output(0, shape, dtype),
        [x, slope],
        lambda v: select(less(v[0], zero), mul(v[0], v[1]), v[0]),
    )


def _leaky(call: Call, x: Scalar, dtype: DType) -> Scalar:
    alpha = lit(call.attrs.real("alpha", 0.01), dtype)
    return select(less(x, lit(0, dtype)), mul(x, alpha), x)


def _exp_minus_one(x: Scalar, dtype: DType) -> Scalar:
    return sub(apply(Fn.EXP, x), lit(1, dtype))


def _elu(call: Call, x: Scalar, dtype: DType) -> Scalar:
    alpha = lit(call.attrs.real("alpha", 1.0), dtype)
    return select(less(x, lit(0, dtype)), mul(alpha, _exp_minus_one(x, dtype)), x)


def _selu(call: Call, x: Scalar, dtype: DType) -> Scalar:
    alpha = call.attrs.real("alpha", 1.67326319217681884765625)
    gamma = call.attrs.real("gamma", 1.05070102214813232421875)
    negative = mul(lit(alpha * gamma, dtype), _exp_minus_one(x, dtype))
    return select(less(lit(0, dtype), x), mul(lit(gamma, dtype), x), negative)


def _celu(call: Call, x: Scalar, dtype: DType) -> Scalar:
    alpha = call.attrs.real("alpha", 1.0)
    if alpha == 0.0:
        raise unsupported_attribute("Celu with alpha 0 divides by it")
    scaled = mul(x, lit(1.0 / alpha, dtype))
    zero = lit(0, dtype)
    negative = mul(lit(alpha, dtype), _exp_minus_one(scaled, dtype))
    return add(maximum(zero, x), minimum(zero, negative))


def _hard_sigmoid_of(x: Scalar, alpha: float, beta: float, dtype: DType) -> Scalar:
    line = add(mul(x, lit(alpha, dtype)), lit(beta, dtype))
    return maximum(lit(0, dtype), minimum(lit(1, dtype), line))


def _hard_sigmoid(call: Call, x: Scalar, dtype: DType) -> Scalar:
    alpha, beta = call.attrs.real("alpha", 0.2), call.attrs.real("beta", 0.5)
    return _hard_sigmoid_of(x, alpha, beta, dtype)


def _hard_swish(_: Call, x: Scalar, dtype: DType) -> Scalar:
    return mul(x, _hard_sigmoid_of(x, 1.0 / 6.0, 0.5, dtype))


def _softplus_of(x: Scalar, dtype: DType) -> Scalar:
    """log(1 + e^x) without overflow: max(x, 0) + log(1 + e^-|x|)."""
    tail = apply(Fn.EXP, apply(Fn.NEG, apply(Fn.ABS, x)))
    return add(maximum(x, lit(0, dtype)), apply(Fn.LOG, add(lit(1, dtype), tail)))


def _softplus(_: Call, x: Scalar, dtype: DType) -> Scalar:
    return _softplus_of(x, dtype)


def _softsign(_: Call, x: Scalar, dtype: DType) -> Scalar:
    return div(x, add(lit(1, dtype), apply(Fn.ABS, x)))


def _mish(_: Call, x: Scalar, dtype: DType) -> Scalar:
    return mul(x, apply(Fn.TANH, _softplus_of(x, dtype)))


def _gelu(call: Call, x: Scalar, dtype: DType) -> Scalar:
    form = call.attrs.choice("approximate", "none", ("none", "tanh"))
    if form == "none":
        inner = apply(Fn.ERF, mul(x, lit(1.0 / sqrt(2.0), dtype)))
    else:
        cube = mul(mul(x, x), mul(x, lit(0.044715, dtype)))
        inner = apply(Fn.TANH, mul(lit(sqrt(2.0 / pi), dtype), add(x, cube)))
    return mul(mul(lit(0.5, dtype), x), add(lit(1, dtype), inner))


def _swish(call: Call, x: Scalar, dtype: DType) -> Scalar:
    alpha = call.attrs.real("alpha", 1.0)
    inner = x if alpha == 1.0 else mul(x, lit(alpha, dtype))
    return mul(x, apply(Fn.SIGMOID, inner))


def _thresholded_relu(call: Call, x: Scalar, dtype: DType) -> Scalar:
    alpha = lit(call.attrs.real("alpha", 1.0), dtype)
    return select(less(alpha, x), x, lit(0, dtype))


def _shrink(call: Call, x: Scalar, dtype: DType) -> Scalar:
    limit, bias = call.attrs.real("lambd", 0.5), lit(call.attrs.real("bias", 0.0), dtype)
    inner = select(less(lit(limit, dtype), x), sub(x, bias), lit(0, dtype))
    return select(less(x, lit(-limit, dtype)), add(x, bias), inner)


def shrink(call: Call) -> None:
    """Shrink; integers are compared and shifted as f64, which holds 32-bit ones exactly."""
    dtype = call.dtype(0)
    if dtype.is_float:
        emit_same_type(call, lambda v: _shrink(call, v[0], dtype))
    else:
        wide = DType.F64
        emit_same_type(call, lambda v: Cast(dtype, _shrink(call, Cast(wide, v[0]), wide)))


EXPRESSIONS: dict[str, Expression] = {
    "Relu": relu,
    "PRelu": prelu,
    "LeakyRelu": _activation(_leaky),
    "Elu": _activation(_elu),
    "Selu": _activation(_selu),
    "Celu": _activation(_celu),
    "HardSigmoid": _activation(_hard_sigmoid),
    "HardSwish": _activation(_hard_swish),
    "Softplus": _activation(_softplus),
    "Softsign": _activation(_softsign),
    "Mish": _activation(_mish),
    "Gelu": _activation(_gelu),
    "Swish": _activation(_swish),
    "ThresholdedRelu": _activation(_thresholded_relu),
    "Shrink": shrink,
}
