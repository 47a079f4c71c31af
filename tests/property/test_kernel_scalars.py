"""Every scalar function and conversion in every dtype, through compiled kernels, against numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from kernel_toys import elementwise_graph, machine, run_units, stacked_program, whole_tile

from worker.compiler.ir.bits import bf16_to_f32, f32_to_bf16, wrapped
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Read, Scalar, Select
from worker.compiler.ir.scalar_type import YIELDS_BOOL

FLOATS = (DType.F64, DType.F32, DType.F16, DType.BF16)
INTS = (DType.I64, DType.I32, DType.I16, DType.I8, DType.U64, DType.U32, DType.U16, DType.U8)
NARROW = tuple(dtype for dtype in DType if dtype.is_narrow_float or dtype.is_narrow_int)
LOGIC = (Fn.AND, Fn.OR, Fn.XOR, Fn.NOT)
BITS = (Fn.BITAND, Fn.BITOR, Fn.BITXOR, Fn.BITNOT, Fn.SHL, Fn.SHR)
COMPARE = (Fn.EQ, Fn.NE, Fn.LT, Fn.LE, Fn.GT, Fn.GE)
ARITHMETIC = (Fn.ADD, Fn.SUB, Fn.MUL, Fn.DIV, Fn.FLOORMOD, Fn.FMOD, Fn.MAX, Fn.MIN, Fn.POW)
UNARY = frozenset(
    {Fn.NEG, Fn.ABS, Fn.SIGN, Fn.NOT, Fn.BITNOT, Fn.ISNAN, Fn.ISINF, Fn.EXP, Fn.LOG, Fn.SQRT,
     Fn.RSQRT, Fn.RECIPROCAL, Fn.SIN, Fn.COS, Fn.TAN, Fn.ASIN, Fn.ACOS, Fn.ATAN, Fn.SINH, Fn.COSH,
     Fn.TANH, Fn.ASINH, Fn.ACOSH, Fn.ATANH, Fn.ERF, Fn.SIGMOID, Fn.FLOOR, Fn.CEIL, Fn.ROUND,
     Fn.TRUNC}
)  # fmt: skip
EXACT = frozenset(
    {Fn.ADD, Fn.SUB, Fn.MUL, Fn.DIV, Fn.MAX, Fn.MIN, Fn.NEG, Fn.ABS, Fn.SIGN, Fn.SQRT, Fn.FLOOR,
     Fn.CEIL, Fn.ROUND, Fn.TRUNC, Fn.RECIPROCAL, Fn.FMOD, Fn.FLOORMOD}
)  # fmt: skip
ULP = {DType.F64: 2**-52, DType.F32: 2**-23, DType.F16: 2**-10, DType.BF16: 2**-7}


def _values(dtype: DType, which: int) -> npt.NDArray[np.generic]:
    """Awkward values first, then random ones; shapes [97]."""
    rng = np.random.default_rng(which)
    if dtype.is_narrow_float or dtype.is_narrow_int:
        every = rng.permutation(256)[:97] % (1 << dtype.bits)
        return every.astype(np.uint8) if dtype.is_narrow_float else wrapped(every, dtype)
    if dtype.is_float:
        odd = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.25, np.inf, -np.inf, np.nan]
        odd += [100.0, 1e-3, -1e-3, 7.0, -7.0, 65504.0, 1e30, 464.0, 465.0, -61440.0, 1e-5, 2.5]
        flat = np.concatenate([np.roll(odd, 7 * which), rng.standard_normal(72) * 3])
        with np.errstate(over="ignore"):
            if dtype is DType.BF16:
                return f32_to_bf16(flat.astype(np.float32))
            return flat.astype(dtype.numpy)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, 97).astype(bool)
    info = np.iinfo(dtype.numpy)
    odd = [0, 1, 2, 3, 7, info.max, info.max - 1, info.min + 1, info.min // 2, info.max // 3]
    small = rng.integers(max(info.min, -9), 10, 87)
    parts = (np.array(np.roll(np.array(odd, object), 3 * which), dtype.numpy), small)
    return np.concatenate([part.astype(dtype.numpy) for part in parts])


def _legal(fn: Fn, dtype: DType) -> bool:
    if dtype is DType.BOOL:
        return fn in (*LOGIC, Fn.EQ, Fn.NE, Fn.MAX, Fn.MIN, Fn.ADD, Fn.MUL)
    if dtype.is_float:
        return fn not in (*LOGIC, *BITS)
    return fn in (*COMPARE, *ARITHMETIC, *BITS, Fn.NEG, Fn.ABS, Fn.SIGN)


def _body(fn: Fn, dtype: DType) -> Scalar:
    """fn on operands cast to `dtype`, so that small types compute in their own width."""
    args: list[Scalar] = [Cast(dtype, Read(k)) for k in range(1 if fn in UNARY else 2)]
    if fn is Fn.POW and not dtype.is_float:  # negative integer exponents have no integer result
        args[1] = Apply(Fn.BITAND, (args[1], Const(7, dtype)))
    return Apply(fn, tuple(args))


def _widen(array: npt.NDArray[np.generic], dtype: DType) -> npt.NDArray[np.generic]:
    return bf16_to_f32(array.astype(np.uint16)) if dtype is DType.BF16 else array


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, DType.BOOL], ids=str)
def test_every_function_matches_numpy(dtype: DType) -> None:
    cases = []
    functions = [fn for fn in Fn if _legal(fn, dtype)]
    mach = machine()
    for fn in functions:
        count = 1 if fn in UNARY else 2
        out = DType.BOOL if fn in YIELDS_BOOL else dtype
        graph = elementwise_graph(_body(fn, dtype), (dtype,) * count, out, (97,))
        inputs = {f"x{k}": _values(dtype, k) for k in range(count)}
        schedule = whole_tile(graph)
        cases.append((schedule, stacked_program(schedule, mach), inputs))
    results = run_units(cases, mach)
    assert len(results) == len(functions) > 5
    for fn, (schedule, _, inputs), result in zip(functions, cases, results, strict=True):
        with np.errstate(all="ignore"):
            want = evaluate(schedule.graph, inputs)["z"]
        have = result["z"]
        if fn in YIELDS_BOOL or not dtype.is_float:
            np.testing.assert_array_equal(have, want, err_msg=str(fn))
        else:
            steps = 0 if fn in EXACT else 4
            np.testing.assert_allclose(
                _widen(have, dtype).astype(np.float64), _widen(want, dtype).astype(np.float64),
                rtol=steps * ULP[dtype], atol=steps * ULP[dtype] * 1e-3, err_msg=str(fn),
            )  # fmt: skip


def test_every_conversion_matches_numpy() -> None:
    mach = machine()
    wide = [dtype for dtype in DType if dtype not in NARROW]
    pairs = [(a, b) for a in wide for b in wide]
    pairs += [(a, b) for n in NARROW for k in (DType.F32, DType.I32) for a, b in ((n, k), (k, n))]
    cases = []
    for source, target in pairs:
        graph = elementwise_graph(Cast(target, Read(0)), (source,), target, (97,))
        schedule = whole_tile(graph)
        inputs = {"x0": _values(source, 0)}
        cases.append((schedule, stacked_program(schedule, mach), inputs))
    for (source, target), (schedule, _, inputs), result in zip(
        pairs, cases, run_units(cases, mach), strict=True
    ):
        with np.errstate(all="ignore"):
            want = evaluate(schedule.graph, inputs)["z"]
        np.testing.assert_array_equal(result["z"], want, err_msg=f"{source} -> {target}")


def test_select_and_shared_subexpressions() -> None:
    x = Read(0)
    square = Apply(Fn.MUL, (x, x))
    body = Select(
        Apply(Fn.GT, (x, Const(0.25, DType.F32))),
        Apply(Fn.ADD, (square, square)),
        Apply(Fn.SUB, (square, Const(1.0, DType.F32))),
    )
    graph = elementwise_graph(body, (DType.F32,), DType.F32, (5, 7, 11))
    mach = machine()
    schedule = whole_tile(graph)
    x0 = np.random.default_rng(3).standard_normal((5, 7, 11), dtype=np.float32)
    result = run_units([(schedule, stacked_program(schedule, mach), {"x0": x0})], mach)[0]
    want = np.where(x0 > 0.25, x0 * x0 + x0 * x0, x0 * x0 - 1).astype(np.float32)
    np.testing.assert_array_equal(result["z"], want)
