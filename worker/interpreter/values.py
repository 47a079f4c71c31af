"""Arithmetic as the C kernels do it: the same bits, whatever numpy would do.

A value of F16 is a float32 that F16 can represent and is rounded after every function; BF16 and
narrower floats are rounded where they are cast or stored.  Integers wrap, division by zero gives 0,
shifts by the width or more push every bit out.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.ir import bits
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce
from worker.compiler.ir.scalar import Fn
from worker.compiler.ir.scalar_type import YIELDS_BOOL

Array: TypeAlias = "npt.NDArray[Any]"

_LIBM = {
    Fn.EXP: "exp", Fn.LOG: "log", Fn.SIN: "sin", Fn.COS: "cos", Fn.TAN: "tan", Fn.ASIN: "asin",
    Fn.ACOS: "acos", Fn.ATAN: "atan", Fn.SINH: "sinh", Fn.COSH: "cosh", Fn.TANH: "tanh",
    Fn.ASINH: "asinh", Fn.ACOSH: "acosh", Fn.ATANH: "atanh", Fn.ERF: "erf", Fn.POW: "pow",
}  # fmt: skip
"""numpy has vectorised forms of its own for some of these, whose last bits differ."""
_EXACT: dict[Fn, np.ufunc] = {
    Fn.SQRT: np.sqrt, Fn.FLOOR: np.floor, Fn.CEIL: np.ceil, Fn.ROUND: np.rint, Fn.TRUNC: np.trunc,
    Fn.ABS: np.abs, Fn.NEG: np.negative, Fn.ADD: np.add, Fn.SUB: np.subtract, Fn.MUL: np.multiply,
    Fn.DIV: np.divide, Fn.FMOD: np.fmod,
}  # fmt: skip
_COMPARE: dict[Fn, np.ufunc] = {
    Fn.EQ: np.equal, Fn.NE: np.not_equal, Fn.LT: np.less, Fn.LE: np.less_equal, Fn.GT: np.greater,
    Fn.GE: np.greater_equal,
}  # fmt: skip
_BITS: dict[Fn, np.ufunc] = {
    Fn.AND: np.bitwise_and, Fn.OR: np.bitwise_or, Fn.XOR: np.bitwise_xor,
    Fn.BITAND: np.bitwise_and, Fn.BITOR: np.bitwise_or, Fn.BITXOR: np.bitwise_xor,
}  # fmt: skip
_OF_BOOL: dict[Fn, np.ufunc] = {
    Fn.ADD: np.bitwise_or, Fn.MAX: np.bitwise_or, Fn.MUL: np.bitwise_and, Fn.MIN: np.bitwise_and,
    Fn.SUB: np.bitwise_xor,
}  # fmt: skip
REDUCING = {Reduce.ADD: Fn.ADD, Reduce.MUL: Fn.MUL, Reduce.MAX: Fn.MAX, Reduce.MIN: Fn.MIN}


def held(dtype: DType) -> np.dtype[Any]:
    """In which values of an element type are held."""
    if dtype is DType.BOOL:
        return np.dtype(np.uint8)
    return np.dtype(np.float32) if _is_small_float(dtype) else dtype.numpy


def stored(dtype: DType) -> np.dtype[Any]:
    """In which elements lie in memory."""
    return np.dtype(np.uint8) if dtype is DType.BOOL else dtype.numpy


def _is_small_float(dtype: DType) -> bool:
    return dtype in (DType.F16, DType.BF16) or dtype.is_narrow_float


def load(elements: Array, dtype: DType) -> Array:
    """Values of stored elements."""
    if _is_small_float(dtype):
        return np.asarray(bits.load(elements, dtype)).astype(np.float32)
    return elements


def convert(values: Array, source: DType, target: DType) -> Array:
    """Explicit conversion: float to integer truncates and saturates, integers wrap."""
    with np.errstate(all="ignore"):
        if source is target:
            return values
        if target is DType.BOOL:
            return np.asarray(values != 0).astype(np.uint8)
        if _is_small_float(target):
            return load(store(values, source, target), target)
        if target.is_float:
            return values.astype(held(target))
        if source.is_float:
            return _saturated(values, target)
        if target.is_narrow_int:
            return bits.wrapped(values, target)
        return values.astype(held(target))


def store(values: Array, source: DType, target: DType) -> Array:
    """Elements to write for values: floats round to nearest even, integers wrap."""
    with np.errstate(all="ignore"):
        if target is DType.F16:
            wide = values if source is DType.F64 else values.astype(np.float32)
            return wide.astype(np.float16)
        if _is_small_float(target):
            return np.asarray(bits.store(values.astype(np.float32), target))
    return convert(values, source, target)


def _saturated(values: Array, target: DType) -> Array:
    least, most = (int(r.identity(target)) for r in (Reduce.MAX, Reduce.MIN))
    wide = values.astype(np.float64)
    clean = np.where(np.isnan(wide), 0.0, np.trunc(wide))
    low, high = clean <= float(least), clean >= float(most)
    middle = np.where(low | high, 0.0, clean).astype(held(target))
    bounds = np.array([least, most], dtype=held(target))
    return np.where(low, bounds[0], np.where(high, bounds[1], middle))


def select(cond: Array, yes: Array, no: Array) -> Array:
    """`yes` where `cond`, else `no`."""
    return np.where(cond != 0, yes, no)


def apply(fn: Fn, dtype: DType, *args: Array) -> Array:
    """One function on values of one type."""
    with np.errstate(all="ignore"):
        found = np.asarray(_exactly(fn, dtype, *args))
    if fn in YIELDS_BOOL:
        return found.astype(np.uint8)
    found = found.astype(held(dtype), copy=False)
    if dtype is DType.F16:
        return convert(found, DType.F32, DType.F16)
    return found


def _exactly(fn: Fn, dtype: DType, *args: Array) -> Array:
    a, b = args[0], args[-1]
    if fn is Fn.ISNAN:
        return a != a if dtype.is_float else np.zeros_like(a)
    if fn is Fn.ISINF:
        return np.isinf(a) if dtype.is_float else np.zeros_like(a)
    if fn is Fn.NOT or (fn is Fn.BITNOT and dtype is DType.BOOL):
        return np.asarray(a == 0)
    if fn is Fn.BITNOT:
        return np.invert(a)
    if fn in _COMPARE:
        return np.asarray(_COMPARE[fn](a, b))
    if fn in _BITS:
        return np.asarray(_BITS[fn](a, b))
    if dtype is DType.BOOL and fn in _OF_BOOL:
        return np.asarray(_OF_BOOL[fn](a, b))
    return _of_floats(fn, *args) if dtype.is_float else _of_integers(fn, dtype, *args)


def _of_floats(fn: Fn, *args: Array) -> Array:
    a, b = args[0], args[-1]
    if fn in _EXACT:
        return np.asarray(_EXACT[fn](*args))
    if fn in _LIBM:
        return _by_libm(_LIBM[fn], *args)
    one = a.dtype.type(1)
    match fn:
        case Fn.RECIPROCAL:
            return np.asarray(one / a)
        case Fn.RSQRT:
            return np.asarray(one / np.sqrt(a))
        case Fn.MAX:
            return np.where((a > b) | (a != a), a, b)
        case Fn.MIN:
            return np.where((a < b) | (a != a), a, b)
        case Fn.SIGN:
            return np.where(a > 0, one, np.where(a < 0, -one, np.where(a == 0, one * 0, a)))
        case Fn.SIGMOID:
            small = _by_libm("exp", -np.abs(a))
            return np.asarray(
                np.where(a >= 0, one, small) / (one + small) + np.where(a != a, a, one * 0)
            )
        case Fn.FLOORMOD:
            rest = np.fmod(a, b)
            moved = np.where((b < 0) != (rest < 0), rest + b, rest)
            return np.where(rest != 0, moved, np.where(b == 0, rest, np.copysign(one * 0, b)))
    raise ValueError(f"{fn} of floats")


def _of_integers(fn: Fn, dtype: DType, *args: Array) -> Array:
    a, b = args[0], args[-1]
    zero = np.zeros_like(a)
    match fn:
        case Fn.FLOOR | Fn.CEIL | Fn.ROUND | Fn.TRUNC:
            return a
        case Fn.ADD:
            return a + b
        case Fn.SUB:
            return a - b
        case Fn.MUL:
            return a * b
        case Fn.NEG:
            return zero - a
        case Fn.MAX:
            return np.where(a > b, a, b)
        case Fn.MIN:
            return np.where(a < b, a, b)
        case Fn.ABS:
            return np.where(a > 0, a, zero - a)
        case Fn.SIGN:
            return np.sign(a)
        case Fn.DIV:
            return _divided(a, b, dtype)
        case Fn.RECIPROCAL:
            return _divided(np.ones_like(a), a, dtype)
        case Fn.FMOD:
            return _rest(a, b, dtype)
        case Fn.FLOORMOD:
            rest = _rest(a, b, dtype)
            return np.where((rest != 0) & ((rest >= 1) != (b >= 1)), rest + b, rest)
        case Fn.POW:
            return _power(a, b)
        case Fn.SHL | Fn.SHR:
            return _shifted(fn, a, b, dtype)
    wide = apply(fn, DType.F64, *(arg.astype(np.float64) for arg in args))
    return convert(wide, DType.F64, dtype)


def _divided(a: Array, b: Array, dtype: DType) -> Array:
    """Towards zero; by zero 0."""
    by_minus_one = (b == -1) if dtype.is_signed else np.zeros(b.shape, dtype=np.bool_)
    safe = np.where((b == 0) | by_minus_one, np.ones_like(b), b)
    floor = a // safe
    found = floor + ((floor * safe != a) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, np.zeros_like(a), np.where(by_minus_one, np.zeros_like(a) - a, found))


def _rest(a: Array, b: Array, dtype: DType) -> Array:
    trivial = (b == 0) | ((b == -1) if dtype.is_signed else False)
    safe = np.where(trivial, np.ones_like(b), b)
    return np.where(trivial, np.zeros_like(a), a - _divided(a, safe, dtype) * safe)


def _power(a: Array, b: Array) -> Array:
    a, b = np.broadcast_arrays(a, b)
    result, base, left = np.ones_like(a), a.copy(), b.copy()
    while np.any(left >= 1):
        result = np.where((left >= 1) & (left % 2 == 1), result * base, result)
        base = base * base
        left = np.where(left >= 1, left // 2, left)
    one = np.ones_like(a)
    negative = np.where(
        a == 1, one, np.where(a == one * 0 - one, np.where(b & 1 == 1, a, one), one * 0)
    )
    return np.where(b < 0, negative, result)


def _shifted(fn: Fn, a: Array, b: Array, dtype: DType) -> Array:
    width = 8 * a.dtype.itemsize
    inside = (b >= 0) & (b < width)
    by = np.where(inside, b, np.zeros_like(b))
    if fn is Fn.SHL:
        return np.where(inside, np.left_shift(a, by), np.zeros_like(a))
    out = np.zeros_like(a)
    if dtype.is_signed:
        out = np.where(a >= 0, out, out - np.ones_like(a))
    return np.where(inside, np.right_shift(a, by), out)


@cache
def _function(name: str, size: int, count: int) -> Callable[..., Any]:
    """A function of the C library, elementwise."""
    library = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
    kind = ctypes.c_float if size == 4 else ctypes.c_double
    found = getattr(library, name + ("f" if size == 4 else ""))
    found.restype, found.argtypes = kind, (kind,) * count
    made: Callable[..., Any] = np.frompyfunc(found, count, 1)
    return made


def _by_libm(name: str, *args: Array) -> Array:
    call = _function(name, args[0].dtype.itemsize, len(args))
    if len(args) > 1:
        return np.asarray(call(*args)).astype(args[0].dtype)
    whole = np.ascontiguousarray(args[0])
    kinds, where = np.unique(whole.view(f"u{whole.dtype.itemsize}"), return_inverse=True)
    values = np.asarray(call(kinds.view(whole.dtype))).astype(whole.dtype)
    return np.asarray(values[where.reshape(whole.shape)])


def fused(a: Array, b: Array, total: Array) -> Array:
    """a * b + total with one rounding."""
    if a.dtype == np.float64:
        return np.asarray(_function("fma", 8, 3)(a, b, total)).astype(np.float64)
    # Exact in f64 but for the sum, which is rounded to odd: rounding that to f32 is the right one.
    product = a.astype(np.float64) * b.astype(np.float64)
    wide = total.astype(np.float64)
    near = product + wide
    other = near - product
    error = (product - (near - other)) + (wide - other)
    is_even = np.ascontiguousarray(near).view(np.int64).reshape(near.shape) & 1 == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    moves = is_even & (error != 0) & np.isfinite(near) & np.isfinite(error)
    return np.where(moves, np.nextafter(near, toward), near).astype(np.float32)
