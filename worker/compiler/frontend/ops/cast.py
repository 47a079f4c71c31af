"""Cast and CastLike."""

from __future__ import annotations

from worker.compiler.frontend.ops.body import convert, lit, maximum, minimum
from worker.compiler.frontend.ops.call import DTYPES, Call, Expression
from worker.compiler.frontend.ops.pointwise import pointwise
from worker.compiler.frontend.ops.refusal import Refusal
from worker.compiler.ir.bits import largest
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.scalar import Cast, Scalar
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.rejection import ReasonCode


def cast(call: Call) -> None:
    """Cast to the type named by attribute `to`."""
    code = call.attrs.integer("to")
    target = next((d for t, d in DTYPES.items() if t.value == code), None)
    if target is None:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"Cast to ONNX element type {code}")
    _cast(call, target)


def cast_like(call: Call) -> None:
    """CastLike: to the type of input 1, whose value does not matter."""
    _cast(call, call.dtype(1))


def _cast(call: Call, target: DType) -> None:
    is_saturated = call.attrs.integer("saturate", 1) != 0
    call.attrs.ignore("round_mode")  # concerns float8e8m0 only, which the algebra has not
    source = call.dtype(0)
    out = call.output(0, call.shape(0), target)
    pointwise(
        call, out, [call.operand(0)], lambda v: _converted(v[0], source, target, is_saturated)
    )


def _converted(value: Scalar, source: DType, target: DType, is_saturated: bool) -> Scalar:
    kind = promoted(source)
    if target.is_narrow_float:
        value = value if kind is DType.F32 else Cast(DType.F32, value)
        return saturate(value, target) if is_saturated else value
    if kind.is_float and target.is_narrow_int:
        raise Refusal(
            ReasonCode.UNSUPPORTED_DTYPE,
            f"Cast of {source} to {target}: ONNX's reference cuts fractions off, ONNX Runtime"
            " rounds them; QuantizeLinear says which",
        )
    if kind.is_float and not target.is_float and target is not DType.BOOL:
        return Cast(target, value)  # saturates; the write alone would wrap
    return convert(value, kind, target)


def saturate(value: Scalar, target: DType) -> Scalar:
    """An f32 value brought into the range of a narrow float; not a number stays what it is."""
    most = lit(largest(target), DType.F32)
    return maximum(minimum(value, most), lit(-largest(target), DType.F32))


EXPRESSIONS: dict[str, Expression] = {"Cast": cast, "CastLike": cast_like}
