"""Tolerances from what the reference itself gets wrong.

    tolerance = max(floor, min(FACTOR * own error of the reference, ceiling))

The floor is what correct kernels may differ by without any magnification: roundings of single
operators, and of the longest sum.  The reference's own error is measured: its distance from the
same model in float64, and from a few runs whose inputs were moved by one rounding each.  Measuring
is left out when everything is within its floor: a tolerance is never lower.
Source: Higham and Mary, "A new approach to probabilistic rounding error analysis" (SIAM J. Sci.
Comput. 41, 2019): the error of a sum of n terms grows with sqrt(n) unit roundoffs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod, sqrt
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import CompilerError
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Reduce
from worker.compiler.package.verify_numerics import tolerance
from worker.report.verified_row import VerifiedRow
from worker.verification.float64 import NoFloat64
from worker.verification.reference import Float64Values

Array = npt.NDArray[Any]

FACTOR = 8.0
"""Kernels sum in another order than the reference and call other functions.  Measured, their error
is at most 2.1 times the reference's own on random nets, and up to 6.5 times in a detector."""
ROUNDINGS = 8.0
"""Unit roundoffs that a few operators in a row may differ by."""
NUM_MOVES = 3
"""Runs with moved inputs."""
_ROUNDOFF = {DType.F32: 2.0**-24, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}
_CEILING = {DType.F64: 1e-6, DType.F32: 1e-2}
_COARSE_CEILING = 1e-1
"""Of 8- and 16-bit types.  A comparison that allows more than a ceiling would prove nothing."""


def floor_of(coarsest: DType, sum_length: int) -> float:
    """What may always differ, of the largest value.

    `coarsest` is the model's type of the largest roundings, `sum_length` the terms of its longest
    sum (kept in float32 for the 16-bit types).  One step of an 8-bit type is far more than a
    rounding, and float64 has no finer type to be measured against: they keep a fixed floor.
    """
    if coarsest not in _ROUNDOFF:
        return tolerance(coarsest)
    return ROUNDINGS * _ROUNDOFF[coarsest] + sqrt(sum_length) * _ROUNDOFF[DType.F32]


def ceiling_of(coarsest: DType) -> float:
    """The largest tolerance under which a comparison still says something."""
    return _CEILING.get(coarsest, _COARSE_CEILING)


def longest_sum(graphs: Sequence[Graph]) -> int:
    """Terms of the longest sum in some graphs; 1 without any."""
    return max(
        (
            prod(axis.extent for axis in op.reduce_axes)
            for graph in graphs
            for op in graph.ops
            if op.reduce is Reduce.ADD
        ),
        default=1,
    )


@dataclass(frozen=True, slots=True)
class OwnErrors:
    """How wrong the reference is."""

    of: Mapping[str, float]
    """max |error| / max |reference|, by value."""
    method: str
    overflowing: frozenset[str] = frozenset()
    """Values with elements that are finite or not by roundings alone: a sum that leaves a format
    in one order of its terms, and not in another; or by how large the inputs are."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Of the reference, beside the one that gave its values."""

    in_float64: Callable[[], Float64Values]
    """The same values in float64, or raises."""
    moved: Callable[[int], Mapping[str, Array]]
    """With inputs moved by one rounding, by seed."""
    defined: Callable[[], Mapping[str, Array] | None] = lambda: None
    """With operators as what ONNX defines them by; None without such."""
    shrunk: Callable[[], Mapping[str, Array]] | None = None
    """On inputs that are smaller by far."""


