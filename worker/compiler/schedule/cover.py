"""Do boxes cover a domain exactly once?  Exact, and fast for the grids that schedules make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.evaluate import affine_values
from worker.compiler.schedule.nodes import Box

Ints = npt.NDArray[np.int64]

MAX_CELLS = 1 << 24
"""Largest compressed grid the exact fallback paints."""


def loop_grid(trips: Mapping[str, int]) -> dict[str, Ints]:
    """Every combination of loop values, flattened: one [n] array per loop variable."""
    if not trips:
        return {}
    grids = np.indices(tuple(trips.values()), dtype=np.int64)
    return {name: grid.reshape(-1) for name, grid in zip(trips, grids, strict=True)}


def box_ranges(
    box: Box, trips: Mapping[str, int], shape: Sequence[int] | None
) -> tuple[Ints, Ints]:
    """Half-open (low, high) of a box for every iteration, clipped to `shape` if given.

    Shapes: two [n, rank] arrays, n = product of trips.
    """
    used = {v for span in box for v in span.start.variables()}
    grid = loop_grid({v: t for v, t in trips.items() if v in used})
    repeats = prod(t for v, t in trips.items() if v not in used)
    count = prod(t for v, t in trips.items() if v in used)
    low = np.empty((count, len(box)), dtype=np.int64)
    for d, span in enumerate(box):
        low[:, d] = affine_values(span.start, grid)
    high = low + np.array([span.extent for span in box], dtype=np.int64)
    if shape is not None:
        top = np.array(shape, dtype=np.int64)
        low, high = np.clip(low, 0, top), np.clip(high, 0, top)
    if repeats > 1:
        low, high = np.repeat(low, repeats, axis=0), np.repeat(high, repeats, axis=0)
    return low, high


def volumes(low: Ints, high: Ints) -> Ints:
    """Points of each box (0 for empty ones)."""
    if low.shape[1] == 0:
        return np.ones(len(low), dtype=np.int64)
    return np.asarray(np.prod(np.maximum(high - low, 0), axis=1), dtype=np.int64)


def covers_once(low: Ints, high: Ints, shape: Sequence[int]) -> str | None:
    """None when the boxes partition [0, shape); otherwise what is wrong.

    Cost: O(n * rank * log n) for grids; the fallback paints a compressed grid of at most
    MAX_CELLS cells.
    """
    kept = volumes(low, high) > 0
    low, high = low[kept], high[kept]
    total = int(volumes(low, high).sum())
    points = prod(shape)
    if total < points:
        return f"{points - total} of {points} points are never computed"
    if total == points and _is_grid(low, high, shape):
        return None
    return _paint(low, high, shape, np.ones(len(low), dtype=np.int64))


def _is_grid(low: Ints, high: Ints, shape: Sequence[int]) -> bool:
    """True when the boxes are the product of one partition per dimension, each once."""
    codes = np.zeros(len(low), dtype=np.int64)
    cells = 1
    for d, extent in enumerate(shape):
        starts, index = np.unique(low[:, d], return_inverse=True)
        ends = np.full(len(starts), -1, dtype=np.int64)
        ends[index.reshape(-1)] = high[:, d]
        if not np.array_equal(ends[index.reshape(-1)], high[:, d]):
            return False
        if starts[0] != 0 or ends[-1] != extent or not np.array_equal(starts[1:], ends[:-1]):
            return False
        codes = codes * len(starts) + index.reshape(-1)
        cells *= len(starts)
    return len(low) == cells and len(np.unique(codes)) == cells


def _paint(low: Ints, high: Ints, shape: Sequence[int], weight: Ints) -> str | None:
    counts = painted(low, high, shape, weight)
    if counts is None:
        return "the boxes are too irregular to be checked"
    if counts.min() < 1:
        return "some points are never computed"
    if counts.max() > 1:
        return "some points are computed more than once"
    return None


def painted(low: Ints, high: Ints, shape: Sequence[int], weight: Ints) -> Ints | None:
    """How much weight each cell of the compressed grid gets; None when it is too large."""
    rank = len(shape)
    edges = [
        np.unique(np.concatenate([low[:, d], high[:, d], [0, shape[d]]])) for d in range(rank)
    ]
    dims = tuple(len(e) for e in edges)
    if prod(dims) > MAX_CELLS:
        return None
    delta = np.zeros(dims, dtype=np.int64)
    first = [np.searchsorted(edges[d], low[:, d]) for d in range(rank)]
    last = [np.searchsorted(edges[d], high[:, d]) for d in range(rank)]
    for corner in range(1 << rank):
        index = tuple(last[d] if corner >> d & 1 else first[d] for d in range(rank))
        sign = -1 if bin(corner).count("1") % 2 else 1
        np.add.at(delta, index, sign * weight)
    for d in range(rank):
        delta = np.cumsum(delta, axis=d)
    inner: Ints = delta[tuple(slice(0, -1) for _ in range(rank))]
    return inner
