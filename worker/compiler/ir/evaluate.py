"""The slow numpy oracle: what a graph means, element by element.

Written for clarity and used only to check faster things.  Types follow `scalar_type`: reads are
promoted (f16/bf16 -> f32, small ints -> i32), sums run in the accumulator type, the write converts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import VerifyError
from worker.compiler.ir.affine import Affine, FloorDiv, Lookup, Mod, Var
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.bits import held_type, load, store
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.footprint import full_box
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Index, Read, Scalar, Select
from worker.compiler.ir.scalar_type import promoted

Array: TypeAlias = "npt.NDArray[Any]"

_MAX_POINTS = 1 << 22
"""Points evaluated at once; larger boxes are cut (bounds memory, changes no integer result)."""


def evaluate(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run every operator; `inputs` gives graph inputs and constants in storage types.

    Returns every written tensor by name.

    Raises:
        VerifyError: a read leaves its tensor.
    """
    arrays: dict[str, Array] = {name: np.asarray(a) for name, a in inputs.items()}
    totals: dict[str, Array] = {}
    for op in graph.ops:
        out = graph.tensors[op.write.tensor]
        if out.name not in totals:
            totals[out.name] = np.zeros(out.shape, dtype=out.dtype.numpy)
        totals[out.name] = evaluate_op(op, graph.tensors, arrays, totals[out.name])
        arrays[out.name] = totals[out.name]
    return totals


def evaluate_op(
    op: TensorOp, tensors: Mapping[str, Tensor], arrays: Mapping[str, Array], out: Array
) -> Array:
    """Run one operator on top of `out` (elements it does not write keep their value)."""
    tensor = tensors[op.write.tensor]
    box = full_box(op)
    if op.reduce is None:
        result = out.copy()
        for piece in _pieces(op, box):
            where, values = _points(op, tensors, arrays, piece)
            result[where] = store(np.broadcast_to(values, _shape(where, values)), tensor.dtype)
        return result
    dtype = tensor.dtype.accumulator
    total = np.full(tensor.shape, op.reduce.identity(dtype), dtype=dtype.numpy)
    written = np.zeros(tensor.shape, dtype=bool)
    for piece in _pieces(op, box):
        where, values = _points(op, tensors, arrays, piece)
        total[where] = combine(op.reduce, total[where], values.astype(dtype.numpy))
        written[where] = True
    return np.where(written, store(total, tensor.dtype), out)


def evaluate_points(
    op: TensorOp,
    tensors: Mapping[str, Tensor],
    arrays: Mapping[str, Array],
    points: npt.NDArray[np.int64],
    *,
    is_in_order: bool = False,
) -> tuple[tuple[Array, ...], Array]:
    """Run one operator at chosen points of its PARALLEL axes only (reductions complete).

    Shapes: `points` [n, number of PARALLEL axes], in domain order.  Returns the write index (one
    [n] array per tensor dimension) and the n values in storage type.  numpy sums by pairs;
    `is_in_order` adds up term by term, as a plain loop does.
    Cost: n * product of REDUCE extents; for checking big kernels by sample.
    """
    tensor = tensors[op.write.tensor]
    rows: list[Array] = []
    where: tuple[Array, ...] = ()
    for row in points:
        piece = full_box(op)
        for axis, value in zip(op.parallel_axes, row, strict=True):
            piece[axis.name] = (int(value), int(value))
        if op.reduce is None:
            _, values = _points(op, tensors, arrays, piece)
            rows.append(store(np.asarray(values).reshape(-1)[:1], tensor.dtype))
        else:
            dtype = tensor.dtype.accumulator
            total = np.full((1,), op.reduce.identity(dtype), dtype=dtype.numpy)
            for part in _pieces(op, piece):
                _, values = _points(op, tensors, arrays, part, is_in_order=is_in_order)
                total = combine(op.reduce, total, values.reshape(-1).astype(dtype.numpy))
            rows.append(store(total, tensor.dtype))
    coords = {a.name: points[:, k].astype(np.int64) for k, a in enumerate(op.parallel_axes)}
    where = tuple(np.broadcast_to(affine_values(e, coords), (len(points),)) for e in op.write.index)
    return where, np.concatenate(rows) if rows else np.zeros(0, dtype=tensor.dtype.numpy)


def _shape(where: tuple[Array, ...], values: Array) -> tuple[int, ...]:
    return np.broadcast_shapes(*(w.shape for w in where)) if where else values.shape


def _pieces(op: TensorOp, box: dict[str, tuple[int, int]]) -> list[dict[str, tuple[int, int]]]:
    """Cut a box until each piece has few points; SCAN axes are cut to single steps in order."""
    for axis in op.domain:
        low, high = box[axis.name]
        if axis.kind is AxisKind.SCAN and high > low:
            pieces = []
            for i in range(low, high + 1):
                pieces += _pieces(op, {**box, axis.name: (i, i)})
            return pieces
    points = 1
    for low, high in box.values():
        points *= high - low + 1
    if points <= _MAX_POINTS:
        return [box]
    widest = max(op.domain, key=lambda a: box[a.name][1] - box[a.name][0]).name
    low, high = box[widest]
    middle = (low + high) // 2
    return _pieces(op, {**box, widest: (low, middle)}) + _pieces(
        op, {**box, widest: (middle + 1, high)}
    )


