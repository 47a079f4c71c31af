"""Rows in cells: all passes of small products laid out set by set, bytes counted as they move."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import permutations, product
from math import ceil, prod
from typing import NamedTuple

import numpy as np
import pytest

from worker.compiler.cost.row_stationary import RowStationary, Shape, Slides, Window, least_moved
from worker.compiler.jit import compiled

TAP, IN, SUM = 2, 1, 4
"""Bytes of an element of each."""


class Filling(NamedTuple):
    """One way to fill an array with sets."""

    width: int
    summed: int
    made: int
    cut: int
    apart: int


class Seen(NamedTuple):
    passes: int
    drawn: int
    returned: int
    heard: int


def across(extent: int, size: int) -> Iterator[range]:
    return (range(a, min(a + size, extent)) for a in range(0, extent, size))


def fillings(shape: Shape, array: tuple[int, int]) -> Iterator[Filling]:
    """All that the cells have room for, by trying them out."""
    tall = ceil(shape.tall / ceil(shape.tall / array[0]))
    for width, summed, made, cut, apart in product(
        range(1, array[1] + 1), range(1, array[0] + 1), range(1, prod(array) + 1),
        range(1, prod(array) + 1), range(1, prod(array) + 1),
    ):  # fmt: skip
        piles = (array[0] // (tall * summed)) * (array[1] // width)
        if made * cut * apart <= piles:
            yield Filling(width, summed, made, cut, apart)


def laid_out(shape: Shape, fill: Filling) -> list[list[tuple[int, int, int, int, int]]]:
    """By pass, the sets at work: (image, group, input channel, output channel, strip)."""
    strips = ceil(shape.rows / fill.width)
    rounds = product(
        across(shape.images, 1), across(shape.groups, fill.apart),
        across(shape.inputs, fill.summed), across(shape.outputs, fill.made),
        across(strips, fill.cut),
    )  # fmt: skip
    return [list(product(*parts)) for parts in rounds]


def rows_read(strip: range, shape: Shape, window: Window) -> set[int]:
    return {
        place * window.step + tap * window.reach
        for place in strip for tap in range(shape.tall)
    }  # fmt: skip


def of(array: RowStationary, shape: Shape) -> tuple[int, Iterator[Filling]]:
    """(fewest passes of any filling, the fillings that have them)."""
    found = {fill: len(laid_out(shape, fill)) for fill in fillings(shape, array.array)}
    fewest = min(found.values())
    return fewest, (fill for fill, count in found.items() if count == fewest)


def moved_by(
    array: RowStationary, shape: Shape, fill: Filling, down: Window, long: int
) -> Iterator[Seen]:
    """What every way of blocks and loops moves that fits in a cell, as buffers of one block see it:
    a block comes in when another was there before."""
    strips = list(across(shape.rows, fill.width))
    high = ceil(shape.tall / ceil(shape.tall / array.array[0]))
    channels = list(across(shape.inputs, fill.summed))
    made = list(across(shape.outputs, fill.made))
    over = list(product(range(shape.images), across(len(strips), fill.cut)))
    passes = len(channels) * len(made) * len(over) * ceil(shape.groups / fill.apart)
    folds = ceil(shape.tall / array.array[0])
    for sizes in product(*(range(1, len(part) + 1) for part in (channels, made, over))):
        held = shape.wide * (sizes[0] * sizes[1] * TAP + sizes[0] * sizes[2] * IN)
        if held + sizes[1] * sizes[2] * SUM > array.cell_bytes and sizes != (1, 1, 1):
            continue
        blocks = [
            list(across(len(part), size))
            for part, size in zip((channels, made, over), sizes, strict=True)
        ]
        for order in permutations(range(3)):
            drawn = returned = heard = 0
            begun: set[tuple[int, int]] = set()
            now: list[tuple[int, int] | None] = [None, None, None]
            for numbers in product(*(range(len(blocks[axis])) for axis in order)):
                place = dict(zip(order, numbers, strict=True))
                i, o, s = (
                    [part[k] for k in blocks[axis][place[axis]]]
                    for axis, part in enumerate((channels, made, over))
                )
                inputs, outputs = sum(map(len, i)), sum(map(len, o))
                cut = [strips[k] for _, group in s for k in group]
                results = outputs * sum(map(len, cut)) * shape.columns * SUM
                if now[0] != (place[0], place[1]):
                    taps = inputs * outputs * shape.tall * shape.wide * TAP
                    drawn += taps
                    beside = min(fill.cut, len(strips)) * min(fill.width, shape.rows)
                    heard += taps * beside
                if now[1] != (place[0], place[2]):
                    lines = sum(len(rows_read(strip, shape, down)) for strip in cut)
                    drawn += folds * inputs * lines * long * IN
                    heard += (
                        inputs * shape.tall * sum(map(len, cut)) * long * IN
                        * min(fill.made, shape.outputs)
                    )  # fmt: skip
                if now[2] != (place[1], place[2]):
                    key = place[1], place[2]
                    again = folds - 1 + (key in begun)
                    drawn += again * results
                    returned += folds * results
                    heard += folds * results * high * min(fill.summed, shape.inputs)
                    begun.add(key)
                now = [(place[0], place[1]), (place[0], place[2]), (place[1], place[2])]
            yield Seen(passes, drawn * shape.groups, returned * shape.groups, heard * shape.groups)


def drawn_at_random(rng: random.Random) -> tuple[RowStationary, Shape, Window, Window]:
    shape = Shape(*(rng.choice([1, 1, 2, 3]) for _ in range(4)), rng.choice([1, 1, 2]),
                  *(rng.choice([1, 2, 3, 5]) for _ in range(2)), rng.choice([1, 1, 3]))  # fmt: skip
    down = Window(0, 1, *rng.choice([(1, 1), (1, 1), (2, 1), (1, 2)]))
    over = Window(2, 3, *rng.choice([(1, 1), (1, 1), (2, 1), (1, 2)]))
    slides = Slides(over, down, (), (4,), (5,), (6,), (7,))
    cells = rng.choice([2, 3, 4]), rng.choice([1, 2, 3])
    room = shape.wide * (TAP + IN) + SUM + rng.choice([0, 5, 11, 40])
    depth = shape.tall * shape.wide * shape.inputs
    array = RowStationary(cells, float(prod(cells)), room, 0.0, 0.0, slides, (TAP, IN, SUM), depth)
    return array, shape, down, over


def extents(shape: Shape) -> tuple[int, ...]:
    """In the order of the axes that `drawn_at_random` names."""
    return (
        shape.tall, shape.rows, shape.wide, shape.columns, shape.images, shape.inputs,
        shape.outputs, shape.groups,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(80))
def test_an_instruction_is_the_best_of_all_ways_laid_out(seed: int) -> None:
    array, shape, down, over = drawn_at_random(random.Random(seed))
    found = array.moved(extents(shape))
    fewest, fills = of(array, shape)
    folds = ceil(shape.tall / array.array[0])
    assert found.steps == fewest * folds * shape.wide * shape.columns
    long = len({p * over.step + t * over.reach
                for p in range(shape.columns) for t in range(shape.wide)})  # fmt: skip
    assert any(
        found[1:] in [seen[1:] for seen in ways]
        and sum(found[1:3]) == min(seen.drawn + seen.returned for seen in ways)
        for ways in (list(moved_by(array, shape, fill, down, long)) for fill in fills)
    ), (found, shape)


@pytest.mark.parametrize("seed", range(20))
def test_each_multiplication_is_done_once(seed: int) -> None:
    """By the sets of some filling, pass by pass; none works beside a copy of itself."""
    array, shape, _, _ = drawn_at_random(random.Random(seed))
    for fill in list(fillings(shape, array.array))[:200]:
        sets = [one for sets in laid_out(shape, fill) for one in sets]
        strips = ceil(shape.rows / fill.width)
        whole = shape.images * shape.groups * shape.inputs * shape.outputs * strips
        assert len(sets) == len(set(sets)) == whole


@pytest.mark.parametrize("seed", range(20))
def test_no_cut_is_faster_than_its_floor(seed: int) -> None:
    rng = random.Random(seed)
    array, shape, _, _ = drawn_at_random(rng)
    whole = extents(shape)
    box = tuple(rng.randint(1, size) for size in whole)
    assert array.cycles(box) >= prod(box) * array.point_cycles(whole) * (1 - 1e-9)


@pytest.mark.parametrize("axis", range(8))
def test_an_empty_box_moves_nothing(axis: int) -> None:
    """Cores that a split leaves without work have such boxes."""
    array, shape, _, _ = drawn_at_random(random.Random(axis))
    box = tuple(0 if k == axis else size for k, size in enumerate(extents(shape)))
    assert array.moved(box) == (0, 0, 0, 0)
    assert array.cycles(box) == 0


def test_compiled_as_plain() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        numbers = np.array([rng.randint(1, 9) for _ in range(16)] + [60, seed % 2], np.int64)
        assert compiled(least_moved)(numbers).tolist() == least_moved(numbers).tolist()
