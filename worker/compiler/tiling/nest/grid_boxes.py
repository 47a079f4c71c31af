"""Boxes of many tilings at once: what they hold, take of bursts and ports, and cost an engine.

Sizes are arrays, one dimension for an axis, which broadcast to the shape of a grid of tilings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.cost.compute import EngineRate
from worker.compiler.cost.folds import granule
from worker.compiler.machine.bursts import strides_of
from worker.compiler.tiling.nest.facts import Operand

Ints: TypeAlias = "npt.NDArray[np.int64]"
Floats: TypeAlias = "npt.NDArray[np.float64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"
Tiles: TypeAlias = Mapping[str, Ints]
"""Tile size per axis; the arrays broadcast to the shape of the grid."""
SLACK = 1e-12
"""What sums in another order may be off by."""


def least_cycles(pace: EngineRate, box: Sequence[Ints]) -> Floats:
    """`EngineRate.cycles` of boxes, but for loads and ports of an array."""
    points = all_of(box)
    passing: Floats | float = 0.0
    if pace.streams is not None:
        streams = pace.streams
        inward = sum(
            (all_of(box[i] for i in axes) * size
             for axes, size in streams.reads), start=np.zeros((), np.int64),
        )  # fmt: skip
        outward: Ints = np.zeros((), np.int64)
        if streams.result is not None:
            axes, size = streams.result
            outward = all_of(box[i] for i in axes) * size
            partial: Flags = np.zeros((), np.bool_)
            for i, whole in streams.reduced:
                partial = partial | (box[i] < whole)
            inward = inward + np.where(partial, outward, 0)
        for num_bytes, rate in ((inward, streams.feed), (outward, streams.drain)):
            if rate:
                passing = np.maximum(passing, np.ceil(num_bytes / rate))
    if pace.roles is None:
        plain, special = pace.ops
        cycles = points * plain / pace.speed
        if special:
            cycles = cycles + points * special / pace.special_speed
        return np.asarray(pace.startup_cycles + np.maximum(np.ceil(cycles), passing))
    roles = pace.roles
    m, n, k, b = (
        all_of(box[i] for i in group)
        for group in (roles.rows, roles.columns, roles.depth, roles.batch)
    )
    cells = granule(pace.array, None) if pace.folding is None else pace.folding.cells
    padded = b * _up(m, cells.rows) * _up(n, cells.columns) * _up(k, cells.depth)
    cycles = np.ceil(padded / pace.speed * (1 - SLACK))
    if pace.folding is not None:
        return np.asarray(pace.startup_cycles + cycles + passing)
    return np.asarray(pace.startup_cycles + np.maximum(cycles, passing))


def burst_arrays(
    extents: Sequence[Ints],
    shape: Sequence[int],
    item_bytes: int,
    pitches: Sequence[Ints],
    align_bytes: int,
    burst: int,
) -> Ints:
    """`machine.bursts.burst_bytes` of many boxes, none of them empty."""
    strides = strides_of(shape, item_bytes)

    def known_of(number: int) -> Ints:
        known: Ints = np.array(align_bytes, np.int64)
        for pitch, stride in zip(pitches[:number], strides[:number], strict=True):
            known = np.gcd(known, pitch * stride)
        return known

    found = _taken(extents, strides, item_bytes, known_of(len(shape)), burst)
    around: list[Ints] = list(extents)
    for d in reversed(range(len(shape))):
        is_cut = around[d] < shape[d]
        if np.any(is_cut):
            around[d] = np.full((), shape[d], np.int64)
            wide = _taken(around, strides, item_bytes, known_of(d), burst)
            found = np.where(is_cut, np.minimum(found, wide), found)
    return found


def _taken(
    extents: Sequence[Ints], strides: Sequence[int], item_bytes: int, pitch: Ints, burst: int
) -> Ints:
    known: Ints = np.gcd(pitch, burst)
    pitches: list[Ints] = []
    for extent, stride in zip(extents, strides, strict=True):
        pitches.append(known)
        known = np.where(extent > 1, np.gcd(known, stride), known)
    span: Ints = np.array(item_bytes, np.int64)
    taken: Ints = -(-(item_bytes + burst - known) // burst) * burst
    for extent, stride, before in zip(
        reversed(extents), reversed(strides), reversed(pitches), strict=True
    ):
        span = span + (extent - 1) * stride
        taken = np.minimum(taken * extent, -(-(span + burst - before) // burst) * burst)
    return taken


def tile_elems(operand: Operand, tiles: Tiles) -> Ints:
    return all_of(widths(operand, tiles))


def widths(operand: Operand, tiles: Tiles) -> list[Ints]:
    found: list[Ints] = []
    for terms, extra, (_, most) in zip(operand.linear, operand.extra, operand.limits, strict=True):
        assert terms is not None
        width: Ints = np.ones((), np.int64)
        for name, factor in terms:
            width = width + factor * (tiles[name] - 1)
        found.append(np.minimum(width + extra, most))
    return found


def all_of(numbers: Iterable[Ints]) -> Ints:
    """Their product."""
    return prod(numbers, start=np.ones((), np.int64))


def over(value: Ints, divisor: Ints) -> Ints:
    """The quotient, rounded up."""
    return -(-value // divisor)


def _up(value: Ints, multiple: int) -> Ints:
    return -(-value // multiple) * multiple