def _points(
    op: TensorOp,
    tensors: Mapping[str, Tensor],
    arrays: Mapping[str, Array],
    box: dict[str, tuple[int, int]],
    *,
    is_in_order: bool = False,
) -> tuple[tuple[Array, ...], Array]:
    """Write index arrays and reduced body values over a box.

    Axes are laid out as PARALLEL/SCAN axes first, then REDUCE axes, one array dimension each.
    """
    kept = [a for a in op.domain if a.kind is not AxisKind.REDUCE]
    gone = [a for a in op.domain if a.kind is AxisKind.REDUCE]
    order = [*kept, *gone]
    rank = len(order)
    coords: dict[str, Array] = {}
    for k, axis in enumerate(order):
        low, high = box[axis.name]
        shape = [1] * rank
        shape[k] = high - low + 1
        coords[axis.name] = np.arange(low, high + 1, dtype=np.int64).reshape(shape)
    domain_shape = tuple(box[a.name][1] - box[a.name][0] + 1 for a in order)
    reads: list[Array] = []
    for access in op.reads:
        tensor = tensors[access.tensor]
        index = tuple(index_values(e, coords, tuple(reads)) for e in access.index)
        reads.append(_gather(arrays[access.tensor], tensor, index, access.fill))
    values = np.asarray(scalar_values(op.body, reads, coords))
    values = np.broadcast_to(values, domain_shape)
    if gone and op.reduce is not None:
        axes = tuple(range(len(kept), rank))
        dtype = tensors[op.write.tensor].dtype.accumulator
        values = values.astype(dtype.numpy)
        with np.errstate(over="ignore", invalid="ignore"):  # sums may leave their format
            if is_in_order:
                flat = values.reshape((*domain_shape[: len(kept)], -1))
                values = _UFUNC[op.reduce].accumulate(flat, axis=-1)[..., -1]
            else:
                values = _UFUNC[op.reduce].reduce(values, axis=axes)
    kept_coords = {a.name: coords[a.name].reshape(coords[a.name].shape[: len(kept)]) for a in kept}
    where = tuple(
        np.broadcast_to(affine_values(e, kept_coords), domain_shape[: len(kept)])
        for e in op.write.index
    )
    return where, values


_UFUNC: dict[Reduce, np.ufunc] = {
    Reduce.ADD: np.add,
    Reduce.MUL: np.multiply,
    Reduce.MAX: np.maximum,
    Reduce.MIN: np.minimum,
}


def combine(reduce: Reduce, total: Array, values: Array) -> Array:
    """One step of a reduction, element by element."""
    result: Array = _UFUNC[reduce](total, values)
    return result


def affine_values(expr: Affine, coords: Mapping[str, Array]) -> Array:
    """Values of an expression without lookups over broadcastable coordinate arrays (int64)."""
    return index_values(expr, coords, ())


def reduce_over(reduce: Reduce, values: Array, axes: tuple[int, ...]) -> Array:
    """Reduce whole array dimensions."""
    return np.asarray(_UFUNC[reduce].reduce(values, axis=axes))


def index_values(expr: Affine, coords: Mapping[str, Array], reads: tuple[Array, ...]) -> Array:
    """Like `affine_values`, with lookups taken from the values of earlier read slots."""
    total: Array = np.asarray(expr.const, dtype=np.int64)
    for atom, coeff in expr.terms:
        match atom:
            case Var(name):
                part = coords[name]
            case FloorDiv(arg, divisor):
                part = index_values(arg, coords, reads) // divisor
            case Mod(arg, divisor):
                part = index_values(arg, coords, reads) % divisor
            case Lookup(slot):
                part = reads[slot].astype(np.int64)
        total = total + coeff * part
    return total


def _gather(
    array: Array, tensor: Tensor, index: tuple[Array, ...], fill: float | int | None
) -> Array:
    values = load(array, tensor.dtype)
    wide = promoted(tensor.dtype).numpy
    if not index:
        return values.astype(wide)
    outside: Array = np.zeros((), dtype=bool)
    safe: list[Array] = []
    for part, extent in zip(index, tensor.shape, strict=True):
        outside = outside | (part < 0) | (part >= extent)
        safe.append(np.clip(part, 0, extent - 1))
    if fill is None and bool(np.any(outside)):
        raise VerifyError("evaluate", tensor.name, "inside", "a read leaves its tensor")
    picked = values[tuple(safe)].astype(wide)
    if fill is None:
        return picked
    return np.where(outside, np.asarray(fill, dtype=wide), picked)


