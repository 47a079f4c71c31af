"""Judging outputs against a reference, with tolerances stated per element type.

The measure for floats is max |error| / max |reference| per output: independent code generators
agree within 3e-7 .. 2e-6 in fp32 by this measure, so 1e-5 separates a rounding difference from a
wrong halo.  Errors of many roundings add like a random walk, so the tolerance grows with the square
root of the depth (operators in a row) beyond `_FREE_DEPTH`.

| coarsest type in the model | tolerance at depth <= 64 | why |
|---|---|---|
| f64 | 1e-12 | |
| f32 | 1e-5 | 7-libraries.md, fp16/bf16 trap |
| f16 | 1e-2 | unit roundoff 4.9e-4; references keep some intermediates in f32 |
| bf16 | 6e-2 | unit roundoff 3.9e-3 |
| i8, u8 | 5e-2 | a value on a rounding boundary may land one step (1/127) apart, then propagate |

Integer outputs must be equal; 8-bit ones may differ by one quantisation step.  NaN must stand where
the reference has NaN, and infinities must have the same sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite, sqrt

import numpy as np

from worker.compiler.ir.bits import held_type, load
from worker.compiler.ir.dtype import DType
from worker.compiler.package.executable import Array

_TOLERANCE = {
    DType.F64: 1e-12, DType.F32: 1e-5, DType.F16: 1e-2, DType.BF16: 6e-2, DType.I8: 5e-2,
    DType.U8: 5e-2,
}  # fmt: skip
_COARSE_FIRST = (DType.BF16, DType.U8, DType.I8, DType.F16, DType.F32, DType.F64)
_FREE_DEPTH = 64
_BLOCK = 1 << 15
"""Elements compared at a time: their doubles are 256 KiB each.  Tensors of 63 million took 20 s
in whole temporaries."""
_WIDEST = 8
"""Bytes of the widest integers; a difference of two may need one bit more."""


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """How one output compares with its reference."""

    name: str
    dtype: str
    max_abs_err: float
    max_rel_err: float
    """max |error| / max |reference|; `inf` where NaN, infinity or shape disagree."""
    tolerance: float
    """Bound of `max_rel_err` for floats, of `max_abs_err` for integers."""
    passed: bool
    worst_index: tuple[int, ...]
    """Where the largest error is."""
    reason: str
    """Empty when passed."""

    @property
    def is_relative(self) -> bool:
        """Whether the tolerance bounds `max_rel_err`."""
        return self.dtype.startswith("float") or not isfinite(self.max_rel_err)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All outputs of a model."""

    outputs: tuple[OutputComparison, ...]

    @property
    def passed(self) -> bool:
        return all(output.passed for output in self.outputs)

    @property
    def max_abs_err(self) -> float:
        return max((output.max_abs_err for output in self.outputs), default=0.0)

    @property
    def max_rel_err(self) -> float:
        return max((output.max_rel_err for output in self.outputs), default=0.0)


def coarsest(dtypes: Iterable[DType]) -> DType:
    """The type whose rounding dominates a model that uses `dtypes`; F32 without floats."""
    present = set(dtypes)
    return next((d for d in _COARSE_FIRST if d in present), DType.F32)


def tolerance(precision: DType, depth: int = 1) -> float:
    """Bound of max |error| / max |reference| for floats of a model.

    `precision` is the model's coarsest type, `depth` the number of operators in a row.
    """
    base = _TOLERANCE.get(precision, _TOLERANCE[DType.F32])
    return base * max(1.0, sqrt(depth / _FREE_DEPTH))


def compare_outputs(
    outputs: Mapping[str, Array],
    reference: Mapping[str, Array],
    bound: float,
    dtypes: Mapping[str, DType] | None = None,
) -> Comparison:
    """Compare every output of `reference` with the one of the same name.

    `bound` is the tolerance of floats, in the measure above.  `dtypes` names outputs whose arrays
    may hold bits (of bf16, say).  A missing output fails.
    """
    rows: list[OutputComparison] = []
    for name, want in reference.items():
        if name not in outputs:
            rows.append(_failed(name, str(np.asarray(want).dtype), "it is missing"))
            continue
        have = np.asarray(outputs[name])
        dtype = None if dtypes is None else dtypes.get(name)
        rows.append(
            _compare(
                name, plain_numbers(have, dtype), plain_numbers(np.asarray(want), dtype), bound
            )
        )
    return Comparison(tuple(rows))


def plain_numbers(value: Array, dtype: DType | None) -> Array:
    """The numbers: of a type that numpy has not, from its bits or ml_dtypes' array."""
    if dtype is not None and held_type(dtype) != dtype.numpy and value.dtype == dtype.numpy:
        return load(value, dtype)
    is_foreign = value.dtype.kind == "V"  # one of ml_dtypes
    return value.astype(np.float32) if is_foreign else value


