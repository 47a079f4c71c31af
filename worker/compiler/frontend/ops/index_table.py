"""Index maps known as tables: find the affine form, or cut them into affine runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from worker.compiler.frontend.ops.refusal import Refusal
from worker.compiler.ir.affine import Affine
from worker.compiler.rejection import ReasonCode

MAX_TABLE = 1 << 16
"""Index tables are built for dimensions up to this extent."""


def check_table(op_type: str, extent: int) -> None:
    """Refuse a dimension too long for a table."""
    if extent > MAX_TABLE:
        raise Refusal(
            ReasonCode.SIZE_LIMIT,
            f"{op_type} to {extent} elements in one dimension; the limit is {MAX_TABLE}",
        )


def fit(table: Sequence[int], index: Affine, slopes: Sequence[Fraction] = ()) -> Affine | None:
    """Find (a*i + b) // c that equals table[i] for every i, trying the given slopes a/c first.

    Returns None when there is no such form among the slopes tried.  Cost: linear per slope.
    """
    candidates = [*slopes]
    if len(table) > 1:
        candidates.append(Fraction(table[-1] - table[0], len(table) - 1))
    for slope in candidates:
        for scale in (1, 2):  # half-pixel coordinates need the doubled denominator
            a, c = slope.numerator * scale, slope.denominator * scale
            low = max(c * t - a * i for i, t in enumerate(table))
            high = min(c * t - a * i for i, t in enumerate(table)) + c - 1
            if low <= high:
                b = 0 if low <= 0 <= high else low
                return (index * a + b).floordiv(c)
    return Affine.of(table[0]) if len(set(table)) == 1 else None


@dataclass(frozen=True, slots=True)
class AffineRun:
    """table[start + j] == first + slope * j for 0 <= j < length."""

    start: int
    length: int
    first: int
    slope: int


def runs(table: Sequence[int]) -> tuple[AffineRun, ...]:
    """Cut a table into the longest affine runs, from the front."""
    found: list[AffineRun] = []
    start = 0
    while start < len(table):
        end = start + 1
        slope = table[end] - table[start] if end < len(table) else 0
        while end < len(table) and table[end] == table[start] + slope * (end - start):
            end += 1
        found.append(AffineRun(start, end - start, table[start], slope))
        start = end
    return tuple(found)
