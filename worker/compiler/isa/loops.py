"""Loops of a program: instructions that are listed once and run many times.

A loop holds a stretch of rows of the instruction table; loops nest.  What differs from one run of a
row to the next is affine in the counters of the loops around it: the stream, the ports, the two
addresses, the iteration that it carries out, and the tokens.  Bytes, work and cycles do not differ;
an iteration at an edge that moves less, or waits for something else, has rows of its own in front
of the loop or behind it.  A loop
over cores is one like any other, whose streams, ports and tokens step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = "npt.NDArray[np.int64]"

LOOP = np.dtype([("first", "<i4"), ("end", "<i4"), ("trip", "<i8")])
"""Rows first : end run trip times.  Sorted by where they begin, outer ones first."""

STRIDE = np.dtype(
    [
        ("stream", "<i4"),
        ("resource", "<i4", (6,)),
        ("src_offset", "<i8"),
        ("dst_offset", "<i8"),
        ("iteration", "<i8"),
    ]
)
"""What one step of a loop adds to the fields of a row; 0 at ports it does not use."""


@dataclass(frozen=True, slots=True, eq=False)
class Loops:
    """The loops of one program of n rows; `NO_LOOPS` where it has none.  Arrays are read-only.

    Shapes, with d the deepest nesting: stride [n, d] of STRIDE; wait_stride, signal_stride
    [waits, d], [signals, d] int32.  Column k belongs to the loop at depth k around the row; rows
    with fewer loops around them have 0.
    """

    table: npt.NDArray[np.void]
    """[loops] of LOOP."""
    stride: npt.NDArray[np.void]
    wait_stride: npt.NDArray[np.int32]
    signal_stride: npt.NDArray[np.int32]

    @property
    def depth(self) -> int:
        """Loops around the deepest row."""
        return int(self.stride.shape[1])


def frozen(loops: Loops) -> Loops:
    """The same, its arrays read-only."""
    for array in (loops.table, loops.stride, loops.wait_stride, loops.signal_stride):
        array.setflags(write=False)
    return loops


NO_LOOPS = frozen(
    Loops(
        np.zeros(0, LOOP), np.zeros((0, 0), STRIDE),
        np.zeros((0, 0), np.int32), np.zeros((0, 0), np.int32),
    )
)  # fmt: skip
"""Of a program that is listed in full."""


def nesting(table: npt.NDArray[np.void]) -> list[int]:
    """Depth of every loop, 0 outside.

    Raises:
        ValueError: loops cross, hold no rows, do not repeat, or stand in another order.
    """
    open_ends: list[int] = []
    depths: list[int] = []
    before = (-1, 0)
    for first, end, trip in table.tolist():
        if not 0 <= first < end or trip < 1:
            raise ValueError(f"a loop of rows {first} to {end} runs {trip} times")
        if (first, -end) < before:
            raise ValueError(f"the loop of rows {first} to {end} is out of order")
        before = first, -end
        while open_ends and open_ends[-1] <= first:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            raise ValueError(f"the loop of rows {first} to {end} leaves the one around it")
        depths.append(len(open_ends))
        open_ends.append(end)
    return depths


def runs_of(table: npt.NDArray[np.void], depths: Sequence[int]) -> int:
    """Most times that any row runs, without a limit of integers.  `depths`: see `nesting`."""
    around: list[int] = []
    most = 1
    for (first, end, trip), depth in zip(table.tolist(), depths, strict=True):
        outer = around[depth - 1] if depth else 1
        around[depth:] = [outer * trip]
        most = max(most, around[depth] * (end - first))
    return most


def repetitions(loops: Loops) -> Ints:
    """[rows] How often each row runs."""
    found: Ints = np.ones(len(loops.stride), dtype=np.int64)
    for first, end, trip in loops.table.tolist():
        found[first:end] *= trip
    return found


def last_counters(loops: Loops) -> Ints:
    """[rows, d] Counter of the last iteration of the loop at every depth around each row, or 0."""
    last: Ints = np.zeros(loops.stride.shape, dtype=np.int64)
    for (first, end, trip), depth in zip(loops.table.tolist(), nesting(loops.table), strict=True):
        last[first:end, depth] = trip - 1
    return last


def unrolled(loops: Loops, begin: int = 0, end: int | None = None) -> tuple[Ints, Ints]:
    """(rows [m] in the order in which they run, counters [m, d] of the loops around them).

    Of the runs begin : end only; without `end`, to the last.
    Cost: m times the depth, and the loops of the program.
    """
    count, depth = len(loops.stride), loops.depth
    table, depths = loops.table.tolist(), nesting(loops.table)
    behind, runs = _subtrees(table)

    def between(low: int, high: int, number: int, first: int, last: int) -> tuple[Ints, Ints]:
        """Runs first : last of those of the rows low : high; `number`: the first loop in them."""
        rows: list[Ints] = [np.zeros(0, dtype=np.int64)]
        counters: list[Ints] = [np.zeros((0, depth), dtype=np.int64)]
        at = low
        while at < high and last > 0:
            inside = number < len(table) and table[number][0] < high
            stop = table[number][0] if inside else high
            if first < stop - at:
                rows.append(np.arange(at + max(first, 0), at + min(last, stop - at)))
                counters.append(np.zeros((len(rows[-1]), depth), dtype=np.int64))
            first, last = first - (stop - at), last - (stop - at)
            at = stop
            if inside:
                _, at, trip = table[number]
                if first < trip * runs[number] and last > 0:
                    turns(number, max(first, 0), min(last, trip * runs[number]), rows, counters)
                first, last = first - trip * runs[number], last - trip * runs[number]
                number = behind[number]
        return np.concatenate(rows), np.concatenate(counters)

    def turns(number: int, first: int, last: int, rows: list[Ints], counters: list[Ints]) -> None:
        """Runs first : last of a loop: part of an iteration, whole ones, and part of one."""
        low, high, _ = table[number]
        size = runs[number]
        while first < last:
            turn, skipped = divmod(first, size)
            many = max((last - first) // size, 1) if not skipped else 1
            until = min(skipped + last - first, size)
            body, within = between(low, high, number + 1, skipped, until)
            steps = np.tile(within, (many, 1))
            steps[:, depths[number]] = np.repeat(np.arange(turn, turn + many), len(body))
            rows.append(np.tile(body, many))
            counters.append(steps)
            first += many * len(body)

    if end is None:
        end = int(repetitions(loops).sum())
    return between(0, count, 0, begin, end)


def _subtrees(table: list[tuple[int, int, int]]) -> tuple[list[int], list[int]]:
    """([loops] the first loop behind each, [loops] runs in one iteration of each)."""
    behind, runs = [0] * len(table), [0] * len(table)
    for number in reversed(range(len(table))):
        first, end, _ = table[number]
        inner, size = number + 1, end - first
        while inner < len(table) and table[inner][0] < end:
            begin, stop, trip = table[inner]
            size += trip * runs[inner] - (stop - begin)
            inner = behind[inner]
        behind[number], runs[number] = inner, size
    return behind, runs