def _failed(name: str, dtype: str, reason: str) -> OutputComparison:
    return OutputComparison(name, dtype, inf, inf, 0.0, False, (), reason)


def _compare(name: str, have: Array, want: Array, bound: float) -> OutputComparison:
    kind = str(want.dtype)
    if have.shape != want.shape:
        return _failed(name, kind, f"shape {have.shape} instead of {want.shape}")
    if want.size == 0:
        return OutputComparison(name, kind, 0.0, 0.0, bound, True, (), "")
    if want.dtype.kind not in "fiub":
        same = bool(np.array_equal(have, want))
        return (
            OutputComparison(name, kind, 0.0, 0.0, 0.0, True, (), "")
            if same
            else _failed(name, kind, "values differ")
        )
    if want.dtype.kind == "f":
        return _compare_floats(name, kind, have, want, bound)
    return _compare_integers(name, kind, have, want)


def in_blocks(a: Array, b: Array) -> Iterator[tuple[int, Array, Array]]:
    """Both flat, by blocks that stay in a core's cache while they are looked at: (start, a, b)."""
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    for start in range(0, flat_a.size, _BLOCK):
        yield start, flat_a[start : start + _BLOCK], flat_b[start : start + _BLOCK]


def _position(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(flat, shape)))


def _unbounded(block: Array) -> Array:
    """In double precision; the largest finite values of its type are infinite.

    Masks are written either way: ONNX's Attention says minus infinity, ONNX Runtime's kernel puts
    the lowest finite value.  As a finite one it would be the scale that all others are held to.
    """
    found = block.astype(np.float64)
    if block.dtype.kind == "f" and block.size:
        most = float(np.finfo(block.dtype).max)
        is_most = np.abs(found) >= most
        if is_most.any():
            found[is_most] = np.copysign(inf, found[is_most])
    return found


def _compare_floats(
    name: str, kind: str, have: Array, want: Array, bound: float
) -> OutputComparison:
    num_odd, first_odd = 0, 0
    worst, at, scale = 0.0, 0, 0.0
    for start, block_a, block_b in in_blocks(have, want):
        a, b = (_unbounded(block) for block in (block_a, block_b))
        finite = np.isfinite(b)
        if not (finite.all() and np.isfinite(a).all()):
            odd = (np.isnan(a) != np.isnan(b)) | (np.isinf(a) != np.isinf(b))
            odd |= np.isinf(a) & np.isinf(b) & (a != b)
            if odd.any():
                first_odd = first_odd if num_odd else start + int(np.argmax(odd))
                num_odd += int(odd.sum())
            a, b = np.where(finite & ~odd, a, 0.0), np.where(finite & ~odd, b, 0.0)
        error = np.abs(a - b)
        most = int(np.argmax(error))
        if error[most] > worst:
            worst, at = float(error[most]), start + most
        scale = max(scale, float(np.max(np.abs(b))))
    if num_odd:
        where = _position(first_odd, want.shape)
        return OutputComparison(
            name, kind, inf, inf, bound, False, where,
            f"{num_odd} elements are NaN or infinite on one side only, the first at"
            f" {where}: {float(have[where])} instead of {float(want[where])}",
        )  # fmt: skip
    relative = worst / scale if scale > 0 else (0.0 if worst == 0 else inf)
    passed = relative <= bound
    reason = (
        ""
        if passed
        else (
            f"max error {worst:.3g} is {relative:.3g} of the largest value, {bound:.3g} is allowed"
        )
    )
    where = _position(at, want.shape)
    return OutputComparison(name, kind, worst, relative, bound, passed, where, reason)


def _compare_integers(name: str, kind: str, have: Array, want: Array) -> OutputComparison:
    allowed = 1 if want.dtype.itemsize == 1 and want.dtype.kind in "iu" else 0
    wide = np.int64 if want.dtype.itemsize < _WIDEST else object  # differences need a bit more
    worst, at, scale = 0, 0, 0
    for start, a, b in in_blocks(have, want):
        scale = max(scale, -int(b.min()), int(b.max()))
        apart = np.flatnonzero(a != b)
        if apart.size:
            error = np.abs(a[apart].astype(wide) - b[apart].astype(wide))
            most = int(np.argmax(error))
            if error[most] > worst:
                worst, at = int(error[most]), start + int(apart[most])
    passed = worst <= allowed
    reason = "" if passed else f"max difference {worst:g}, {allowed} is allowed"
    return OutputComparison(
        name, kind, float(worst), worst / scale if scale else (0.0 if worst == 0 else inf),
        float(allowed), passed, _position(at, want.shape), reason,
    )  # fmt: skip
