"""Sets of integers along one dimension: what an index expression reaches over a box of its axes.

A set is (start, kind), arrays over iterations: `kind` >= 0 is the length of an interval, otherwise
-1 - k names pattern k, a union of intervals relative to `start`.  Patterns are few: they depend on
the extents of the box, which differ at edges only.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np

from worker.compiler.ir.affine import Affine
from worker.compiler.ir.distinct import distinct, distinct_where
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.schedule.grid import Ints, Range, expr_range

Pattern: TypeAlias = "tuple[tuple[int, int], ...]"
"""Half-open intervals, ascending, apart from each other; the first starts at 0."""
Sets: TypeAlias = "tuple[Ints, Ints]"
"""(start, kind) per iteration."""

_MOST_POINTS = 1 << 20
"""Points of a box that are listed for one index without a closed form; beyond: not exact."""
_FEW = 64
"""Rows that are told apart one by one, at 0.2 us, and not sorted, which takes 15 us a column."""


class Patterns:
    """Numbers for patterns."""

    def __init__(self) -> None:
        self.known: list[Pattern] = []
        self._number: dict[Pattern, int] = {}

    def kind(self, pattern: Pattern) -> int:
        """The kind of a set with this pattern."""
        if len(pattern) == 1:
            return pattern[0][1]
        if pattern not in self._number:
            self._number[pattern] = len(self.known)
            self.known.append(pattern)
        return -1 - self._number[pattern]

    def intervals(self, kind: int) -> Pattern:
        """The pattern of a kind."""
        if kind >= 0:
            return ((0, kind),) if kind else ()
        return self.known[-1 - kind]


def hull(expr: Affine, box: Mapping[str, Range]) -> Sets:
    """The smallest interval around what `expr` reaches."""
    low, high = expr_range(expr, box)
    return low, np.maximum(high - low + 1, 0)


def exact(expr: Affine, box: Mapping[str, Range], patterns: Patterns) -> Sets | None:
    """What `expr` reaches, without what it skips; None where that is too much to list.

    Cost: distinct boxes, times the points of one where `expr` divides.
    """
    names = sorted(expr.variables())
    if not names:
        return hull(expr, box)
    if not expr.is_linear:
        return _listed(expr, names, box, patterns)
    extents = [np.maximum(box[name][1] - box[name][0] + 1, 0) for name in names]
    coeffs = [abs(expr.coeff(name)) for name in names]
    kinds, numbers = _each_distinct(
        extents, lambda row: patterns.kind(_steps(tuple(zip(coeffs, row, strict=True))))
    )
    return expr_range(expr, box)[0], kinds[numbers]


def _each_distinct(columns: list[Ints], of: object) -> tuple[Ints, Ints]:
    """(`of` each distinct row of columns, which of them stands where)."""
    assert callable(of)
    shape = np.broadcast_shapes(*(c.shape for c in columns))
    if prod(shape) <= _FEW:
        rows = zip(*(np.broadcast_to(c, shape).ravel().tolist() for c in columns), strict=True)
        number: dict[tuple[int, ...], int] = {}
        each = [number.setdefault(row, len(number)) for row in rows]
        return np.array([of(row) for row in number], dtype=np.int64), np.reshape(each, shape)
    code: Ints = np.zeros(shape, dtype=np.int64)
    for column in columns:
        values, where = distinct_where(column)
        code = code * len(values) + where.reshape(column.shape)
    _, first, numbers = np.unique(code, return_index=True, return_inverse=True)
    flat = [np.broadcast_to(c, shape).ravel()[first].tolist() for c in columns]
    found = np.array([of(row) for row in zip(*flat, strict=True)], dtype=np.int64)
    return found, numbers.reshape(shape)


def _steps(terms: tuple[tuple[int, int], ...]) -> Pattern:
    """{sum of c * i, 0 <= i < n, over the terms (c, n)}."""
    if any(n == 0 for _, n in terms):
        return ((0, 0),)
    dense, rest = 1, []
    for coeff, count in sorted(terms):
        if coeff <= dense:
            dense += coeff * (count - 1)
        elif count > 1:
            rest.append((coeff, count))
    offsets = sorted({sum(p) for p in product(*(range(0, c * n, c) for c, n in rest))})
    return _joined([(offset, offset + dense) for offset in offsets])


def _joined(intervals: list[tuple[int, int]]) -> Pattern:
    joined = [intervals[0]]
    for low, high in intervals[1:]:
        if low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return tuple(joined)


def _listed(
    expr: Affine, names: list[str], box: Mapping[str, Range], patterns: Patterns
) -> Sets | None:
    """By evaluating every point of every distinct box."""
    columns = [edge for name in names for edge in box[name]]
    too_many = False

    def row_of(row: tuple[int, ...]) -> int:
        nonlocal too_many
        ranges = [(row[2 * k], row[2 * k + 1]) for k in range(len(names))]
        points = 1
        for low, high in ranges:
            points *= max(high - low + 1, 0)
        if points == 0:
            found.append((0, 0))
            return len(found) - 1
        if points > _MOST_POINTS:
            too_many = True
            return 0
        coords = {}
        for axis, (name, (low, high)) in enumerate(zip(names, ranges, strict=True)):
            shape = [1] * len(names)
            shape[axis] = high - low + 1
            coords[name] = np.arange(low, high + 1, dtype=np.int64).reshape(shape)
        values = distinct(affine_values(expr, coords))
        edge = np.flatnonzero(np.diff(values) > 1)
        lows = np.concatenate([values[:1], values[edge + 1]]) - values[0]
        highs = np.concatenate([values[edge], values[-1:]]) + 1 - values[0]
        pattern = tuple(zip(lows.tolist(), highs.tolist(), strict=True))
        found.append((int(values[0]), patterns.kind(pattern)))
        return len(found) - 1

    found: list[tuple[int, int]] = []
    which, numbers = _each_distinct(columns, row_of)
    if too_many:
        return None
    table = np.array(found, dtype=np.int64).reshape(-1, 2)[which]
    return table[numbers, 0], table[numbers, 1]
