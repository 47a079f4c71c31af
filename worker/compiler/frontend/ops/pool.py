"""Pooling: maxima, means and norms over sliding windows or all of space."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from worker.compiler.frontend.ops.body import (
    add,
    div,
    lit,
    maximum,
    minimum,
    mul,
    sub,
)
from worker.compiler.frontend.ops.body import (
    call as apply,
)
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.elementwise import require_float
from worker.compiler.frontend.ops.pointwise import pointwise
from worker.compiler.frontend.ops.reduce import reduce_over
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch, unsupported_attribute
from worker.compiler.frontend.ops.window import Window, check_spatial, read_windows
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.ir.scalar import Cast, Fn, Index, Scalar
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.rejection import ReasonCode


def max_pool(call: Call) -> None:
    """MaxPool; padding reads as the lowest value."""
    if call.uses_output(1):
        raise Refusal(ReasonCode.UNSUPPORTED_OUTPUT, "MaxPool's Indices output is used")
    call.attrs.ignore("storage_order")
    x, windows = pool_geometry(call)
    out = call.output(0, pooled_shape(x, windows), x.dtype)
    slide(call, out, x, windows, Reduce.MAX, Reduce.MAX.identity(x.dtype))


def average_pool(call: Call) -> None:
    """AveragePool: one operator when every window has the same count, else sum and quotient."""
    require_float(call)
    counts_padding = call.attrs.integer("count_include_pad", 0) != 0
    x, windows = pool_geometry(call)
    out = call.output(0, pooled_shape(x, windows), x.dtype)
    if all(has_constant_count(w, counts_padding) for w in windows):
        scale = 1.0 / prod(w.kernel for w in windows)
        slide(call, out, x, windows, Reduce.ADD, 0.0, scale)
        return
    total = call.temp("sum", out.shape, promoted(x.dtype))
    slide(call, total, x, windows, Reduce.ADD, 0.0)
    nest = call.nest()
    index = nest.axes("i", out.shape)
    count = window_count(windows, index[2:], counts_padding)
    value = div(nest.read(total, index), Cast(promoted(x.dtype), count))
    nest.write(out, index, value)


def window_count(
    windows: Sequence[Window], index: Sequence[Affine], counts_padding: bool
) -> Scalar:
    """Elements that the window at output `index` averages, as an i64 expression."""
    result: Scalar = lit(1, DType.I64)
    for k, (window, o) in enumerate(zip(windows, index, strict=True)):
        taps = _count(window, o, counts_padding)
        result = mul(result, taps) if k else taps
    return result


def lp_pool(call: Call) -> None:
    """LpPool: p-th root of the sum of p-th powers of absolute values."""
    require_float(call)
    order = _order(call)
    x, windows = pool_geometry(call)
    out = call.output(0, pooled_shape(x, windows), x.dtype)
    total = call.temp("sum", out.shape, promoted(x.dtype))
    slide(call, total, x, windows, Reduce.ADD, 0.0, order=order)
    pointwise(call, out, [total], lambda v: _root(v[0], order, x.dtype))


def _order(call: Call) -> int:
    order = call.attrs.integer("p", 2)
    if order < 1:
        raise unsupported_attribute(f"attribute 'p' is {order}; 1 or more needed")
    return order


def _power(x: Scalar, order: int, dtype: DType) -> Scalar:
    if order == 2:
        return mul(x, x)
    size = apply(Fn.ABS, x)
    return size if order == 1 else apply(Fn.POW, size, lit(order, dtype))


def _root(x: Scalar, order: int, dtype: DType) -> Scalar:
    if order == 1:
        return x
    return apply(Fn.SQRT, x) if order == 2 else apply(Fn.POW, x, lit(1.0 / order, dtype))


def pool_geometry(call: Call) -> tuple[Tensor, tuple[Window, ...]]:
    """The pooled tensor and its windows.  Refuses a kernel that does not match it."""
    x = call.tensor(0)
    check_spatial(call.node.op_type, len(x.shape))
    kernel = call.attrs.integers("kernel_shape")
    if kernel is None or len(kernel) != len(x.shape) - 2 or min(kernel) < 1:
        raise unsupported_attribute(f"kernel_shape is {kernel} for an input of {x.shape}")
    ceil_mode = call.attrs.integer("ceil_mode", 0) != 0
    return x, read_windows(call, x.shape[2:], kernel, ceil_mode=ceil_mode)


def pooled_shape(x: Tensor, windows: tuple[Window, ...]) -> tuple[int, ...]:
    """Shape of a pooling's result."""
    return (*x.shape[:2], *(w.out for w in windows))


