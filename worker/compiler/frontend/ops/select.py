"""ArgMax, ArgMin, OneHot, Trilu, EyeLike: choices made by comparing coordinates."""

from __future__ import annotations

from worker.compiler.frontend.ops.body import add, less, lit, select
from worker.compiler.frontend.ops.body import call as apply
from worker.compiler.frontend.ops.call import DTYPES, Call, Expression
from worker.compiler.frontend.ops.reduce import normal_axis, reduce_over
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch
from worker.compiler.ir.affine import Affine, const
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce
from worker.compiler.ir.scalar import Cast, Const, Fn, Index, Scalar
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.rejection import ReasonCode


def _arg(reduce: Reduce) -> Expression:
    def express(call: Call) -> None:
        x = call.tensor(0)
        axis = normal_axis(call.attrs.integer("axis", 0), len(x.shape))
        keep = call.attrs.integer("keepdims", 1) != 0
        is_last = call.attrs.integer("select_last_index", 0) != 0
        kept = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
        shape = kept if keep else (*x.shape[:axis], *x.shape[axis + 1 :])
        out = call.output(0, shape, DType.I64)
        best = call.temp("best", kept, promoted(x.dtype))
        reduce_over(call, best, x.shape, (axis,), reduce, lambda read: read(x))
        nest = call.nest()
        index: list[Affine] = [
            const(0) if d == axis else nest.axis(f"i{d}", n) for d, n in enumerate(x.shape)
        ]
        where = [e for d, e in enumerate(index) if keep or d != axis]
        at_best = nest.read(best, index)
        index[axis] = nest.axis("k", x.shape[axis], AxisKind.REDUCE)
        is_best = apply(Fn.EQ, nest.read(x, index), at_best)
        # a point that is not best yields the index that loses to every other
        loser = lit(0 if is_last else x.shape[axis] - 1, DType.I64)
        body = select(is_best, Index(index[axis]), loser)
        nest.write(out, where, body, Reduce.MAX if is_last else Reduce.MIN)

    return express


def one_hot(call: Call) -> None:
    """OneHot along a new axis of constant depth; negative indices count from the end."""
    shape, kind = call.shape(0), call.dtype(0)
    (depth,) = call.integers(1) if call.shape(1) in ((), (1,)) else (0,)
    if call.shape(2) != (2,) or depth < 1:
        raise shape_mismatch(f"OneHot of depth {depth} with values {call.shape(2)}")
    axis = normal_axis(call.attrs.integer("axis", -1), len(shape) + 1)
    out = call.output(0, (*shape[:axis], depth, *shape[axis:]), call.dtype(2))
    indices, values = call.tensor(0), call.tensor(2)
    nest = call.nest()
    index = nest.axes("i", out.shape)
    given: Scalar = nest.read(indices, (*index[:axis], *index[axis + 1 :]))
    given = given if promoted(kind) is DType.I64 else Cast(DType.I64, given)
    placed = select(less(given, lit(0, DType.I64)), add(given, lit(depth, DType.I64)), given)
    is_hot = apply(Fn.EQ, placed, Index(index[axis]))
    nest.write(out, index, select(is_hot, nest.read(values, (1,)), nest.read(values, (0,))))


def trilu(call: Call) -> None:
    """Trilu: keep one triangle of the last two dimensions, counted from diagonal k."""
    x = call.tensor(0)
    is_upper = call.attrs.integer("upper", 1) != 0
    if len(x.shape) < 2:
        raise shape_mismatch(f"Trilu of {x.shape}")
    diagonal = call.operand(1) if call.has_input(1) else lit(0, DType.I64)
    out = call.output(0, x.shape, x.dtype)
    nest = call.nest()
    index = nest.axes("i", x.shape)
    k: Scalar = (
        diagonal if isinstance(diagonal, Const) else nest.read(diagonal, (0,) * len(diagonal.shape))
    )
    offset = Index(index[-1] - index[-2])
    is_kept = apply(Fn.GE if is_upper else Fn.LE, offset, k)
    nest.write(out, index, select(is_kept, nest.read(x, index), lit(0, x.dtype)))


def eye_like(call: Call) -> None:
    """EyeLike: ones on diagonal k; the input gives the shape only."""
    shape, offset = call.shape(0), call.attrs.integer("k", 0)
    code = call.attrs.integer("dtype", 0)
    dtype = next((d for t, d in DTYPES.items() if t.value == code), None) if code else call.dtype(0)
    if dtype is None or len(shape) != 2:
        raise Refusal(ReasonCode.UNSUPPORTED_DTYPE, f"EyeLike of {shape} to ONNX type {code}")
    out = call.output(0, shape, dtype)
    nest = call.nest()
    i, j = nest.axes("i", shape)
    is_one = apply(Fn.EQ, Index(j - i), lit(offset, DType.I64))
    nest.write(out, (i, j), select(is_one, lit(1, dtype), lit(0, dtype)))


EXPRESSIONS: dict[str, Expression] = {
    "ArgMax": _arg(Reduce.MAX),
    "ArgMin": _arg(Reduce.MIN),
    "OneHot": one_hot,
    "Trilu": trilu,
    "EyeLike": eye_like,
}
