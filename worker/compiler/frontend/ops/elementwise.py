"""Arithmetic element by element: unary functions, broadcasting binary and variadic ones."""

from __future__ import annotations

from collections.abc import Sequence

from worker.compiler.frontend.ops.body import (
    add,
    compute_float,
    convert,
    div,
    lit,
    maximum,
    minimum,
    to_compute,
)
from worker.compiler.frontend.ops.body import (
    call as apply,
)
from worker.compiler.frontend.ops.call import Call, Expression, Operand
from worker.compiler.frontend.ops.pointwise import BodyOf, broadcast_shape, pointwise
from worker.compiler.frontend.ops.refusal import Refusal
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.scalar import Const, Fn, Scalar
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.rejection import ReasonCode


def operands_of(call: Call, arity: int | None) -> tuple[list[Operand], tuple[int, ...], DType]:
    """All inputs as operands, the shape they broadcast to, and their common element type.

    `arity` is the number of inputs the operator takes; None: one or more.
    """
    if call.num_inputs != (max(call.num_inputs, 1) if arity is None else arity):
        raise Refusal(
            ReasonCode.UNSUPPORTED_INPUT,
            f"{call.node.op_type} has {call.num_inputs} inputs, not {arity or 'one or more'}",
        )
    operands = [call.operand(k) for k in range(call.num_inputs)]
    shape = broadcast_shape([call.shape(k) for k in range(call.num_inputs)])
    kinds = [call.dtype(k) for k in range(call.num_inputs)]
    if any(kind is not kinds[0] for kind in kinds):
        raise Refusal(
            ReasonCode.UNSUPPORTED_DTYPE,
            f"{call.node.op_type} of different types: {', '.join(kinds)}",
        )
    return operands, shape, kinds[0]


def emit_same_type(call: Call, body: BodyOf, arity: int | None = 1) -> None:
    """Emit a pointwise operator whose result has its operands' type."""
    operands, shape, dtype = operands_of(call, arity)
    pointwise(call, call.output(0, shape, dtype), operands, body)


def _unary(fn: Fn) -> Expression:
    def express(call: Call) -> None:
        emit_same_type(call, lambda v: apply(fn, v[0]))

    return express


def _unary_float(fn: Fn) -> Expression:
    def express(call: Call) -> None:
        require_float(call)
        emit_same_type(call, lambda v: apply(fn, v[0]))

    return express


def require_float(call: Call) -> None:
    """Refuse non-float operands."""
    if not call.dtype(0).is_float:
        raise Refusal(
            ReasonCode.UNSUPPORTED_DTYPE, f"{call.node.op_type} of {call.dtype(0)}, not a float"
        )


def _fold(fn: Fn, arity: int | None = 2) -> Expression:
    def body(values: Sequence[Scalar]) -> Scalar:
        result = values[0]
        for value in values[1:]:
            result = apply(fn, result, value)
        return result

    def express(call: Call) -> None:
        emit_same_type(call, body, arity)

    return express


def mean(call: Call) -> None:
    """Mean of any number of operands."""
    require_float(call)
    count = lit(1.0 / max(call.num_inputs, 1), call.dtype(0))

    def body(values: Sequence[Scalar]) -> Scalar:
        total = values[0]
        for value in values[1:]:
            total = add(total, value)
        return total if len(values) == 1 else apply(Fn.MUL, total, count)

    emit_same_type(call, body, arity=None)


def mod(call: Call) -> None:
    """Mod: the sign follows the divisor, or the dividend when fmod=1."""
    is_fmod = call.attrs.integer("fmod", 0) != 0
    emit_same_type(call, lambda v: apply(Fn.FMOD if is_fmod else Fn.FLOORMOD, v[0], v[1]), 2)


