"""Comparisons, logic, predicates and Where."""

from __future__ import annotations

from worker.compiler.frontend.ops.body import call as apply
from worker.compiler.frontend.ops.body import less, lit, select
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.elementwise import emit_same_type, operands_of, require_float
from worker.compiler.frontend.ops.pointwise import broadcast_shape, pointwise
from worker.compiler.frontend.ops.refusal import Refusal
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.scalar import Fn
from worker.compiler.rejection import ReasonCode


def _comparison(fn: Fn) -> Expression:
    def express(call: Call) -> None:
        operands, shape, _ = operands_of(call, 2)
        out = call.output(0, shape, DType.BOOL)
        pointwise(call, out, operands, lambda v: apply(fn, v[0], v[1]))

    return express


def _logic(fn: Fn) -> Expression:
    def express(call: Call) -> None:
        if call.dtype(0) is not DType.BOOL:
            raise Refusal(
                ReasonCode.UNSUPPORTED_DTYPE, f"{call.node.op_type} of {call.dtype(0)}, not bool"
            )
        emit_same_type(call, lambda v: apply(fn, *v), 1 if fn is Fn.NOT else 2)

    return express


def is_nan(call: Call) -> None:
    """IsNaN."""
    require_float(call)
    out = call.output(0, call.shape(0), DType.BOOL)
    pointwise(call, out, [call.operand(0)], lambda v: apply(Fn.ISNAN, v[0]))


def is_inf(call: Call) -> None:
    """IsInf, either sign or both."""
    require_float(call)
    positive = call.attrs.integer("detect_positive", 1) != 0
    negative = call.attrs.integer("detect_negative", 1) != 0
    out = call.output(0, call.shape(0), DType.BOOL)
    zero = lit(0, call.dtype(0))
    if positive and negative:
        pointwise(call, out, [call.operand(0)], lambda v: apply(Fn.ISINF, v[0]))
    elif positive or negative:
        pointwise(
            call,
            out,
            [call.operand(0)],
            lambda v: apply(
                Fn.AND,
                apply(Fn.ISINF, v[0]),
                less(zero, v[0]) if positive else less(v[0], zero),
            ),
        )
    else:
        pointwise(call, out, [], lambda _: lit(0, DType.BOOL))


def where(call: Call) -> None:
    """Where: condition ? x : y, all broadcast."""
    if call.dtype(1) is not call.dtype(2):
        raise Refusal(
            ReasonCode.UNSUPPORTED_DTYPE, f"Where between {call.dtype(1)} and {call.dtype(2)}"
        )
    out = call.output(0, broadcast_shape([call.shape(k) for k in range(3)]), call.dtype(1))
    operands = [call.operand(k) for k in range(3)]
    pointwise(call, out, operands, lambda v: select(v[0], v[1], v[2]))


EXPRESSIONS: dict[str, Expression] = {
    "Equal": _comparison(Fn.EQ),
    "Less": _comparison(Fn.LT),
    "LessOrEqual": _comparison(Fn.LE),
    "Greater": _comparison(Fn.GT),
    "GreaterOrEqual": _comparison(Fn.GE),
    "And": _logic(Fn.AND),
    "Or": _logic(Fn.OR),
    "Xor": _logic(Fn.XOR),
    "Not": _logic(Fn.NOT),
    "IsNaN": is_nan,
    "IsInf": is_inf,
    "Where": where,
}
