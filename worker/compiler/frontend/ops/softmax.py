"""Softmax, LogSoftmax and Hardmax, with f32 intermediates for 16-bit inputs."""

from __future__ import annotations

from math import prod

from worker.compiler.frontend.ops.body import call as apply
from worker.compiler.frontend.ops.body import div, lit, select, sub
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.elementwise import require_float
from worker.compiler.frontend.ops.layout import reshape_to
from worker.compiler.frontend.ops.pointwise import pointwise
from worker.compiler.frontend.ops.reduce import normal_axis, reduce_over
from worker.compiler.ir.affine import const
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Cast, Fn, Index
from worker.compiler.ir.scalar_type import promoted

_PER_AXIS_OPSET = 13
"""Before this opset the input is coerced to a matrix at `axis`."""


def softmax(call: Call) -> None:
    """Softmax: e^(x - max) over its sum; maximum, exponentials, sum, quotient."""
    x, out, source, axes = _operands(call)
    top = _maximum(call, x, axes)
    powers = pointwise(
        call,
        call.temp("exp", x.shape, promoted(x.dtype)),
        [x, top],
        lambda v: apply(Fn.EXP, sub(v[0], v[1])),
    )
    total = reduce_over(
        call, _kept(call, "sum", x, axes), x.shape, axes, Reduce.ADD, lambda read: read(powers)
    )
    result = out if source is x else call.temp("flat", x.shape, x.dtype)
    pointwise(call, result, [powers, total], lambda v: div(v[0], v[1]))
    if result is not out:
        reshape_to(call, out, result)


def log_softmax(call: Call) -> None:
    """LogSoftmax: x - max - log(sum of e^(x - max))."""
    x, out, source, axes = _operands(call)
    top = _maximum(call, x, axes)
    total = reduce_over(
        call,
        _kept(call, "sum", x, axes),
        x.shape,
        axes,
        Reduce.ADD,
        lambda read: apply(Fn.EXP, sub(read(x), read(top))),
    )
    result = out if source is x else call.temp("flat", x.shape, x.dtype)
    pointwise(call, result, [x, top, total], lambda v: sub(sub(v[0], v[1]), apply(Fn.LOG, v[2])))
    if result is not out:
        reshape_to(call, out, result)


def hardmax(call: Call) -> None:
    """Hardmax: 1 at the first maximum along the axis, 0 elsewhere."""
    x, out, source, axes = _operands(call)
    top = _maximum(call, x, axes)
    (axis,) = axes
    extent = x.shape[axis]
    first = _kept(call, "first", x, axes, DType.I64)
    nest = call.nest()
    index = [
        nest.axis(f"i{d}", n, AxisKind.REDUCE if d == axis else AxisKind.PARALLEL)
        for d, n in enumerate(x.shape)
    ]
    kept = [const(0) if d == axis else e for d, e in enumerate(index)]
    is_top = apply(Fn.EQ, nest.read(x, index), nest.read(top, kept))
    nest.write(first, kept, select(is_top, Index(index[axis]), lit(extent, DType.I64)), Reduce.MIN)
    result = out if source is x else call.temp("flat", x.shape, x.dtype)
    nest = call.nest()
    index = list(nest.axes("i", x.shape))
    kept = [const(0) if d == axis else e for d, e in enumerate(index)]
    is_first = apply(Fn.EQ, nest.read(first, kept), Index(index[axis]))
    nest.write(result, index, Cast(promoted(x.dtype), is_first))
    if result is not out:
        reshape_to(call, out, result)


def _operands(call: Call) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """(tensor to work on, output, the node's input, axes): old opsets work on a matrix."""
    require_float(call)
    source = call.tensor(0)
    rank = len(source.shape)
    is_matrix = call.opset < _PER_AXIS_OPSET
    axis = normal_axis(call.attrs.integer("axis", 1 if is_matrix else -1), max(rank, 1))
    out = call.output(0, source.shape, source.dtype)
    if not is_matrix:
        return source, out, source, (axis,)
    if prod(source.shape[axis:]) == source.shape[axis]:
        return source, out, source, (axis,)
    shape = (prod(source.shape[:axis]), prod(source.shape[axis:]))
    matrix = call.temp("matrix", shape, source.dtype)
    reshape_to(call, matrix, source)
    return matrix, out, source, (1,)


def _kept(
    call: Call, suffix: str, x: Tensor, axes: tuple[int, ...], dtype: DType | None = None
) -> Tensor:
    shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    return call.temp(suffix, shape, dtype or promoted(x.dtype))


def _maximum(call: Call, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return reduce_over(
        call, _kept(call, "max", x, axes), x.shape, axes, Reduce.MAX, lambda read: read(x)
    )


EXPRESSIONS: dict[str, Expression] = {
    "Softmax": softmax,
    "LogSoftmax": log_softmax,
    "Hardmax": hardmax,
}
