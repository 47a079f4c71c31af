"""What a product costs on an array that keeps one operand and lets the others stream past it.

**Folds.**  An instruction is a product of m rows, n columns, depth k, once per batch.  The array
keeps a part of one operand, a fold: k x n of stationary weights, k x m of stationary inputs, or
m x n of stationary sums.  The third extent streams: array step after array step.  Folds of the same
sums (the depth) follow each other, then those of the next.

**One fold.**  `before`: what it keeps comes in.  `during`: the streamed extent passes, for as long
as the array needs or the ports, and the skew of a systolic array, unless folds are pipelined: then
once per instruction.  `after`: sums that were kept leave.  A systolic array shifts a fold in, or
its sums out, a row a cycle, however few of its rows are used.

    weights kept, no second registers    rows + m + (rows + columns - 2)
    sums kept, no second registers       k + (rows + columns - 2) + rows

With second registers the next fold is loaded while this one is computed, or the sums of the last
one leave: the longer counts, and what both take of the feed together.

**Ports.**  The kept operand passes the feed once (or a way of its own); what streams once per fold
of the others' extents, as often as the array needs it: every tap of a window is an element.  Sums
that are not complete after a fold return to memory and come back, unless there are accumulators.
These hold the sums of a stripe: where more streams, it goes stripe by stripe through all folds,
which are loaded for each.  An instruction that has only a part of the depth, as it may be any part,
takes sums in with its first fold and gives them back with its last.

Source: SCALE-Sim's closed form (ISPASS 2020) for the array; ports and second registers are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, prod
from typing import NamedTuple

from worker.compiler.machine.dataflow import Dataflow, Stationary
from worker.compiler.machine.machine import Engine


class Extents(NamedTuple):
    """Of the three groups of axes of a product, or of what an array takes of each at once."""

    rows: int
    columns: int
    depth: int


def granule(array: tuple[int, ...], dataflow: Dataflow | None) -> Extents:
    """What an array takes side by side: work is padded up to it; 1 where it takes one by one."""
    kept = Stationary.WEIGHT if dataflow is None else dataflow.stationary
    match array:
        case (rows, columns, depth):
            return Extents(rows, columns, depth)
        case (tall, wide):
            return {
                Stationary.WEIGHT: Extents(1, wide, tall),
                Stationary.INPUT: Extents(wide, 1, tall),
                Stationary.OUTPUT: Extents(tall, wide, 1),
                Stationary.ROW: Extents(1, 1, 1),
            }[kept]
        case (wide,):
            return Extents(wide, 1, 1) if kept is Stationary.INPUT else Extents(1, wide, 1)
        case _:
            return Extents(1, 1, 1)


class _Part(NamedTuple):
    """A fold's extent along the axis that is walked first, and what becomes of its sums."""

    extent: int
    takes: bool
    """Sums made before are added."""
    gives: bool
    """Sums leave the array and its accumulators."""


class _Fold(NamedTuple):
    part: _Part
    width: int
    """Along the other axis of what is kept."""


