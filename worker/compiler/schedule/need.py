"""Ranges of boxes and footprints over all iterations of the enclosing loops, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.affine import Affine, FloorDiv, Lookup, Mod, Var
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.schedule.nodes import Box

Ints = npt.NDArray[np.int64]


def needed_ranges(box: Box, trips: Mapping[str, int]) -> tuple[Ints, Ints]:
    """Half-open unclipped ranges of `box` in every iteration, iterations in loop order.

    Shapes: two [product of trips, rank] arrays.
    """
    count = prod(trips.values())
    grids = np.indices(tuple(trips.values()), dtype=np.int64, sparse=True) if trips else ()
    coords = dict(zip(trips, grids, strict=True))
    full = tuple(trips.values())
    low = np.empty((count, len(box)), dtype=np.int64)
    for d, span in enumerate(box):
        low[:, d] = np.broadcast_to(affine_values(span.start, coords), full).reshape(-1)
    return low, low + np.array([s.extent for s in box], dtype=np.int64)


def footprint_ranges(
    op: TensorOp, access: Access, low: Ints, high: Ints, shape: Sequence[int]
) -> tuple[Ints, Ints]:
    """Half-open bounding ranges of what `access` touches for each domain range [low, high).

    Data-dependent dimensions count whole.  Meaningless where a domain range is empty.
    """
    position = {axis.name: k for k, axis in enumerate(op.domain)}
    first = np.empty((len(low), len(access.index)), dtype=np.int64)
    last = np.empty_like(first)
    for d, expr in enumerate(access.index):
        if expr.has_lookup:
            first[:, d], last[:, d] = 0, shape[d]
            continue
        lo, hi = _bounds(expr, position, low, high - 1)
        first[:, d], last[:, d] = lo, hi + 1
    return first, last


def _bounds(
    expr: Affine, position: Mapping[str, int], low: Ints, high: Ints
) -> tuple[Ints, Ints]:
    """Vectorised `Affine.bounds` (inclusive)."""
    total_low = np.full(len(low), expr.const, dtype=np.int64)
    total_high = total_low.copy()
    for atom, coeff in expr.terms:
        match atom:
            case Var(name):
                a, b = low[:, position[name]], high[:, position[name]]
            case FloorDiv(arg, divisor):
                a, b = _bounds(arg, position, low, high)
                a, b = a // divisor, b // divisor
            case Mod(arg, divisor):
                a, b = _bounds(arg, position, low, high)
                same = a // divisor == b // divisor
                a, b = np.where(same, a % divisor, 0), np.where(same, b % divisor, divisor - 1)
            case Lookup():
                raise KeyError("a data-dependent index has no bounds")
        total_low += coeff * (a if coeff > 0 else b)
        total_high += coeff * (b if coeff > 0 else a)
    return total_low, total_high
