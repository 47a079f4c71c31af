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
    out = call.output(0, matmul_shape(a, b), DType.I32)
    emit_matmul(call, out, a, b, matmul_zero(call, 2, a, -2), matmul_zero(call, 3, b, -1))


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
    a_zero: int | Tensor = 0,
    b_zero: int | Tensor = 0,
) -> None:
    """Emit out = a @ b, minus the zero points: one value, or one per row of a and column of b."""
    rows, depth = (a.shape[-2] if len(a.shape) > 1 else 1), a.shape[-1]
    cols = b.shape[-1] if len(b.shape) > 1 else 1
    batch = broadcast_shape([a.shape[:-2], b.shape[:-2]])
    nest = call.nest()
    lead = nest.axes("b", batch)
    m, n = nest.axis("m", rows), nest.axis("n", cols)
    k = nest.axis("k", depth, AxisKind.REDUCE)
    a_index = (*broadcast_index(a.shape[:-2], lead), *((m, k) if len(a.shape) > 1 else (k,)))
    b_index = (*broadcast_index(b.shape[:-2], lead), *((k, n) if len(b.shape) > 1 else (k,)))
    left = less_zero(nest, nest.read(a, a_index), a_zero, a.dtype, m)
    right = less_zero(nest, nest.read(b, b_index), b_zero, b.dtype, n)
    index = (
        *lead,
        *((m,) if len(a.shape) > 1 else ()),
        *((n,) if len(b.shape) > 1 else ()),
    )
    nest.write(out, index, mul(left, right), Reduce.ADD)


def matmul_zero(call: Call, k: int, tensor: Tensor, along: int) -> int | Tensor:
    """Input k, a zero point of `tensor` (0 when absent): one value, or one per index `along`."""
    if not call.has_input(k):
        return 0
    if call.is_constant(k) and len(set(call.integers(k))) == 1:
        return call.integers(k)[0]
    points = call.tensor(k)
    if points.num_elems == 1 or (points.shape == (tensor.shape[along],) and len(tensor.shape) > 1):
        return points
    raise shape_mismatch(f"zero points of shape {points.shape} for {tensor.shape}")


def less_zero(
    nest: Nest, value: Scalar, zero: int | Tensor, dtype: DType, channel: Affine
) -> Scalar:
    """`value`, an element of type `dtype`, minus its zero point (at `channel` if several)."""
    if isinstance(zero, int):
        return sub(value, lit(zero, dtype)) if zero else value
    if zero.num_elems == 1:
        return sub(value, nest.read(zero, (0,) * len(zero.shape)))
    return sub(value, nest.read(zero, (channel,)))


def gemm(call: Call) -> None:
    """Gemm: alpha * A' B' + beta * C, where ' is an optional transpose."""
    a, b = call.tensor(0), call.tensor(1)
    alpha, beta = call.attrs.real("alpha", 1.0), call.attrs.real("beta", 1.0)
    shape = gemm_shape(call, a, b)
    if a.dtype is not b.dtype:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"Gemm of {a.dtype} with {b.dtype}")
    out = call.output(0, shape, a.dtype)
    has_c = call.has_input(2) and beta != 0.0 and not is_zero(call, 2)
    is_plain = not has_c and alpha == 1.0
    product = out if is_plain else call.temp("acc", out.shape, a.dtype.accumulator)
    emit_gemm(call, product, a, b)
    if not is_plain:
        _scale_and_add(call, out, product, alpha, beta, has_c)


def gemm_turned(call: Call) -> tuple[bool, bool]:
    """Whether A and B are transposed."""
    return call.attrs.integer("transA", 0) != 0, call.attrs.integer("transB", 0) != 0


def gemm_shape(call: Call, a: Tensor, b: Tensor) -> tuple[int, int]:
    """(rows, columns) of a Gemm's result.

    Raises:
        Refusal: SHAPE_MISMATCH for other ranks than 2 or different inner extents.
    """
    call.attrs.ignore("broadcast")
    a_turned, b_turned = gemm_turned(call)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise shape_mismatch(f"Gemm of {a.shape} with {b.shape}: rank 2 needed")
    rows, depth = reversed(a.shape) if a_turned else a.shape
    inner, cols = reversed(b.shape) if b_turned else b.shape
    if inner != depth:
        raise shape_mismatch(f"Gemm of {a.shape} with {b.shape}: inner extents differ")
    return rows, cols


def emit_gemm(
    call: Call,
    product: Tensor,
    a: Tensor,
    b: Tensor,
    a_zero: int | Tensor = 0,
    b_zero: int | Tensor = 0,
) -> None:
    """Emit product = A' B', minus the zero points: one value, or one per row and column."""
    a_turned, b_turned = gemm_turned(call)
    rows, cols = product.shape
    nest = call.nest()
    m, n = nest.axis("m", rows), nest.axis("n", cols)
    k = nest.axis("k", a.shape[0] if a_turned else a.shape[1], AxisKind.REDUCE)
    left = nest.read(a, (k, m) if a_turned else (m, k))
    right = nest.read(b, (n, k) if b_turned else (k, n))
    left = less_zero(nest, left, a_zero, a.dtype, m)
    right = less_zero(nest, right, b_zero, b.dtype, n)
    nest.write(product, (m, n), mul(left, right), Reduce.ADD)


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