@dataclass(frozen=True, slots=True)
class Folding:
    """How an array works through a product: all that its cycles need besides the extents."""

    dataflow: Dataflow
    cells: Extents
    """Side by side in one step."""
    speed: float
    """MACs per cycle."""
    feed: float
    """Bytes per cycle; 0: any."""
    drain: float
    left_bytes: int
    """Of an element of the left factor."""
    right_bytes: int
    sum_bytes: int
    depth: int
    """Of the whole operator: an instruction that has less takes sums and returns them."""

    @property
    def keeps_sums(self) -> bool:
        return self.dataflow.stationary is Stationary.OUTPUT

    def split(self, size: Extents) -> tuple[int, int, int]:
        """(extent walked first, extent walked then, extent that streams)."""
        match self.dataflow.stationary:
            case Stationary.WEIGHT:
                return size.depth, size.columns, size.rows
            case Stationary.INPUT:
                return size.depth, size.rows, size.columns
            case _:  # sums; rows have no folds
                return size.rows, size.columns, size.depth

    @property
    def hold(self) -> tuple[int, int]:
        """Extents of a whole fold."""
        tall, wide, _ = self.split(self.cells)
        hold = self.dataflow.hold or (tall, wide)
        return hold[0], hold[1]

    @property
    def shift(self) -> int:
        """Cycles in which a fold enters or leaves cell by cell."""
        return self.split(self.cells)[0] if self.dataflow.is_systolic else 0

    @property
    def skew(self) -> int:
        """Cycles between the first cell of a systolic array and its last."""
        tall, wide, _ = self.split(self.cells)
        return tall + wide - 2 if self.dataflow.is_systolic else 0

    def stripe(self, width: int) -> int:
        """How much streams past folds of a width while their sums stay; 0: not even one step's, or
        they never pass a port, as they stand in registers."""
        if self.keeps_sums or not self.sum_bytes:
            return 0
        step = self.split(self.cells)[2]
        return self.dataflow.accumulator_bytes // (width * self.sum_bytes) // step * step

    @property
    def kept_bytes(self) -> int:
        match self.dataflow.stationary:
            case Stationary.WEIGHT:
                return self.right_bytes
            case Stationary.INPUT:
                return self.left_bytes
            case _:  # sums; rows have no folds
                return self.sum_bytes

    @property
    def passing_bytes(self) -> int:
        """Of the factor that streams where the other is kept."""
        is_right = self.dataflow.stationary is Stationary.INPUT
        return self.right_bytes if is_right else self.left_bytes

    def least(self, size: Extents) -> Least:
        """What no cut of a product of `size` into instructions avoids."""
        return _least(self, size)

    def cycles(self, size: Extents, batch: int) -> int:
        """Cycles of one instruction, without its start.

        Units: cycles.  Cost: constant.
        """
        return _cycles(self, size, batch)

    def moved(self, size: Extents, batch: int) -> tuple[int, int]:
        """Bytes that enter the array for one instruction, and that leave it.

        Cost: constant.
        """
        return _moved(self, size, batch)


