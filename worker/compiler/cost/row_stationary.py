"""What a product costs on an array whose cells keep rows: of a filter, sliding along one of inputs.

**Sets.**  A cell takes a row of taps and slides it along a row of the input (`wide` taps, `columns`
positions).  As many cells above each other as a filter has rows (`tall`), as many beside each other
as rows of the result are made at once (a strip), are a set: a row of taps is heard along a row of
cells, a row of the input along a diagonal, sums go up a column.  Filters with more rows than the
array are folded.  What does not slide is a filter of one tap: its rows of the left factor take the
part of rows of the result, one position each.

**Side by side.**  The array has room for some sets.  Those above each other may take different
input channels, whose sums meet; the others different output channels, different strips, and
different groups.  Sets in use do one step a cycle in every cell; what a pass takes is
folds x wide x columns cycles, however little of the array sets leave in use.  Of all ways to fill
the array that with the fewest passes is taken, of equals that whose passes move the least.

**Registers.**  A cell interleaves passes: over several input channels, output channels and strips
(or images), as many rows of taps, windows of inputs and sums as fit in its registers.  Between
blocks of these one of the three operands stays, whichever leaves the fewest bytes to move.

**Ports.**  What enters and leaves for an instruction passes the feed and the drain while passes
run: the longest of the three counts.  Sums that leave before they are complete come back.

Source: Eyeriss (ISCA 2016, JSSC 2017) for the dataflow; nn_dataflow's restatement for passes and
what they move (`benchmarks/rivals/row_stationary.py` has its space).  Ours: strips narrower than
the array, strips and groups in any set, sums of a folded filter, ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd, prod
from typing import NamedTuple

import numpy as np

from worker.compiler.ir.affine import Affine, Var
from worker.compiler.ir.op import TensorOp
from worker.compiler.jit import loop_for
from worker.compiler.machine.machine import Engine

FILTER, INPUT, OUTPUT = range(3)
"""What moves."""
_STEPS = 8
"""By cell of the array, of a search for ways to fill it and for blocks: up to so many, where all
extents of a box are large."""


class Window(NamedTuple):
    """A dimension of the left factor along which taps slide."""

    tap: int
    """Axis, by its position in the domain."""
    place: int
    step: int
    """Elements of the input, of those that are read at all, from one place to the next."""
    reach: int
    """From one tap to the next."""

    def touched(self, taps: int, places: int) -> int:
        """Elements of the input under so many taps at so many places, at most."""
        spread = (places - 1) * self.step + (taps - 1) * self.reach + 1
        return min(spread, taps * places)


@dataclass(frozen=True, slots=True)
class Slides:
    """The axes of a product by the part that they take in the array; positions in the domain."""

    across: Window | None
    """Taps in a row of cells' own row, places that pass it."""
    down: Window | None
    """Taps by row of cells, places by column."""
    strips: tuple[int, ...]
    """Where nothing slides down: rows of the left factor, a column each."""
    images: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    groups: tuple[int, ...]


class Shape(NamedTuple):
    """A box as the array sees it."""

    tall: int
    wide: int
    rows: int
    columns: int
    images: int
    inputs: int
    outputs: int
    groups: int


class Moved(NamedTuple):
    """What one instruction takes and moves."""

    steps: int
    """Of every cell: multiply-accumulates, idle ones among them."""
    drawn: int
    """Bytes."""
    returned: int
    heard: int
    """What cells take from their lines, and sums on their way from cell to cell."""


def slides_of(op: TensorOp, left: int, roles: tuple[tuple[int, ...], ...]) -> Slides:
    """The parts of the axes.

    `left`: read slot of the left factor; `roles`: positions of rows, columns, depth and batch.
    The innermost window slides in cells, the one around it over them; taps of any other are
    channels.
    """
    rows, columns, depth, batch = roles
    windows = [
        found for expr in op.reads[left].index
        if (found := _window(op, expr, rows, depth)) is not None
    ]  # fmt: skip
    across = windows[-1] if windows else None
    down = windows[-2] if len(windows) > 1 else None
    sliding = [w for w in (across, down) if w is not None]
    taken = {w.tap for w in sliding} | {w.place for w in sliding}
    others = tuple(k for k in rows if k not in taken)
    return Slides(
        across, down,
        strips=() if down is not None else others,
        images=others if down is not None else (),
        inputs=tuple(k for k in depth if k not in taken),
        outputs=columns, groups=batch,
    )  # fmt: skip


