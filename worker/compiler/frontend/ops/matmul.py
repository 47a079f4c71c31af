"""MatMul, Gemm, MatMulInteger: contractions over one axis."""

from __future__ import annotations

from worker.compiler.frontend.ops.body import add, convert, lit, mul, sub
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.conv import is_zero
from worker.compiler.frontend.ops.nest import Nest
from worker.compiler.frontend.ops.pointwise import broadcast_index, broadcast_shape
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Const, Scalar
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.rejection import ReasonCode


def matmul(call: Call) -> None:
    """MatMul with numpy's rules: leading dimensions broadcast, 1-D operands gain a unit axis."""
    a, b = call.tensor(0), call.tensor(1)
    if a.dtype is not b.dtype or a.dtype is DType.BOOL:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"MatMul of {a.dtype} with {b.dtype}")
    emit_matmul(call, call.output(0, matmul_shape(a, b), a.dtype), a, b)


def matmul_integer(call: Call) -> None:
    """MatMulInteger: 8-bit operands minus their zero points, summed in i32."""
    a, b = call.tensor(0), call.tensor(1)
    emit_matmul(call, call.output(0, matmul_shape(a, b), DType.I32), a, b, 2, 3)


def matmul_shape(a: Tensor, b: Tensor) -> tuple[int, ...]:
    """Shape of a MatMul's result.

    Raises:
        Refusal: SHAPE_MISMATCH for scalars or different inner extents.
    """
    if not a.shape or not b.shape:
        raise shape_mismatch("MatMul needs operands of rank 1 or more")
    if a.shape[-1] != (b.shape[-2] if len(b.shape) > 1 else b.shape[0]):
        raise shape_mismatch(f"MatMul of {a.shape} with {b.shape}: inner extents differ")
    batch = broadcast_shape([a.shape[:-2], b.shape[:-2]])
    return (*batch, *a.shape[-2:-1], *(b.shape[-1:] if len(b.shape) > 1 else ()))


def emit_matmul(
    call: Call,
    out: Tensor,
    a: Tensor,
    b: Tensor,
    a_zero: int | None = None,
    b_zero: int | None = None,
) -> None:
    """Emit out = a @ b, minus the zero points in inputs `a_zero` and `b_zero` if given."""
    rows, depth = (a.shape[-2] if len(a.shape) > 1 else 1), a.shape[-1]
    cols = b.shape[-1] if len(b.shape) > 1 else 1
    batch = broadcast_shape([a.shape[:-2], b.shape[:-2]])
    nest = call.nest()
    lead = nest.axes("b", batch)
    m, n = nest.axis("m", rows), nest.axis("n", cols)
    k = nest.axis("k", depth, AxisKind.REDUCE)
    a_index = (*broadcast_index(a.shape[:-2], lead), *((m, k) if len(a.shape) > 1 else (k,)))
    b_index = (*broadcast_index(b.shape[:-2], lead), *((k, n) if len(b.shape) > 1 else (k,)))
    left = _less_zero(call, nest, nest.read(a, a_index), a, a_zero, a_index, along=-2)
    right = _less_zero(call, nest, nest.read(b, b_index), b, b_zero, b_index, along=-1)
    index = (
        *lead,
        *((m,) if len(a.shape) > 1 else ()),
        *((n,) if len(b.shape) > 1 else ()),
    )
    nest.write(out, index, mul(left, right), Reduce.ADD)


def _less_zero(
    call: Call,
    nest: Nest,
    value: Scalar,
    tensor: Tensor,
    k: int | None,
    index: tuple[Affine, ...],
    *,
    along: int,
) -> Scalar:
    """Subtract input k, a zero point: one value, or one per row (a) or column (b)."""
    if k is None or not call.has_input(k):
        return value
    if call.is_constant(k) and len(set(call.integers(k))) == 1:
        zero = call.integers(k)[0]
        return sub(value, lit(zero, tensor.dtype)) if zero else value
    points = call.tensor(k)
    if points.num_elems == 1:
        return sub(value, nest.read(points, (0,) * len(points.shape)))
    if points.shape == (tensor.shape[along],) and len(tensor.shape) > 1:
        return sub(value, nest.read(points, (index[along],)))
    raise shape_mismatch(f"zero points of shape {points.shape} for {tensor.shape}")


def gemm(call: Call) -> None:
    """Gemm: alpha * A' B' + beta * C, where ' is an optional transpose."""
    a, b = call.tensor(0), call.tensor(1)
    alpha, beta = call.attrs.real("alpha", 1.0), call.attrs.real("beta", 1.0)
    a_turned, b_turned = call.attrs.integer("transA", 0) != 0, call.attrs.integer("transB", 0) != 0
    call.attrs.ignore("broadcast")
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise shape_mismatch(f"Gemm of {a.shape} with {b.shape}: rank 2 needed")
    if a.dtype is not b.dtype:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"Gemm of {a.dtype} with {b.dtype}")
    rows, depth = reversed(a.shape) if a_turned else a.shape
    inner, cols = reversed(b.shape) if b_turned else b.shape
    if inner != depth:
        raise shape_mismatch(f"Gemm of {a.shape} with {b.shape}: inner extents differ")
    out = call.output(0, (rows, cols), a.dtype)
    has_c = call.has_input(2) and beta != 0.0 and not is_zero(call, 2)
    is_plain = not has_c and alpha == 1.0
    product = out if is_plain else call.temp("acc", out.shape, a.dtype.accumulator)
    nest = call.nest()
    m, n = nest.axis("m", rows), nest.axis("n", cols)
    k = nest.axis("k", depth, AxisKind.REDUCE)
    left = nest.read(a, (k, m) if a_turned else (m, k))
    right = nest.read(b, (n, k) if b_turned else (k, n))
    nest.write(product, (m, n), mul(left, right), Reduce.ADD)
    if not is_plain:
        _scale_and_add(call, out, product, alpha, beta, has_c)


def _scale_and_add(
    call: Call, out: Tensor, product: Tensor, alpha: float, beta: float, has_c: bool
) -> None:
    nest = call.nest()
    index = nest.axes("i", out.shape)
    value = _scaled(nest.read(product, index), alpha, product.dtype)
    if has_c:
        c = call.operand(2)
        if isinstance(c, Const):
            addend: Scalar = c
        else:
            if broadcast_shape([c.shape, out.shape]) != out.shape:
                raise shape_mismatch(f"Gemm's C of shape {c.shape} does not fit {out.shape}")
            addend = nest.read(c, broadcast_index(c.shape, index))
        value = add(value, _scaled(addend, beta, product.dtype))
    nest.write(out, index, convert(value, promoted(product.dtype), out.dtype))


def _scaled(value: Scalar, factor: float, dtype: DType) -> Scalar:
    if factor == 1.0:
        return value
    if not dtype.is_float and factor != int(factor):
        raise Refusal(
            ReasonCode.UNSUPPORTED_ATTRIBUTE, f"an integer Gemm scaled by {factor}, not an integer"
        )
    return mul(value, lit(factor, dtype))


EXPRESSIONS: dict[str, Expression] = {
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
    "Gemm": gemm,
}
