"""Scalar bodies as C statements, with the meaning `ir.evaluate` gives them.

A value of dtype F16 or BF16 is held as a float that is exactly representable in F16 (F16 rounds
after every function, as numpy does) or was rounded when cast (BF16, and floats of 8 and 4 bits).
Integers of 4 and 2 bits are held in a byte and wrap when cast or stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from worker.compiler.codegen.ctext import VALUE_TYPE, Writer, literal
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Index, Read, Scalar, Select
from worker.compiler.ir.scalar_type import YIELDS_BOOL, scalar_type

_OPERATOR = {
    Fn.EQ: "==", Fn.NE: "!=", Fn.LT: "<", Fn.LE: "<=", Fn.GT: ">", Fn.GE: ">=",
    Fn.AND: "&", Fn.OR: "|", Fn.XOR: "^", Fn.BITAND: "&", Fn.BITOR: "|", Fn.BITXOR: "^",
}  # fmt: skip
_FLOAT_OPERATOR = {Fn.ADD: "+", Fn.SUB: "-", Fn.MUL: "*", Fn.DIV: "/"}
_LIBM = {
    Fn.EXP: "exp", Fn.LOG: "log", Fn.SQRT: "sqrt", Fn.SIN: "sin", Fn.COS: "cos", Fn.TAN: "tan",
    Fn.ASIN: "asin", Fn.ACOS: "acos", Fn.ATAN: "atan", Fn.SINH: "sinh", Fn.COSH: "cosh",
    Fn.TANH: "tanh", Fn.ASINH: "asinh", Fn.ACOSH: "acosh", Fn.ATANH: "atanh", Fn.ERF: "erf",
    Fn.FLOOR: "floor", Fn.CEIL: "ceil", Fn.ROUND: "rint", Fn.TRUNC: "trunc", Fn.POW: "pow",
    Fn.FMOD: "fmod",
}  # fmt: skip
_ROUNDING = (Fn.FLOOR, Fn.CEIL, Fn.ROUND, Fn.TRUNC)
_BOOL_AS = {
    Fn.ADD: "|", Fn.MAX: "|", Fn.MUL: "&", Fn.MIN: "&", Fn.SUB: "^",
}  # fmt: skip


def suffix(dtype: DType) -> str:
    """Name part of header functions that work on values of `dtype`."""
    match dtype:
        case DType.F16 | DType.BF16:
            return "f32"
        case DType.BOOL:
            return "u8"
        case _ if dtype.is_narrow_float:
            return "f32"
        case _:
            return str(dtype)


def load(element: str, dtype: DType) -> str:
    """The value of a stored element."""
    if dtype in (DType.F16, DType.BF16) or dtype.is_narrow_float:
        return f"tw_f32_of_{dtype}({element})"
    return element


def convert(value: str, source: DType, target: DType) -> str:
    """Explicit conversion of a value: float -> int truncates and saturates, ints wrap."""
    if source is target:
        return value
    match target:
        case DType.BOOL:
            return f"(uint8_t)({value} != 0)"
        case DType.F32 | DType.F64:
            return (
                value
                if VALUE_TYPE[source] == VALUE_TYPE[target]
                else (f"({VALUE_TYPE[target]}){value}")
            )
        case DType.F16:
            wide = "_f64" if source is DType.F64 else ""
            return f"tw_round_f16{wide}({_as_float(value, source)})"
        case DType.BF16:
            return f"tw_round_bf16((float){value})"
        case _ if target.is_narrow_float:
            return f"tw_f32_of_{target}({store(value, source, target)})"
        case _:
            if source.is_float:
                return f"tw_{target}_of_{suffix(source)}({value})"
            if target.is_narrow_int:
                return f"tw_wrap_{target}((uint64_t){value})"
            return f"({VALUE_TYPE[target]}){value}"


def store(value: str, source: DType, target: DType) -> str:
    """The element to write for a value: rounds to nearest even, ints wrap."""
    match target:
        case DType.F16:
            wide = "f64" if source is DType.F64 else "f32"
            return f"tw_f16_of_{wide}({_as_float(value, source)})"
        case DType.BF16:
            return f"tw_bf16_of_f32((float){value})"
        case _ if target.is_narrow_float:
            return f"tw_{target}_of_f32((float){value})"
        case _:
            return convert(value, source, target)


def _as_float(value: str, source: DType) -> str:
    return value if source.is_float else f"(float){value}"


def combine(reduce: Reduce, dtype: DType, total: str, value: str) -> str:
    """`total reduce value` in `dtype`."""
    fn = {
        Reduce.ADD: Fn.ADD, Reduce.MUL: Fn.MUL, Reduce.MAX: Fn.MAX, Reduce.MIN: Fn.MIN,
    }[reduce]  # fmt: skip
    return _apply(fn, dtype, (total, value))


def emit_scalar(
    writer: Writer,
    expr: Scalar,
    read: Callable[[int], str],
    read_types: tuple[DType, ...],
    index: Callable[[Affine], str],
) -> str:
    """Write the statements that compute `expr`; give the name or literal holding its value.

    Equal sub-expressions are computed once.  `read(slot)` names the loaded value of a slot (of type
    `promoted(read_types[slot])`); `index` gives the text of an int64 expression of the coordinates.
    Cost: linear in the number of distinct sub-expressions.
    """
    done: dict[Scalar, str] = {}

    def value(node: Scalar) -> str:
        known = done.get(node)
        if known is not None:
            return known
        match node:
            case Read(slot):
                text = read(slot)
            case Const(number, dtype):
                text = literal(number, dtype)
            case Index(affine):
                text = _name(writer, DType.I64, index(affine))
            case Cast(dtype, arg):
                source = scalar_type(arg, read_types)
                text = value(arg)
                if source is not dtype:
                    text = _name(writer, dtype, convert(text, source, dtype))
            case Select(cond, a, b):
                dtype = scalar_type(a, read_types)
                text = _name(writer, dtype, f"{value(cond)} ? {value(a)} : {value(b)}")
            case Apply(fn, args):
                kind = scalar_type(args[0], read_types)
                parts = [value(a) for a in args]
                result = DType.BOOL if fn in YIELDS_BOOL else kind
                text = parts[0] if len(parts) > 1 else _apply(fn, kind, (parts[0],))
                for part in parts[1:]:
                    text = _name(writer, result, _apply(fn, kind, (text, part)))
                if len(parts) == 1:
                    text = _name(writer, result, text)
            case _:
                assert_never(node)
        done[node] = text
        return text

    return value(expr)


def _name(writer: Writer, dtype: DType, text: str) -> str:
    name = writer.fresh("s")
    writer.line(f"const {VALUE_TYPE[dtype]} {name} = {text};")
    return name


def _apply(fn: Fn, dtype: DType, args: Sequence[str]) -> str:
    """One function on values of one dtype."""
    text = _apply_exact(fn, dtype, args)
    if dtype is DType.F16 and fn not in YIELDS_BOOL:
        return f"tw_round_f16({text})"
    return text


def _apply_exact(fn: Fn, dtype: DType, args: Sequence[str]) -> str:
    a, b = args[0], args[-1]
    kind = suffix(dtype)
    short = VALUE_TYPE[dtype]
    match fn:
        case Fn.ISNAN:
            return f"(uint8_t)({a} != {a})" if dtype.is_float else "(uint8_t)0"
        case Fn.ISINF:
            if not dtype.is_float:
                return "(uint8_t)0"
            return f"(uint8_t)(tw_abs_{kind}({a}) == ({short})INFINITY)"
        case Fn.NOT:
            return f"(uint8_t)!{a}"
        case Fn.BITNOT:
            return f"(uint8_t)!{a}" if dtype is DType.BOOL else f"({short})~{a}"
    if fn in _OPERATOR:
        result = "uint8_t" if fn in YIELDS_BOOL else short
        return f"({result})({a} {_OPERATOR[fn]} {b})"
    if dtype is DType.BOOL and fn in _BOOL_AS:
        return f"(uint8_t)({a} {_BOOL_AS[fn]} {b})"
    if dtype.is_float:
        if fn in _FLOAT_OPERATOR:
            return f"({a} {_FLOAT_OPERATOR[fn]} {b})"
        if fn is Fn.NEG:
            return f"(-{a})"
        if fn is Fn.RECIPROCAL:
            return f"(({short})1 / {a})"
        if fn in _LIBM:
            return f"{_LIBM[fn]}{'' if dtype is DType.F64 else 'f'}({', '.join(args)})"
        return f"tw_{fn}_{kind}({', '.join(args)})"
    if fn in _ROUNDING:
        return a
    if fn in _LIBM and fn not in (Fn.POW, Fn.FMOD):
        return convert(f"{_LIBM[fn]}((double){a})", DType.F64, dtype)
    if fn in (Fn.RSQRT, Fn.SIGMOID):
        return convert(f"tw_{fn}_f64((double){a})", DType.F64, dtype)
    return f"tw_{fn}_{kind}({', '.join(args)})"