def _window(
    op: TensorOp, expr: Affine, rows: tuple[int, ...], depth: tuple[int, ...]
) -> Window | None:
    names = [axis.name for axis in op.domain]
    found = [
        (names.index(atom.name), abs(factor)) for atom, factor in expr.terms
        if isinstance(atom, Var)
    ]  # fmt: skip
    taps = [(k, factor) for k, factor in found if k in depth]
    places = [(k, factor) for k, factor in found if k in rows]
    if len(taps) != 1 or len(places) != 1:
        return None
    (tap, reach), (place, step) = taps[0], places[0]
    apart = gcd(step, reach)  # elements in between are never read
    return Window(tap, place, step // apart, reach // apart)


_NOTHING = Moved(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class RowStationary:
    """How such an array works through one operator: all that is needed besides the box."""

    array: tuple[int, int]
    """Rows and columns of cells."""
    speed: float
    """MACs per cycle of all cells."""
    cell_bytes: int
    """Registers of a cell."""
    feed: float
    """Bytes per cycle; 0: any."""
    drain: float
    slides: Slides
    item_bytes: tuple[int, int, int]
    """Of an element of the right factor (taps), the left one, and the sum."""
    depth: int
    """Of the whole operator: an instruction that has less takes sums and returns them."""

    def shape(self, extents: tuple[int, ...]) -> Shape:
        """A box (domain order) as the array sees it.  Cost: linear in the rank."""
        s = self.slides

        def size(axes: tuple[int, ...]) -> int:
            return prod(extents[k] for k in axes)

        tall, rows = (1, size(s.strips)) if s.down is None else (
            extents[s.down.tap], extents[s.down.place]
        )  # fmt: skip
        wide, columns = (1, 1) if s.across is None else (
            extents[s.across.tap], extents[s.across.place]
        )  # fmt: skip
        return Shape(
            tall, wide, rows, columns, size(s.images), size(s.inputs), size(s.outputs),
            size(s.groups),
        )  # fmt: skip

    def cycles(self, extents: tuple[int, ...], lanes: int = 1) -> int:
        """Cycles of one instruction over a box, without its start; `lanes` boxes of that size run
        one after another.  Cost: some microseconds for a shape that was not asked for before."""
        moved = self.moved(extents)
        busy = ceil(moved.steps * lanes * self.cells / self.speed)
        ports = ((moved.drawn, self.feed), (moved.returned, self.drain))
        return max(busy, *(ceil(size * lanes / rate) if rate else 0 for size, rate in ports))

    def moved(self, extents: tuple[int, ...]) -> Moved:
        """Steps of one instruction, and what it moves: nothing of an empty box, which a core has
        that a split leaves without work."""
        return _moved(self, self.shape(extents)) if prod(extents) else _NOTHING

    def point_cycles(self, extents: tuple[int, ...]) -> float:
        """Cycles of a point of an operator of `extents` at least, however it is cut: no cell of a
        set, and no set, does what another does.  Cost: linear in the rank."""
        shape = self.shape(extents)
        used = shape.tall * shape.rows * shape.inputs * shape.outputs * shape.groups
        return max(1.0, self.cells / max(1, used)) / self.speed

    @property
    def cells(self) -> int:
        return self.array[0] * self.array[1]


@lru_cache(maxsize=1 << 16)
def _moved(array: RowStationary, shape: Shape) -> Moved:
    down, across = array.slides.down, array.slides.across
    step, reach = (1, 1) if down is None else (down.step, down.reach)
    long = shape.columns if across is None else across.touched(shape.wide, shape.columns)
    is_partial = shape.inputs * shape.tall * shape.wide < array.depth
    numbers = (*array.array, *shape, step, reach, long, *array.item_bytes, array.cell_bytes)
    loop = loop_for(least_moved, _STEPS * array.cells)
    found = loop(np.array((*numbers, int(is_partial)), np.int64))
    return Moved(*found.tolist())


def least_moved(numbers: np.typing.NDArray[np.int64]) -> np.typing.NDArray[np.int64]:
    """(steps of a cell, bytes drawn, returned, heard) of one instruction.

    `numbers`: rows and columns of the array, the shape, from row to row of the input and from tap
    to tap down it, length of its rows, bytes of taps, inputs and sums, of a cell's registers, and
    whether sums come in.  Cost: up to c ln^2 c for c cells, and roots of numbers of channels.
    """
    cells_down, cells_across = numbers[0], numbers[1]
    tall, wide, rows, columns = numbers[2], numbers[3], numbers[4], numbers[5]
    images, inputs, outputs, groups = numbers[6], numbers[7], numbers[8], numbers[9]
    step, reach, long = numbers[10], numbers[11], numbers[12]
    tap_bytes, in_bytes, sum_bytes = numbers[13], numbers[14], numbers[15]
    room, is_partial = numbers[16], numbers[17]
    folds = (tall + cells_down - 1) // cells_down
    high = (tall + folds - 1) // folds  # rows of cells in a set
    # A row of taps that is longer than registers are goes through in parts.
    most = max(1, (room - sum_bytes) // (tap_bytes + in_bytes))
    parts = (wide + most - 1) // most
    part = (wide + parts - 1) // parts
    folds *= parts
    above = max(1, cells_down // high)  # sets above each other
    out = np.zeros(4, np.int64)
    fewest, least = np.int64(-1), np.int64(-1)
    strip = beside_in = beside_out = beside_strips = np.int64(1)
    # Of numbers with which as many rounds are left, the smallest moves the least: only these.
    width = np.int64(1)
    while width <= min(rows, cells_across):
        strips = (rows + width - 1) // width
        tapped = min(tall * width, (width - 1) * step + (tall - 1) * reach + 1)
        summed = np.int64(1)
        while summed <= min(above, inputs):
            # Sets above each other whose sums meet, and as many such piles as there is room for.
            piles = (above // summed) * (cells_across // width)
            rounds_in = (inputs + summed - 1) // summed
            apart = np.int64(1)
            while apart <= min(piles, groups):
                rounds_apart = (groups + apart - 1) // apart
                cut = np.int64(1)
                while cut <= min(piles // apart, strips):
                    rounds_down = (strips + cut - 1) // cut
                    rounds_out = (outputs - 1) // min(piles // apart // cut, outputs) + 1
                    made = (outputs - 1) // rounds_out + 1
                    rounds = rounds_in * rounds_out * rounds_down * rounds_apart * images
                    size = apart * (
                        tall * wide * tap_bytes * summed * made
                        + tapped * long * in_bytes * summed * cut
                        + 2 * folds * width * columns * sum_bytes * made * cut
                    )
                    if fewest < 0 or rounds < fewest or (rounds == fewest and size < least):
                        fewest, least, strip = rounds, size, width
                        beside_in, beside_out, beside_strips = summed, made, cut
                    cut = (strips - 1) // (rounds_down - 1) + 1 if rounds_down > 1 else strips + 1
                apart = (groups - 1) // (rounds_apart - 1) + 1 if rounds_apart > 1 else groups + 1
            summed = (inputs - 1) // (rounds_in - 1) + 1 if rounds_in > 1 else inputs + 1
        width = (rows - 1) // (strips - 1) + 1 if strips > 1 else rows + 1
    strips = (rows + strip - 1) // strip
    loops_in = (inputs + beside_in - 1) // beside_in
    loops_out = (outputs + beside_out - 1) // beside_out
    loops_over = (strips + beside_strips - 1) // beside_strips * images
    # Of the whole box, each thing once: taps, rows of the input with what strips share, sums.
    full, rest = rows // strip, rows % strip
    tapped = full * min(tall * strip, (strip - 1) * step + (tall - 1) * reach + 1)
    if rest:
        tapped += min(tall * rest, (rest - 1) * step + (tall - 1) * reach + 1)
    taps = groups * tall * wide * inputs * outputs * tap_bytes
    entering = groups * images * inputs * tapped * long * in_bytes
    sums = groups * images * outputs * rows * columns * sum_bytes
    # What cells take of it: a tap as many as a strip is wide, in every strip beside; an input as
    # many as there are rows of taps on it, for every pile of other outputs.
    taps_heard = taps * min(strip, rows) * min(beside_strips, strips)
    rows_heard = tall * rows * long * in_bytes * groups * images * inputs
    rows_heard *= min(beside_out, outputs)
    best = np.int64(-1)
    block_in = np.int64(1)
    while block_in <= loops_in:
        trips_in = (loops_in + block_in - 1) // block_in
        block_out = np.int64(1)
        while block_out <= loops_out:
            left = room - part * block_in * block_out * tap_bytes
            one = part * block_in * in_bytes + block_out * sum_bytes
            if left < one and (block_in > 1 or block_out > 1):
                break
            block_over = min(loops_over, max(1, left // one))
            trips_out = (loops_out + block_out - 1) // block_out
            trips_over = (loops_over + block_over - 1) // block_over
            for stays in range(3):
                again_taps = np.int64(1) if stays == FILTER else trips_over
                again_in = np.int64(1) if stays == INPUT else trips_out
                again_sums = np.int64(1) if stays == OUTPUT else trips_in
                left_sums = again_sums * folds
                drawn = taps * again_taps + entering * again_in * folds
                drawn += sums * (left_sums - 1 + is_partial)
                returned = sums * left_sums
                if best < 0 or drawn + returned < best:
                    best = drawn + returned
                    out[1], out[2] = drawn, returned
                    out[3] = taps_heard * again_taps + rows_heard * again_in
                    out[3] += sums * left_sums * high * min(beside_in, inputs)
            block_out = (loops_out - 1) // (trips_out - 1) + 1 if trips_out > 1 else loops_out + 1
        block_in = (loops_in - 1) // (trips_in - 1) + 1 if trips_in > 1 else loops_in + 1
    out[0] = fewest * folds * part * columns
    return out


def row_stationary(
    engine: Engine, speed: float, slides: Slides, item_bytes: tuple[int, int, int], depth: int
) -> RowStationary:
    """How `engine` works at `speed` MACs per cycle.

    `item_bytes`: of an element of the left factor, the right one, and the sum.
    """
    assert engine.dataflow is not None
    left, right, total = item_bytes
    tall, wide = engine.array
    return RowStationary(
        (tall, wide), speed, engine.dataflow.cell_bytes, engine.feed_bytes_per_cycle,
        engine.drain_bytes_per_cycle, slides, (right, left, total), depth,
    )  # fmt: skip
