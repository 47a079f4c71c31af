"""Short spellings for scalar bodies."""

from __future__ import annotations

from worker.compiler.ir.dtype import DType
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Scalar, Select
from worker.compiler.ir.scalar_type import promoted


def lit(value: float | int, dtype: DType) -> Const:
    """A literal in the type in which `dtype` computes."""
    kind = promoted(dtype)
    return Const(float(value) if kind.is_float else int(value), kind)


def call(fn: Fn, *args: Scalar) -> Scalar:
    """fn(args...)."""
    return Apply(fn, args)


def add(a: Scalar, b: Scalar) -> Scalar:
    return Apply(Fn.ADD, (a, b))


def sub(a: Scalar, b: Scalar) -> Scalar:
    return Apply(Fn.SUB, (a, b))


def mul(a: Scalar, b: Scalar) -> Scalar:
    return Apply(Fn.MUL, (a, b))


def div(a: Scalar, b: Scalar) -> Scalar:
    return Apply(Fn.DIV, (a, b))


def maximum(a: Scalar, b: Scalar) -> Scalar:
    return Apply(Fn.MAX, (a, b))


def minimum(a: Scalar, b: Scalar) -> Scalar:
    return Apply(Fn.MIN, (a, b))


def select(cond: Scalar, when_true: Scalar, when_false: Scalar) -> Scalar:
    return Select(cond, when_true, when_false)


def less(a: Scalar, b: Scalar) -> Scalar:
    return Apply(Fn.LT, (a, b))


def product(factors: list[Scalar]) -> Scalar:
    """Left-associated product of at least one factor."""
    result = factors[0]
    for factor in factors[1:]:
        result = mul(result, factor)
    return result


def convert(expr: Scalar, source: DType, target: DType) -> Scalar:
    """Convert a body of computing type `source` so that a write to `target` stores its value.

    Narrowing f32 -> f16/bf16 and widening are left to the write; everything else casts.
    """
    if source is promoted(target):
        return expr
    return Cast(target, expr)


def compute_float(dtype: DType) -> DType:
    """The float type in which multi-step formulas on `dtype` run."""
    return DType.F64 if dtype in (DType.F64, DType.I64, DType.U64) else DType.F32


def to_compute(expr: Scalar, source: DType, kind: DType) -> Scalar:
    """Bring an element read as `source` to computing type `kind`."""
    return expr if promoted(source) is kind else Cast(kind, expr)