def _cast(value: Array, dtype: DType) -> Array:
    """Explicit conversion: float -> int truncates toward zero and saturates, NaN gives 0."""
    if dtype is DType.BOOL:
        return np.asarray(value != 0)
    if np.issubdtype(value.dtype, np.floating) and not dtype.is_float:
        least, most = (int(r.identity(dtype)) for r in (Reduce.MAX, Reduce.MIN))
        clean = np.where(np.isnan(value), 0.0, np.trunc(value.astype(np.float64)))
        low = clean <= float(least)
        high = clean >= float(most)
        middle = np.where(low | high, 0.0, clean).astype(dtype.numpy)
        return np.where(low, least, np.where(high, most, middle)).astype(dtype.numpy)
    if dtype is DType.BF16 or dtype.is_narrow_float:
        return load(store(value.astype(np.float32), dtype), dtype)
    if dtype.is_narrow_int:
        return store(value, dtype)
    with np.errstate(over="ignore"):
        return value.astype(dtype.numpy)


def scalar_values(expr: Scalar, reads: list[Array], coords: Mapping[str, Array]) -> Array:
    """Values of a body: `reads[k]` are slot k's promoted elements, broadcastable with `coords`."""
    match expr:
        case Read(slot):
            return reads[slot]
        case Const(value, dtype):
            return np.asarray(value, dtype=held_type(dtype))
        case Index(affine):
            return index_values(affine, coords, tuple(reads))
        case Cast(dtype, arg):
            return _cast(scalar_values(arg, reads, coords), dtype)
        case Select(cond, a, b):
            chosen, x, y = (scalar_values(part, reads, coords) for part in (cond, a, b))
            return np.where(chosen, x, y)
        case Apply(fn, args):
            with np.errstate(all="ignore"):
                return _apply(fn, [scalar_values(a, reads, coords) for a in args])


def _trunc_div(a: Array, b: Array) -> Array:
    if np.issubdtype(a.dtype, np.floating):
        return np.asarray(a / b)
    safe = np.where(b == 0, 1, b)
    with np.errstate(over="ignore"):  # INT_MIN / -1 wraps, as every other integer result does
        floor = a // safe
    # from floor to truncation without np.abs, which has no value for the most negative integer
    inexact_negative = (floor * safe != a) & ((a < 0) != (safe < 0))
    return np.asarray(np.where(b == 0, 0, floor + inexact_negative).astype(a.dtype))


def _erf(x: Array) -> Array:
    from scipy.special import erf

    return np.asarray(erf(x)).astype(x.dtype)


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype))


_UNARY: dict[Fn, Any] = {
    Fn.NEG: np.negative, Fn.ABS: np.abs, Fn.SIGN: np.sign, Fn.EXP: np.exp, Fn.LOG: np.log,
    Fn.SQRT: np.sqrt, Fn.RSQRT: lambda x: (1 / np.sqrt(x)).astype(x.dtype),
    Fn.RECIPROCAL: lambda x: (1 / x).astype(x.dtype), Fn.SIN: np.sin, Fn.COS: np.cos,
    Fn.TAN: np.tan, Fn.ASIN: np.arcsin, Fn.ACOS: np.arccos, Fn.ATAN: np.arctan,
    Fn.SINH: np.sinh, Fn.COSH: np.cosh, Fn.TANH: np.tanh, Fn.ASINH: np.arcsinh,
    Fn.ACOSH: np.arccosh, Fn.ATANH: np.arctanh, Fn.ERF: _erf, Fn.SIGMOID: _sigmoid,
    Fn.FLOOR: np.floor, Fn.CEIL: np.ceil, Fn.ROUND: np.rint, Fn.TRUNC: np.trunc,
    Fn.ISNAN: np.isnan, Fn.ISINF: np.isinf, Fn.NOT: np.logical_not, Fn.BITNOT: np.invert,
}  # fmt: skip
_BINARY: dict[Fn, Any] = {
    Fn.ADD: np.add, Fn.SUB: np.subtract, Fn.MUL: np.multiply, Fn.DIV: _trunc_div,
    Fn.FLOORMOD: np.mod, Fn.FMOD: np.fmod, Fn.POW: np.power, Fn.MAX: np.maximum,
    Fn.MIN: np.minimum, Fn.EQ: np.equal, Fn.NE: np.not_equal, Fn.LT: np.less,
    Fn.LE: np.less_equal, Fn.GT: np.greater, Fn.GE: np.greater_equal, Fn.AND: np.logical_and,
    Fn.OR: np.logical_or, Fn.XOR: np.logical_xor, Fn.BITAND: np.bitwise_and,
    Fn.BITOR: np.bitwise_or, Fn.BITXOR: np.bitwise_xor, Fn.SHL: np.left_shift,
    Fn.SHR: np.right_shift,
}  # fmt: skip


def _apply(fn: Fn, args: list[Array]) -> Array:
    if fn in _UNARY:
        return np.asarray(_UNARY[fn](args[0]))
    result = args[0]
    for arg in args[1:]:
        result = _BINARY[fn](result, arg)
    return np.asarray(result)