def power(call: Call) -> None:
    """Pow: the result has the base's type; constant squares, roots and inverses are cheap."""
    base, exponent = call.operand(0), call.operand(1)
    dtype, other = call.dtype(0), call.dtype(1)
    out = call.output(0, broadcast_shape([call.shape(0), call.shape(1)]), dtype)
    value = float(exponent.value) if isinstance(exponent, Const) else None
    if dtype.is_float or other.is_float:
        kind = compute_float(dtype) if not dtype.is_float else promoted(dtype)
    else:
        kind = promoted(dtype)
    if not kind.is_float and value is None and other.is_signed:
        raise Refusal(
            ReasonCode.UNSUPPORTED_DTYPE,
            f"Pow of {dtype} by a run-time {other}, which may be negative",
        )

    def body(values: Sequence[Scalar]) -> Scalar:
        x = to_compute(values[0], dtype, kind)
        if value == 1.0:
            result = x
        elif value == 2.0:
            result = apply(Fn.MUL, x, x)
        elif value == 3.0:
            result = apply(Fn.MUL, apply(Fn.MUL, x, x), x)
        elif value == 0.5 and kind.is_float:
            result = apply(Fn.SQRT, x)
        elif value == -1.0 and kind.is_float:
            result = apply(Fn.RECIPROCAL, x)
        else:
            result = apply(Fn.POW, x, to_compute(values[1], other, kind))
        return convert(result, kind, dtype)

    pointwise(call, out, [base, exponent], body)


def divide(call: Call) -> None:
    """Div: IEEE for floats, toward zero for integers."""
    emit_same_type(call, lambda v: div(v[0], v[1]), 2)


def clip(call: Call) -> None:
    """Clip to limits that are inputs (opset 11 on) or attributes (before)."""
    dtype = call.dtype(0)
    operands = [call.operand(0)]
    low_at = high_at = 0
    if call.attrs.has("min") or call.attrs.has("max"):
        low = call.attrs.real("min", float("-inf"))
        high = call.attrs.real("max", float("inf"))
        operands += [lit(low, dtype), lit(high, dtype)]
        low_at, high_at = 1, 2
    else:
        if call.has_input(1):
            operands.append(call.operand(1))
            low_at = 1
        if call.has_input(2):
            operands.append(call.operand(2))
            high_at = len(operands) - 1

    def body(values: Sequence[Scalar]) -> Scalar:
        result = values[0]
        if low_at:
            result = maximum(result, values[low_at])
        return minimum(result, values[high_at]) if high_at else result

    pointwise(call, call.output(0, call.shape(0), dtype), operands, body)


def bit_shift(call: Call) -> None:
    """BitShift of unsigned integers."""
    direction = call.attrs.choice("direction", "", ("LEFT", "RIGHT"))
    fn = Fn.SHL if direction == "LEFT" else Fn.SHR
    emit_same_type(call, lambda v: apply(fn, v[0], v[1]), 2)


EXPRESSIONS: dict[str, Expression] = {
    "Add": _fold(Fn.ADD),
    "Sub": _fold(Fn.SUB),
    "Mul": _fold(Fn.MUL),
    "Div": divide,
    "Mod": mod,
    "Pow": power,
    "Max": _fold(Fn.MAX, None),
    "Min": _fold(Fn.MIN, None),
    "Sum": _fold(Fn.ADD, None),
    "Mean": mean,
    "Neg": _unary(Fn.NEG),
    "Abs": _unary(Fn.ABS),
    "Sign": _unary(Fn.SIGN),
    "Exp": _unary_float(Fn.EXP),
    "Log": _unary_float(Fn.LOG),
    "Sqrt": _unary_float(Fn.SQRT),
    "Reciprocal": _unary_float(Fn.RECIPROCAL),
    "Sin": _unary_float(Fn.SIN),
    "Cos": _unary_float(Fn.COS),
    "Tan": _unary_float(Fn.TAN),
    "Asin": _unary_float(Fn.ASIN),
    "Acos": _unary_float(Fn.ACOS),
    "Atan": _unary_float(Fn.ATAN),
    "Sinh": _unary_float(Fn.SINH),
    "Cosh": _unary_float(Fn.COSH),
    "Tanh": _unary_float(Fn.TANH),
    "Asinh": _unary_float(Fn.ASINH),
    "Acosh": _unary_float(Fn.ACOSH),
    "Atanh": _unary_float(Fn.ATANH),
    "Erf": _unary_float(Fn.ERF),
    "Sigmoid": _unary_float(Fn.SIGMOID),
    "Floor": _unary_float(Fn.FLOOR),
    "Ceil": _unary_float(Fn.CEIL),
    "Round": _unary_float(Fn.ROUND),
    "Clip": clip,
    "BitwiseAnd": _fold(Fn.BITAND),
    "BitwiseOr": _fold(Fn.BITOR),
    "BitwiseXor": _fold(Fn.BITXOR),
    "BitwiseNot": _unary(Fn.BITNOT),
    "BitShift": bit_shift,
}