def measure(values: Mapping[str, Array], runs: Runs, *, is_selecting: bool = False) -> OwnErrors:
    """The reference's own errors of `values`, which it gave.

    Float64, moved inputs and definitions all count: one draw of a small value may be lucky; so no
    value counts less than the middle one of all.  Where a model selects (`is_selecting`), a moved
    run may select otherwise, which is no rounding: it counts only where float64 cannot run, and
    definitions do not.  What is finite where inputs are smaller by far, and not as it is, left its
    format on the way, which kernels may do in other elements.
    """
    found: dict[str, float] = {}
    overflowing: set[str] = set()
    methods: list[str] = []
    why = "the model computes in float64 itself"
    if not any(value.dtype == np.float64 for value in values.values()):
        try:
            exact = runs.in_float64()
        except (NoFloat64, CompilerError) as error:
            why = error.message if isinstance(error, CompilerError) else str(error)
        else:
            kept = f" but for {exact.kept} nodes without it" if exact.kept else ""
            methods.append(f"against ONNX Runtime in float64{kept}")
            found = _distances(values, exact.values, overflowing)
    if not methods or not is_selecting:
        for seed in range(NUM_MOVES):
            for name, apart in _distances(values, runs.moved(seed), overflowing).items():
                found[name] = max(found.get(name, 0.0), apart)
        reason = "" if methods else f" ({why})"
        methods.append(f"by {NUM_MOVES} runs on inputs moved by one rounding{reason}")
    try:
        defined = None if is_selecting else runs.defined()
    except CompilerError:
        defined = None  # as it is, it runs
    if defined is not None:
        for name, apart in _distances(values, defined, overflowing).items():
            found[name] = max(found.get(name, 0.0), apart)
        methods.append("with operators by their definition")
    if runs.shrunk is not None:
        for name, value in runs.shrunk().items():
            here = values.get(name)
            if here is not None and _is_measurable(here) and np.shape(value) == here.shape:
                leaves = np.isfinite(_wide(np.asarray(value))) & ~np.isfinite(_wide(here))
                overflowing.update([name] if leaves.any() else [])
    middle = median([apart for apart in found.values() if apart] or [0.0])
    least = {name: max(apart, middle) for name, apart in found.items()}
    return OwnErrors(least, " and ".join(methods), frozenset(overflowing))


def _distances(
    values: Mapping[str, Array], others: Mapping[str, Array], overflowing: set[str]
) -> dict[str, float]:
    """Relative distances of floats and of 8-bit integers; odd elements do not count.

    Adds to `overflowing` the values with elements that are finite on one side only.
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        other = others.get(name)
        if other is None or not _is_measurable(value) or np.shape(other) != value.shape:
            continue
        here, there = _wide(value), _wide(np.asarray(other))
        found[name] = relative_distance(here, there)
        if overflows(here, there):
            overflowing.add(name)
    return found


def overflows(value: Array, other: Array) -> bool:
    """Whether an element of one of two runs is finite and of the other is not."""
    return bool(np.any(np.isfinite(value) != np.isfinite(other)))


def relative_distance(value: Array, other: Array) -> float:
    """max |value - other| / max |value|, both float64 and of one shape; odd elements do not
    count."""
    finite = np.isfinite(value) & np.isfinite(other)
    scale = float(np.max(np.abs(value), initial=0.0, where=np.isfinite(value)))
    apart = np.abs(np.subtract(value, other, where=finite, out=np.zeros_like(value)))
    return float(np.max(apart, initial=0.0)) / scale if scale > 0 else 0.0


def _is_measurable(value: Array) -> bool:
    kind = value.dtype
    return kind.kind == "f" or str(kind) == "bfloat16" or (kind.kind in "iu" and kind.itemsize == 1)


def _wide(value: Array) -> Array:
    return value.astype(np.float32).astype(np.float64) if value.dtype.kind == "V" else (
        value.astype(np.float64)
    )  # fmt: skip


def nudged(inputs: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Every float input moved to a neighbouring float, up or down by a seeded coin; else as is."""
    rng = np.random.default_rng(seed)
    moved: dict[str, Array] = {}
    for name, value in inputs.items():
        if value.dtype.kind == "f":
            away = np.where(rng.random(value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype)
            moved[name] = np.nextafter(value, away)
        else:
            moved[name] = value
    return moved


def shrunken(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every float input a millionth of what it is; others as they are."""
    return {
        name: (value * 2.0**-20).astype(value.dtype) if value.dtype.kind == "f" else value
        for name, value in inputs.items()
    }


def judged(
    row: VerifiedRow, own: float, coarsest: DType, *, is_overflowing: bool = False
) -> VerifiedRow:
    """A row with the tolerance that the reference's own error allows; never a lower one.

    Where that would pass the ceiling, an error between the two is nobody's: neither proof of a
    fault nor of none.  Nor is a value that is finite on one side only, where the reference itself
    `is_overflowing`.
    """
    allowed, ceiling = FACTOR * own, ceiling_of(coarsest)
    bound = max(row.tolerance, min(allowed, ceiling))
    reason = ""
    if bound < row.error <= allowed:
        reason = (
            f"the reference's own error is {own:.2g} of the largest value, so that a difference of"
            f" {row.error:.2g} shows nothing"
        )
    elif is_overflowing and not isfinite(row.error):
        reason = "whether its elements are finite depends on roundings of the reference itself"
    return row._replace(tolerance=bound, own_error=own, reason=reason)