@dataclass(frozen=True, slots=True)
class Least:
    """Cycles of one point at least, however a product is cut into instructions.

    Points along the axis that is walked first come in whole arrays of `tall`: `padded` counts for
    all of the last array, however few of its rows are used; `even` for every point alike.
    """

    padded: float
    even: float
    tall: int
    once: int
    """Cycles of every instruction besides."""

    def price(self, extent: int) -> float:
        """Cycles of `extent` points along that axis."""
        return -(-extent // self.tall) * self.tall * self.padded + extent * self.even


@lru_cache(maxsize=1 << 12)
def _least(array: Folding, size: Extents) -> Least:
    """The largest of what the array, its shifts and its ports need.

    Every summand holds for any cut, and for any part of the points: the folds around a point of
    the other two axes cover the first one, and ceil is subadditive; what passes a port for a fold
    counts for at most as many points as the largest fold has.  Where the longest of several counts
    (in a fold, or of folds that overlap) one of them is taken for all folds: cuts may balance them
    fold by fold, so a sum of largest would claim too much.
    """
    first, then, stream = array.split(size)
    tall, wide, long = array.split(array.cells)
    high, broad = min(first, array.hold[0]), min(then, array.hold[1])
    flow = array.dataflow
    # However narrow folds are made, so that more can stream past them before their sums must leave.
    may_stay = array.stripe(1) > 0
    past = min(stream, array.stripe(1)) if may_stay else stream
    fold = 1 / (tall * min(min(then, wide) * stream, array.stripe(1) or inf))
    """Folds of a systolic array, per point of a full one."""
    work = max(1.0, wide / then) * max(1.0, long / stream) / array.speed
    skew = 0 if flow.is_pipelined else array.skew
    once = array.skew if flow.is_pipelined else 0
    if array.keeps_sums:
        streamed = array.left_bytes / broad + array.right_bytes / high
        returned, kept, way = 0.0, array.sum_bytes / stream, array.drain
    else:
        other = array.passing_bytes
        takes = 0.0 if may_stay else max(0.0, 1 / array.hold[0] - 1 / first)
        streamed = other / broad + takes * array.sum_bytes
        returned = array.sum_bytes / (first if may_stay else high)
        kept, way = array.kept_bytes / past, flow.load_bytes_per_cycle or array.feed
    ports = _paced(streamed, array.feed), _paced(returned, array.drain)
    during = [(work + skew * fold, 0.0), *((skew * fold, even) for even in ports)]
    moving = [(array.shift * fold, 0.0), (0.0, _paced(kept, way))]

    def total(price: tuple[float, float]) -> float:
        return Least(*price, tall, 0).price(first)

    longest, slowest = max(during, key=total), max(moving, key=total)
    if not flow.is_double_buffered:
        return Least(longest[0] + slowest[0], longest[1] + slowest[1], tall, once)
    shared = (0.0, 0.0)
    if not array.keeps_sums and not flow.load_bytes_per_cycle:
        shared = 0.0, _paced(streamed + kept, array.feed)
    # The first load, or the last sums' way out, is beside all that is computed.
    found = max(longest, slowest, shared, key=total)
    return Least(*found, tall, once + (array.shift if found is longest else 0))


def _paced(num_bytes: float, rate: float) -> float:
    return num_bytes / rate if rate else 0.0


@lru_cache(maxsize=1 << 16)
def _cycles(array: Folding, size: Extents, batch: int) -> int:
    first, then, stream = array.split(size)
    tall, wide = array.hold
    stripe = array.stripe(min(wide, then))
    parts = _parts(array, first, tall, stays=stripe > 0, is_partial=size.depth < array.depth)
    widths = _runs(then, wide)
    stripes = _runs(stream, stripe or stream)
    total = array.skew if array.dataflow.is_pipelined else 0
    for length, times in stripes:
        total += _section(array, parts, widths, length, times * batch)
    if len(stripes) > 1 and array.dataflow.is_double_buffered:
        ends = _Fold(parts[-1][0], widths[-1][0]), _Fold(parts[0][0], widths[0][0])
        total -= _hidden(array, *ends, stripes[0][0])
    return total


@lru_cache(maxsize=1 << 16)
def _moved(array: Folding, size: Extents, batch: int) -> tuple[int, int]:
    first, then, stream = array.split(size)
    tall, wide = array.hold
    stripe = array.stripe(min(wide, then))
    parts = _parts(array, first, tall, stays=stripe > 0, is_partial=size.depth < array.depth)
    inward = outward = 0
    for length, rounds in _runs(stream, stripe or stream):
        for width, columns in _runs(then, wide):
            for part, number in parts:
                fold, times = _Fold(part, width), rounds * columns * number * batch
                inward += times * (_loaded(array, fold) + _streamed(array, fold, length))
                outward += times * (_unloaded(array, fold) + _returned(array, fold, length))
    return inward, outward


def _section(
    array: Folding,
    parts: Sequence[tuple[_Part, int]],
    widths: Sequence[tuple[int, int]],
    stream: int,
    rounds: int,
) -> int:
    """Cycles of all folds, `rounds` times, with so much streaming past each."""
    total = 0
    for width, columns in widths:
        for part, times in parts:
            fold = _Fold(part, width)
            own = _before(array, fold) + _during(array, fold, stream) + _after(array, fold)
            total += own * columns * times * rounds
    if array.dataflow.is_double_buffered:
        for fold, follower, times in _successions(parts, widths, rounds):
            total -= times * _hidden(array, fold, follower, stream)
    return total


def _parts(
    array: Folding, extent: int, tall: int, *, stays: bool, is_partial: bool
) -> list[tuple[_Part, int]]:
    """The folds along the first axis, in order, equal ones together."""
    if array.keeps_sums:
        return [(_Part(e, is_partial, True), n) for e, n in _runs(extent, tall)]
    folds: list[tuple[_Part, int]] = []
    left = -(-extent // tall)
    for size, times in _runs(extent, tall):
        # The first fold begins the sums, the last one completes them.
        for number in {1: (1,), 2: (1, 1)}.get(times, (1, times - 2, 1)):
            is_first, is_last = not folds, left == number
            takes = is_partial if is_first else not stays
            folds.append((_Part(size, takes, is_last or not stays), number))
            left -= number
    return folds


def _before(array: Folding, fold: _Fold) -> int:
    """Cycles in which what a fold keeps comes in."""
    size = _loaded(array, fold)
    if not size:
        return 0
    own = array.dataflow.load_bytes_per_cycle
    way = array.feed if array.keeps_sums or not own else own
    return max(array.shift, _moving(size, way))


def _loaded(array: Folding, fold: _Fold) -> int:
    """Bytes of what a fold keeps, as it comes in."""
    if array.keeps_sums and not fold.part.takes:
        return 0  # sums begin at nothing
    return fold.part.extent * fold.width * array.kept_bytes


def _during(array: Folding, fold: _Fold, stream: int) -> int:
    """Cycles in which the rest passes."""
    cells = array.split(array.cells)
    own = (fold.part.extent, fold.width, stream)
    steps = prod(-(-e // c) for e, c in zip(own, cells, strict=True))
    passing = max(
        ceil(steps * prod(cells) / array.speed),
        _moving(_streamed(array, fold, stream), array.feed),
        _moving(_returned(array, fold, stream), array.drain),
    )
    return passing + (0 if array.dataflow.is_pipelined else array.skew)


def _after(array: Folding, fold: _Fold) -> int:
    """Cycles in which kept sums leave."""
    size = _unloaded(array, fold)
    return max(array.shift, _moving(size, array.drain)) if size else 0


def _unloaded(array: Folding, fold: _Fold) -> int:
    """Bytes of sums that were kept, as they leave."""
    return fold.part.extent * fold.width * array.sum_bytes if array.keeps_sums else 0


def _hidden(array: Folding, fold: _Fold, follower: _Fold, stream: int) -> int:
    """Cycles that second registers save between a fold and the next."""
    if array.keeps_sums:
        return min(_after(array, fold), _during(array, follower, stream))
    during, before = _during(array, fold, stream), _before(array, follower)
    together = max(during, before)
    if not array.dataflow.load_bytes_per_cycle:
        size = follower.part.extent * follower.width * array.kept_bytes
        together = max(together, _moving(_streamed(array, fold, stream) + size, array.feed))
    return during + before - together


def _streamed(array: Folding, fold: _Fold, stream: int) -> int:
    """Bytes that come in while a fold is computed."""
    part, width = fold
    if array.keeps_sums:
        return stream * (part.extent * array.left_bytes + width * array.right_bytes)
    sums = width * array.sum_bytes if part.takes else 0
    return stream * (part.extent * array.passing_bytes + sums)


def _returned(array: Folding, fold: _Fold, stream: int) -> int:
    """Bytes that go out while a fold is computed."""
    if array.keeps_sums or not fold.part.gives:
        return 0
    return stream * fold.width * array.sum_bytes


def _moving(num_bytes: int, rate: float) -> int:
    return ceil(num_bytes / rate) if rate else 0


def _runs(extent: int, size: int) -> list[tuple[int, int]]:
    """An extent in pieces of `size`, the last one smaller."""
    full, rest = divmod(extent, size)
    return [(e, n) for e, n in ((size, full), (rest, 1)) if e and n]


def _successions(
    parts: Sequence[tuple[_Part, int]], widths: Sequence[tuple[int, int]], rounds: int
) -> Iterator[tuple[_Fold, _Fold, int]]:
    """Folds that follow each other, with how often they do."""
    inner = list(_following([times for _, times in parts], 1))
    for width, columns in widths:
        for one, other, times in inner:
            pair = _Fold(parts[one][0], width), _Fold(parts[other][0], width)
            yield *pair, times * columns * rounds
    for one, other, times in _following([columns for _, columns in widths], rounds):
        yield _Fold(parts[-1][0], widths[one][0]), _Fold(parts[0][0], widths[other][0]), times


def _following(runs: Sequence[int], rounds: int) -> Iterator[tuple[int, int, int]]:
    """Neighbours in runs of equal things, all of it `rounds` times: (one, other, how often)."""
    for k, times in enumerate(runs):
        yield k, k, (times - 1) * rounds
        if k:
            yield k - 1, k, rounds
    yield len(runs) - 1, 0, rounds - 1


def folding(
    engine: Engine, speed: float, sizes: tuple[int, int, int], depth: int
) -> Folding | None:
    """How `engine` works at `speed` MACs per cycle; None where its dataflow is not described, or
    is none of folds.

    `sizes`: bytes of an element of the left factor, the right one, and the sum; `depth`: of the
    whole operator.
    """
    if engine.dataflow is None or engine.dataflow.stationary is Stationary.ROW:
        return None
    return Folding(
        engine.dataflow, granule(engine.array, engine.dataflow), speed,
        engine.feed_bytes_per_cycle, engine.drain_bytes_per_cycle, *sizes, depth,
    )  # fmt: skip
