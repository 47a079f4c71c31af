"""CumSum, CumProd, ReverseSequence: results that depend on the place along one axis."""

from __future__ import annotations

from worker.compiler.frontend.ops.body import call as apply
from worker.compiler.frontend.ops.body import less, lit, select
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.reduce import normal_axis
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Cast, Fn, Index
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.rejection import ReasonCode

_WINDOW = 8
"""Elements one step combines: steps grow with the logarithm of the axis to this base."""


def _cumulative(reduce: Reduce) -> Expression:
    """Sums or products of everything before a place.

    After step k an element holds the result of the 8^(k+1) elements that end there, so that an axis
    of n elements costs about n * 8 * log8(n) and every step tiles along every other axis.
    """

    def express(call: Call) -> None:
        x = call.tensor(0)
        if x.dtype is DType.BOOL:
            raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"{call.node.op_type} of bool")
        if call.shape(1) not in ((), (1,)):
            raise shape_mismatch(f"{call.node.op_type} with axes of shape {call.shape(1)}")
        axis = normal_axis(call.integers(1)[0], len(x.shape))
        is_exclusive = call.attrs.integer("exclusive", 0) != 0
        sign = 1 if call.attrs.integer("reverse", 0) != 0 else -1
        out = call.output(0, x.shape, x.dtype)
        extent = x.shape[axis]
        done, source, shift = 1, x, int(is_exclusive)
        while True:
            width = min(_WINDOW, -(-extent // done))
            is_last = done * width >= extent
            step = out if is_last else call.temp("part", x.shape, promoted(x.dtype))
            _window(call, step, source, axis, sign * done, sign * shift, width, reduce)
            done, source, shift = done * width, step, 0
            if is_last:
                return

    return express


def _window(
    call: Call, out: Tensor, x: Tensor, axis: int, stride: int, shift: int, width: int,
    reduce: Reduce,
) -> None:  # fmt: skip
    """out[i] = the reduction of x[i + shift + stride * j] for j < width, outside neutral."""
    nest = call.nest()
    index = list(nest.axes("i", out.shape))
    where = tuple(index)
    index[axis] = index[axis] + nest.axis("j", width, AxisKind.REDUCE) * stride + shift
    neutral = reduce.identity(promoted(x.dtype))
    nest.write(out, where, nest.read(x, index, neutral), reduce)


def reverse_sequence(call: Call) -> None:
    """ReverseSequence: the first `sequence_lens` elements of every batch in reverse."""
    x = call.tensor(0)
    time, batch = call.attrs.integer("time_axis", 0), call.attrs.integer("batch_axis", 1)
    if {time, batch} != {0, 1} or len(x.shape) < 2 or call.shape(1) != (x.shape[batch],):
        raise shape_mismatch(
            f"ReverseSequence of {x.shape} by lengths of {call.shape(1)}, axes {time} and {batch}"
        )
    extent = x.shape[time]
    if call.is_constant(1) and not all(0 <= n <= extent for n in call.integers(1)):
        raise shape_mismatch(f"ReverseSequence of {extent} steps by lengths {call.integers(1)}")
    lengths, kind = call.tensor(1), call.dtype(1)
    out = call.output(0, x.shape, x.dtype)
    places = call.temp("places", (x.shape[batch], extent), DType.I64)
    nest = call.nest()
    b, t = nest.axes("i", places.shape)
    length = nest.read(lengths, (b,))
    length = length if kind is DType.I64 else Cast(DType.I64, length)
    is_inside = less(Index(t), length)
    mirrored = apply(Fn.SUB, apply(Fn.SUB, length, lit(1, DType.I64)), Index(t))
    nest.write(places, (b, t), select(is_inside, mirrored, Index(t)))
    nest = call.nest()
    index = nest.axes("i", x.shape)
    where: list[Affine] = list(index)
    where[time] = nest.lookup(places, (index[batch], index[time]))
    nest.write(out, index, nest.read(x, where))


EXPRESSIONS: dict[str, Expression] = {
    "CumSum": _cumulative(Reduce.ADD),
    "CumProd": _cumulative(Reduce.MUL),
    "ReverseSequence": reverse_sequence,
}