def slide(
    call: Call,
    out: Tensor,
    x: Tensor,
    windows: tuple[Window, ...],
    reduce: Reduce,
    fill: float | int,
    scale: float = 1.0,
    order: int = 0,
    zero: int = 0,
) -> None:
    """Emit the reduction over windows of scale * |x - zero| ^ order (order 0: x - zero itself)."""
    nest = call.nest()
    n, c = nest.axis("n", out.shape[0]), nest.axis("c", out.shape[1])
    o = nest.axes("o", [w.out for w in windows])
    k = nest.reduce_axes("k", [w.kernel for w in windows])
    positions = (w.position(a, b) for w, a, b in zip(windows, o, k, strict=True))
    value = nest.read(x, (n, c, *positions), fill)
    if zero:
        value = sub(value, lit(zero, x.dtype))
    if order:
        value = _power(value, order, x.dtype)
    body = value if scale == 1.0 else mul(value, lit(scale, x.dtype))
    nest.write(out, (n, c, *o), body, reduce)


def has_constant_count(window: Window, counts_padding: bool) -> bool:
    """Whether every window of the dimension averages over the same number of elements."""
    if not window.is_padded:
        return True
    last = (window.out - 1) * window.stride + (window.kernel - 1) * window.dilation
    return counts_padding and last < window.size + window.pad_begin + window.pad_end


def _count(window: Window, o: Affine, counts_padding: bool) -> Scalar:
    """Taps of the window at `o` that count, as an i64 expression."""
    low, high = 0, window.size
    if counts_padding:
        low, high = -window.pad_begin, window.size + window.pad_end
    start = o * window.stride - window.pad_begin
    # taps t with low <= start + t * dilation < high
    first = (low - start + (window.dilation - 1)).floordiv(window.dilation)
    past = (high - 1 - start).floordiv(window.dilation) + 1
    return sub(
        minimum(Index(past), lit(window.kernel, DType.I64)),
        maximum(Index(first), lit(0, DType.I64)),
    )


def _global(reduce: Reduce, order: int, *, is_mean: bool) -> Expression:
    def express(call: Call) -> None:
        x = call.tensor(0)
        if len(x.shape) < 3:
            raise shape_mismatch(f"{call.node.op_type} of {x.shape}: no spatial dimensions")
        if is_mean or order:
            require_float(call)
        p = _order(call) if order else 0
        axes = tuple(range(2, len(x.shape)))
        out = call.output(0, (*x.shape[:2], *(1 for _ in axes)), x.dtype)
        scale = lit(1.0 / prod(x.shape[2:]), x.dtype) if is_mean else None

        def body(value: Scalar) -> Scalar:
            if p:
                return _power(value, p, x.dtype)
            return value if scale is None else mul(value, scale)

        target = call.temp("sum", out.shape, promoted(x.dtype)) if p else out
        reduce_over(call, target, x.shape, axes, reduce, lambda read: body(read(x)))
        if p:
            pointwise(call, out, [target], lambda v: _root(v[0], p, x.dtype))

    return express


def lrn(call: Call) -> None:
    """LRN: x / (bias + alpha / size * sum of squares over neighbouring channels) ^ beta."""
    require_float(call)
    x = call.tensor(0)
    alpha, beta = call.attrs.real("alpha", 1e-4), call.attrs.real("beta", 0.75)
    bias, size = call.attrs.real("bias", 1.0), call.attrs.integer("size")
    if size < 1 or len(x.shape) < 2:
        raise unsupported_attribute(f"LRN of {x.shape} over {size} channels")
    out = call.output(0, x.shape, x.dtype)
    # No channel has more neighbours than there are others, however many the window asks for.
    before, after = (min(reach, x.shape[1] - 1) for reach in ((size - 1) // 2, size // 2))
    window = Window(x.shape[1], before + after + 1, 1, 1, before, after, x.shape[1])
    squares = call.temp("squares", x.shape, promoted(x.dtype))
    nest = call.nest()
    index = list(nest.axes("i", x.shape))
    (k,) = nest.reduce_axes("k", (before + after + 1,))
    value = nest.read(x, [index[0], window.position(index[1], k), *index[2:]], 0.0)
    nest.write(squares, index, mul(value, value), Reduce.ADD)

    def body(v: Scalar, s: Scalar) -> Scalar:
        base = add(lit(bias, x.dtype), mul(lit(alpha / size, x.dtype), s))
        return mul(v, apply(Fn.POW, base, lit(-beta, x.dtype)))

    pointwise(call, out, [x, squares], lambda v: body(v[0], v[1]))


EXPRESSIONS: dict[str, Expression] = {
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "LpPool": lp_pool,
    "GlobalMaxPool": _global(Reduce.MAX, 0, is_mean=False),
    "GlobalAveragePool": _global(Reduce.ADD, 0, is_mean=True),
    "GlobalLpPool": _global(Reduce.ADD, 2, is_mean=False),
    "LRN": lrn,
}
