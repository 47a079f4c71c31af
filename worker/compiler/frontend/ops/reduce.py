"""Reductions over chosen axes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from worker.compiler.frontend.ops.body import (
    add,
    compute_float,
    convert,
    div,
    lit,
    mul,
    select,
    sub,
    to_compute,
)
from worker.compiler.frontend.ops.body import (
    call as apply,
)
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.pointwise import pointwise
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Fn, Scalar
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.rejection import ReasonCode


def normal_axis(axis: int, rank: int) -> int:
    """An axis counted from the front.  Refuses one outside the rank."""
    if not -rank <= axis < rank:
        raise shape_mismatch(f"axis {axis} of a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def reduction_axes(call: Call, rank: int) -> tuple[int, ...]:
    """Axes that a Reduce* node reduces, from an attribute or a constant input, ascending."""
    keep_all = call.attrs.integer("noop_with_empty_axes", 0) != 0
    axes = call.attrs.integers("axes")
    if axes is None and call.has_input(1):
        axes = call.integers(1)
    if not axes:
        return () if keep_all else tuple(range(rank))
    return tuple(sorted({normal_axis(a, rank) for a in axes}))


def reduce_over(
    call: Call,
    out: Tensor,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    reduce: Reduce,
    body: Callable[[Callable[[Tensor], Scalar]], Scalar],
) -> Tensor:
    """Emit out[kept] = reduce over `axes` of body.

    `out` has either the kept dimensions only, or all of them with the reduced ones 1.  `body` gets
    a reader: tensors of `shape` are read at the point, tensors shaped like `out` at the kept part.
    """
    nest = call.nest()
    index: list[Affine] = [Affine()] * len(shape)
    for d, extent in enumerate(shape):
        if d not in axes:
            index[d] = nest.axis(f"i{d}", extent)
    kept = [index[d] for d in range(len(shape)) if d not in axes]
    for d in axes:
        index[d] = nest.axis(f"r{d}", shape[d], AxisKind.REDUCE)
    padded = [Affine() if d in axes else index[d] for d in range(len(shape))]

    def read(tensor: Tensor) -> Scalar:
        if tensor.shape == shape:
            return nest.read(tensor, index)
        return nest.read(tensor, kept if len(tensor.shape) == len(kept) else padded)

    where = kept if len(out.shape) == len(kept) else padded
    return nest.write(out, where, body(read), reduce)


class _Reduction:
    """Shapes and types shared by every Reduce* operator."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.x = call.tensor(0)
        self.axes = reduction_axes(call, len(self.x.shape))
        keep = call.attrs.integer("keepdims", 1) != 0
        shape = tuple(
            1 if d in self.axes else n
            for d, n in enumerate(self.x.shape)
            if keep or d not in self.axes
        )
        self.out = call.output(0, shape, self.x.dtype)
        self.count = prod(self.x.shape[d] for d in self.axes)
        self.float = (
            promoted(self.x.dtype) if self.x.dtype.is_float else compute_float(self.x.dtype)
        )

    def run(self, out: Tensor, reduce: Reduce, body: Callable[[Scalar], Scalar]) -> Tensor:
        return reduce_over(
            self.call, out, self.x.shape, self.axes, reduce, lambda read: body(read(self.x))
        )

    def value(self, x: Scalar) -> Scalar:
        """The element in float."""
        return to_compute(x, self.x.dtype, self.float)

    def partial(self, suffix: str, dtype: DType) -> Tensor:
        return self.call.temp(suffix, self.out.shape, dtype)

    def finish(self, source: Tensor, body: Callable[[Scalar], Scalar], kind: DType) -> None:
        pointwise(
            self.call, self.out, [source], lambda v: convert(body(v[0]), kind, self.out.dtype)
        )


def _plain(reduce: Reduce, body: Callable[[Scalar], Scalar]) -> Expression:
    def express(call: Call) -> None:
        r = _Reduction(call)
        if r.x.dtype is DType.BOOL and reduce not in (Reduce.MAX, Reduce.MIN):
            raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"{call.node.op_type} of bool")
        r.run(r.out, reduce, body)

    return express


def reduce_mean(call: Call) -> None:
    """ReduceMean: floats are scaled before they are summed, which cannot overflow f16."""
    r = _Reduction(call)
    if r.x.dtype.is_float:
        scale = lit(1.0 / r.count, r.x.dtype)
        r.run(r.out, Reduce.ADD, lambda x: x if r.count == 1 else mul(x, scale))
        return
    total = r.run(r.partial("sum", r.x.dtype.accumulator), Reduce.ADD, lambda x: x)
    count = lit(r.count, r.x.dtype)
    r.finish(total, lambda s: div(s, count), promoted(r.x.dtype))


def reduce_l2(call: Call) -> None:
    """ReduceL2: root of the sum of squares."""
    r = _Reduction(call)
    total = r.run(r.partial("sum", r.float), Reduce.ADD, lambda x: mul(r.value(x), r.value(x)))
    r.finish(total, lambda s: apply(Fn.SQRT, s), r.float)


def reduce_log_sum(call: Call) -> None:
    """ReduceLogSum."""
    r = _Reduction(call)
    total = r.run(r.partial("sum", r.float), Reduce.ADD, r.value)
    r.finish(total, lambda s: apply(Fn.LOG, s), r.float)


def reduce_log_sum_exp(call: Call) -> None:
    """ReduceLogSumExp, shifted by the maximum so that nothing overflows."""
    r = _Reduction(call)
    top = r.run(r.partial("max", r.float), Reduce.MAX, r.value)
    zero = lit(0, r.float)

    def shift(m: Scalar) -> Scalar:
        # an infinite maximum must not be subtracted from itself
        return select(apply(Fn.ISINF, m), zero, m)

    total = reduce_over(
        call,
        r.partial("sum", r.float),
        r.x.shape,
        r.axes,
        Reduce.ADD,
        lambda read: apply(Fn.EXP, sub(r.value(read(r.x)), shift(read(top)))),
    )
    pointwise(
        call,
        r.out,
        [total, top],
        lambda v: convert(add(apply(Fn.LOG, v[0]), shift(v[1])), r.float, r.out.dtype),
    )


EXPRESSIONS: dict[str, Expression] = {
    "ReduceSum": _plain(Reduce.ADD, lambda x: x),
    "ReduceMax": _plain(Reduce.MAX, lambda x: x),
    "ReduceMin": _plain(Reduce.MIN, lambda x: x),
    "ReduceProd": _plain(Reduce.MUL, lambda x: x),
    "ReduceL1": _plain(Reduce.ADD, lambda x: apply(Fn.ABS, x)),
    "ReduceSumSquare": _plain(Reduce.ADD, lambda x: mul(x, x)),
    "ReduceMean": reduce_mean,
    "ReduceL2": reduce_l2,
    "ReduceLogSum": reduce_log_sum,
    "ReduceLogSumExp": reduce_log_sum_exp,
}
