"""Arrays of MACs, cell by cell and fold by fold: what `cost/folds.py` has in closed form.

Nothing here is shared with it: a systolic array is stepped register by register in numpy (and its
products are checked), ports are counted element by element.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil, prod
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.machine.dataflow import Dataflow

Ints: TypeAlias = "npt.NDArray[np.int64]"


def keep_weights(x: Ints, w: Ints, rows: int, columns: int) -> tuple[Ints, int]:
    """x [m, k] @ w [k, n] on rows x columns cells that keep weights: (product, cycles).

    Weights are shifted in from the top, a row a cycle; inputs go right, sums go down.
    """
    m, depth = x.shape
    result = np.zeros((m, w.shape[1]), np.int64)
    cycles = 0
    for n0, k0 in product(range(0, w.shape[1], columns), range(0, depth, rows)):
        fold = np.zeros((rows, columns), np.int64)
        part = w[k0 : k0 + rows, n0 : n0 + columns]
        fold[: part.shape[0], : part.shape[1]] = part
        kept = np.zeros_like(fold)
        for row in reversed(range(rows)):
            kept[1:] = kept[:-1].copy()
            kept[0] = fold[row]
            cycles += 1
        assert (kept == fold).all()
        moving, sums = np.zeros_like(fold), np.zeros_like(fold)
        left = m * columns
        tick = 0
        while left:
            moving[:, 1:] = moving[:, :-1].copy()
            above = np.vstack([np.zeros((1, columns), np.int64), sums[:-1]])
            for row in range(rows):
                step = tick - row
                inside = 0 <= step < m and k0 + row < depth
                moving[row, 0] = x[step, k0 + row] if inside else 0
            sums = above + moving * kept
            for column in range(columns):
                step = tick - (rows - 1) - column
                if 0 <= step < m:
                    left -= 1
                    if n0 + column < w.shape[1]:
                        result[step, n0 + column] += sums[-1, column]
            tick += 1
        cycles += tick
    return result, cycles


def keep_sums(x: Ints, w: Ints, rows: int, columns: int) -> tuple[Ints, int]:
    """The same on cells that keep sums: inputs go right, weights down, sums leave at the bottom."""
    m, depth = x.shape
    n = w.shape[1]
    result = np.zeros((m, n), np.int64)
    cycles = 0
    for n0, m0 in product(range(0, n, columns), range(0, m, rows)):
        right, down = (np.zeros((rows, columns), np.int64) for _ in range(2))
        sums = np.zeros((rows, columns), np.int64)
        done = np.zeros((rows, columns), np.int64)
        tick = 0
        while (done < depth).any():
            right[:, 1:] = right[:, :-1].copy()
            down[1:] = down[:-1].copy()
            for row in range(rows):
                step = tick - row
                inside = 0 <= step < depth and m0 + row < m
                right[row, 0] = x[m0 + row, step] if inside else 0
            for column in range(columns):
                step = tick - column
                inside = 0 <= step < depth and n0 + column < n
                down[0, column] = w[step, n0 + column] if inside else 0
            sums += right * down
            for row, column in product(range(rows), range(columns)):
                done[row, column] += 0 <= tick - row - column < depth
            tick += 1
        cycles += tick
        for row in reversed(range(rows)):  # the bottom row leaves, the others move down
            out = sums[-1, : max(0, n - n0)]
            if m0 + row < m:
                result[m0 + row, n0 : n0 + columns] = out
            sums[1:] = sums[:-1].copy()
            cycles += 1
    return result, cycles


class Fed(NamedTuple):
    """An array with its ports: plain numbers."""

    flow: Dataflow
    array: tuple[int, ...]
    speed: float
    feed: float
    drain: float
    sizes: tuple[int, int, int]
    """Bytes of an element of the left factor, the right one, and the sum."""


class _Fold(NamedTuple):
    steps: int
    load: int
    """Bytes of what is kept."""
    streamed: int
    returned: int
    unload: int
    is_loaded: bool


def instruction(fed: Fed, m: int, n: int, k: int, batch: int, *, is_part: bool) -> int:
    """Cycles of one instruction, fold after fold; `is_part`: of the whole depth it has less."""
    flow = fed.flow
    folds = _folds(fed, m, n, k, batch, is_part=is_part)
    rows = _cells(fed)[_axes(fed)[0]] if flow.is_systolic else 0
    skew = rows + _cells(fed)[_axes(fed)[1]] - 2 if flow.is_systolic else 0
    each, once = (0, skew) if flow.is_pipelined else (skew, 0)
    own = flow.load_bytes_per_cycle if flow.stationary != "output" else 0.0

    def load(fold: _Fold) -> int:
        return max(rows, _through(fold.load, own or fed.feed)) if fold.is_loaded else 0

    def unload(fold: _Fold) -> int:
        return max(rows, _through(fold.unload, fed.drain)) if flow.stationary == "output" else 0

    def stream(fold: _Fold) -> int:
        array = ceil(fold.steps * prod(fed.array) / fed.speed)
        ports = _through(fold.streamed, fed.feed), _through(fold.returned, fed.drain)
        return max(array, *ports) + each

    clock = once
    if not flow.is_double_buffered:
        return clock + sum(load(f) + stream(f) + unload(f) for f in folds)
    if flow.stationary == "output":
        leaving = 0  # what the second registers still hold
        for fold in folds:
            clock += load(fold) + max(stream(fold), leaving)
            leaving = unload(fold)
        return clock + leaving
    clock += load(folds[0])
    for fold, after in zip(folds, [*folds[1:], None], strict=True):
        coming = load(after) if after is not None else 0
        both = fold.streamed + (after.load if after is not None and not own else 0)
        alone = after is None
        clock += max(stream(fold), coming, 0 if alone else _through(both, fed.feed))
    return clock


def moved(fed: Fed, m: int, n: int, k: int, batch: int, *, is_part: bool) -> tuple[int, int]:
    """Bytes in and out of the array for one instruction, fold after fold."""
    folds = _folds(fed, m, n, k, batch, is_part=is_part)
    inward = sum(fold.streamed + (fold.load if fold.is_loaded else 0) for fold in folds)
    return inward, sum(fold.returned + fold.unload for fold in folds)


def _axes(fed: Fed) -> tuple[str, str, str]:
    """(along the rows of cells, along their columns, streaming)"""
    return {"weight": ("k", "n", "m"), "input": ("k", "m", "n"), "output": ("m", "n", "k")}[
        fed.flow.stationary
    ]  # type: ignore[return-value]


def _cells(fed: Fed) -> dict[str, int]:
    tall, wide, long = _axes(fed)
    match fed.array:
        case (rows, columns):
            return {tall: rows, wide: columns, long: 1}
        case (rows, columns, depth):
            return {"m": rows, "n": columns, "k": depth}
        case (columns,):
            return {tall: 1, wide: columns, long: 1}
    raise AssertionError


def _folds(fed: Fed, m: int, n: int, k: int, batch: int, *, is_part: bool) -> list[_Fold]:
    """In order: a stripe of what streams past all folds of all batches, then the next."""
    size = {"m": m, "n": n, "k": k}
    tall, wide, long = _axes(fed)
    cells = _cells(fed)
    held = dict(zip((tall, wide), fed.flow.hold or (cells[tall], cells[wide]), strict=True))
    fits = 0  # of what streams: as much as has its sums in the accumulators
    while (fits + cells[long]) * min(held[wide], size[wide]) * fed.sizes[2] <= (
        fed.flow.accumulator_bytes if fed.flow.stationary != "output" else -1
    ):
        fits += cells[long]
    found: list[_Fold] = []
    for begin in range(0, size[long], fits or size[long]):
        length = min(fits or size[long], size[long] - begin)
        part = {**size, long: length}
        for _ in range(batch):
            found += _stripe(fed, part, held, stays=fits > 0, is_part=is_part)
    return found


def _stripe(
    fed: Fed, size: dict[str, int], held: dict[str, int], *, stays: bool, is_part: bool
) -> Iterator[_Fold]:
    tall, wide, long = _axes(fed)
    cells = _cells(fed)
    for at_wide in range(0, size[wide], held[wide]):
        for at_tall in range(0, size[tall], held[tall]):
            box = {
                tall: range(at_tall, min(at_tall + held[tall], size[tall])),
                wide: range(at_wide, min(at_wide + held[wide], size[wide])),
                long: range(size[long]),
            }
            left = len({(a, b) for a in box["m"] for b in box["k"]}) * fed.sizes[0]
            right = len({(a, b) for a in box["k"] for b in box["n"]}) * fed.sizes[1]
            sums = len({(a, b) for a in box["m"] for b in box["n"]}) * fed.sizes[2]
            steps = 1
            for axis, values in box.items():
                steps *= len({value // cells[axis] for value in values})
            is_first, is_last = at_tall == 0, at_tall + held[tall] >= size[tall]
            if fed.flow.stationary == "output":
                yield _Fold(steps, sums, left + right, 0, sums, is_part)
                continue
            takes = is_part if is_first else not stays
            gives = is_last or not stays
            kept, passing = (right, left) if fed.flow.stationary == "weight" else (left, right)
            yield _Fold(
                steps, kept, passing + (sums if takes else 0), sums if gives else 0, 0, True
            )  # fmt: skip


def _through(num_bytes: int, rate: float) -> int:
    """Cycle by cycle."""
    if not rate:
        return 0
    cycles, moved = 0, 0.0
    while moved < num_bytes:
        cycles += 1
        moved = cycles * rate
    return cycles
