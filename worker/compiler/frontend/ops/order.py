"""TopK: an order found by counting."""

from __future__ import annotations

from math import prod

from worker.compiler.frontend.ops.body import call as apply
from worker.compiler.frontend.ops.body import less, lit, select
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.reduce import normal_axis
from worker.compiler.frontend.ops.refusal import shape_mismatch
from worker.compiler.frontend.ops.scatter import require_comparisons
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce
from worker.compiler.ir.scalar import Fn, Index, Scalar


def top_k(call: Call) -> None:
    """TopK with a known k: an element's rank is the number of elements that come before it.

    Of equal elements the one with the lower index comes first; not-a-number comes last, so that the
    ranks are a permutation whatever the data.  Unsorted results may come in any order: sorted ones
    will do.
    """
    x = call.tensor(0)
    axis = normal_axis(call.attrs.integer("axis", -1), len(x.shape))
    is_largest = call.attrs.integer("largest", 1) != 0
    call.attrs.ignore("sorted")
    old = call.attrs.integer("k", 0)  # opset < 10
    k = old or (call.integers(1)[0] if call.shape(1) in ((), (1,)) else 0)
    extent = x.shape[axis]
    if not 1 <= k <= extent:
        raise shape_mismatch(f"TopK of {k} of {extent} elements")
    require_comparisons(call, prod(x.shape) * extent)
    shape = tuple(k if d == axis else n for d, n in enumerate(x.shape))
    values, indices = call.output(0, shape, x.dtype), call.output(1, shape, DType.I64)
    rank = call.temp("rank", x.shape, DType.I64)

    nest = call.nest()
    index = nest.axes("i", x.shape)
    other = list(index)
    other[axis] = nest.axis("j", extent, AxisKind.REDUCE)
    mine, theirs = nest.read(x, index), nest.read(x, other)
    is_before = apply(
        Fn.OR,
        _beats(theirs, mine, x.dtype, is_largest),
        apply(
            Fn.AND,
            apply(Fn.NOT, _beats(mine, theirs, x.dtype, is_largest)),
            less(Index(other[axis]), Index(index[axis])),
        ),
    )
    one, zero = lit(1, DType.I64), lit(0, DType.I64)
    nest.write(rank, index, select(is_before, one, zero), Reduce.ADD)

    nest = call.nest()
    index = nest.axes("i", shape)
    other = list(index)
    other[axis] = nest.axis("j", extent, AxisKind.REDUCE)
    is_this = apply(Fn.EQ, nest.read(rank, other), Index(index[axis]))
    nest.write(indices, index, select(is_this, Index(other[axis]), zero), Reduce.ADD)

    nest = call.nest()
    index = nest.axes("i", shape)
    where: list[Affine] = list(index)
    where[axis] = nest.lookup(indices, index)
    nest.write(values, index, nest.read(x, where))


def _beats(a: Scalar, b: Scalar, dtype: DType, is_largest: bool) -> Scalar:
    """Whether a comes before b whatever their places are."""
    is_better = apply(Fn.GT if is_largest else Fn.LT, a, b)
    if not dtype.is_float:
        return is_better
    is_number = apply(Fn.NOT, apply(Fn.ISNAN, a))
    return apply(Fn.OR, is_better, apply(Fn.AND, is_number, apply(Fn.ISNAN, b)))


EXPRESSIONS: dict[str, Expression] = {"TopK": top_k}
