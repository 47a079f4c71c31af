"""Layers shared out over a mesh of row-stationary nodes: the space that nn-dataflow searches there.

A layer is cut four ways at once: by filters, by rows and columns of the output, by images and by
input channels.  Each cut has an extent along both sides of the mesh, and the cuts stand inside each
other in some order.  Every node has what remains of the layer, rounded up, in a nest of its own.
Feature maps lie at the four corners, cut as the layer that made them was; filters lie at all of
them.  What a node brings from there counts a hop for every word and router.
Source: nn_dataflow 2.x (stanford-mast), which this restates: facts and formulas, none of its code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations, product
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.rivals.row_stationary import Layer
from worker.compiler.tiling.factors import divisors

Ints: TypeAlias = "npt.NDArray[np.int64]"
Ranges: TypeAlias = "npt.NDArray[Any]"
"""[places, images/channels/rows/columns, begin/end]"""

SIDE = 16
"""Of the mesh, in nodes."""
CORNERS = 2
"""Along each side."""
FILTERS, OUTPUT, IMAGES, CHANNELS = range(4)
"""Cuts.  Those but the last cut a feature map."""
_OF_MAPS = (FILTERS, OUTPUT, IMAGES)


class Cut(NamedTuple):
    """How a layer is shared out."""

    order: tuple[int, ...]
    """Cuts from the outermost."""
    tall: tuple[int, ...]
    """By cut, its extent down the mesh."""
    wide: tuple[int, ...]

    def size(self, kind: int) -> int:
        """Parts of one cut."""
        return self.tall[kind] * self.wide[kind]


@cache
def _factors(number: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Products of `count` factors."""
    if count == 1:
        return ((number,),)
    return tuple(
        (first, *rest)
        for first in divisors(number)
        for rest in _factors(number // first, count - 1)
    )  # fmt: skip


def _divides(total: int, parts: int) -> bool:
    """Whether parts are equal within a tenth, or one."""
    padded = -(-total // parts) * parts
    return total >= parts and padded - total <= max(0.1 * padded, 1)


def cuts(layer: Layer, batch: int, side: int = SIDE, *, is_input: bool = False) -> list[Cut]:
    """Those that the tool tries; of none that is even enough, one by rows and columns or filters.

    `is_input`: of the network's input, which is no layer and has channels only.
    """
    found = list(_even_cuts(layer, batch, side, is_input))
    if found:
        return found
    ones = [1] * 4
    ones[FILTERS if layer.size == (1, 1) else OUTPUT] = side
    return [Cut((0, 1, 2, 3), tuple(ones), tuple(ones))]


def _even_cuts(layer: Layer, batch: int, side: int, is_input: bool) -> Iterator[Cut]:
    for tall, wide in product(_factors(side, 4), repeat=2):
        sizes = [a * b for a, b in zip(tall, wide, strict=True)]
        if batch % sizes[IMAGES]:
            continue
        # One side is used up before the other is begun, but by rows and columns.
        if any(
            1 < a < side and 1 < b < side and kind != OUTPUT
            for kind, (a, b) in enumerate(zip(tall, wide, strict=True))
        ):
            continue
        if not (
            _divides(layer.filters, sizes[FILTERS])
            and _divides(layer.size[0], tall[OUTPUT])
            and _divides(layer.size[1], wide[OUTPUT])
        ):
            continue
        if not is_input and not (
            sizes[CHANNELS] == 1 if layer.is_region else _divides(layer.channels, sizes[CHANNELS])
        ):
            continue
        is_flat = all(a == 1 or b == 1 for a, b in zip(tall, wide, strict=True))
        if sizes[OUTPUT] == 1 and is_flat and tall > wide:
            continue  # the other one, turned
        for order in permutations(range(4)):
            cut = Cut(order, tall, wide)
            if _is_first(cut):
                yield cut


def _is_first(cut: Cut) -> bool:
    """Whether no other order of the same cuts stands for it; images are cut outermost."""
    for one, other in zip(cut.order, cut.order[1:], strict=False):
        if cut.size(one) == cut.size(other) == 1 and one > other:
            return False
        if cut.size(one) > 1 and cut.size(other) == 1:
            return False
        is_row = cut.tall[other] == 1 and cut.wide[other] > 1
        if one != IMAGES and is_row and cut.tall[one] > 1 and cut.wide[one] == 1:
            return False
    trivial = sum(cut.size(kind) == 1 for kind in range(4))
    return cut.size(IMAGES) == 1 or cut.order[trivial] == IMAGES


def at_corners(cut: Cut) -> Cut:
    """How the result of a layer that is cut so lies at the corners."""
    sides = []
    for extents in (cut.tall, cut.wide):
        own = list(extents)
        own[CHANNELS] = 1
        left = CORNERS
        whole = prod(own)
        if left > whole:
            own[IMAGES] *= left // whole
        else:
            for kind in reversed(cut.order):
                if left >= own[kind]:
                    left //= own[kind]
                else:
                    own[kind], left = left, 1
        sides.append(tuple(own))
    return Cut(cut.order, *sides)


class Places(NamedTuple):
    """Who has which part, in the order of the parts' numbers."""

    numbers: Ints
    """[places, cuts, 2] Number of the part along both sides."""
    coordinate: Ints
    """[places, 2]"""


@cache
def _places(cut: Cut) -> Places:
    sides = [(cut.tall[kind], cut.wide[kind]) for kind in range(4)]
    index = np.array(
        list(product(*(product(range(a), range(b)) for a, b in sides))), np.int64
    )  # fmt: skip
    coordinate = np.zeros((len(index), 2), np.int64)
    for kind in cut.order:
        coordinate = coordinate * np.array(sides[kind]) + index[:, kind]
    return Places(index, coordinate)


def _ith(total: int, part: Ints, parts: int) -> Ints:
    return np.stack([part * total // parts, (part + 1) * total // parts], axis=-1)


def _map_ranges(layer: Layer, batch: int, cut: Cut) -> Ranges:
    """[places, 4, 2] What each place has of the output."""
    index = _places(cut).numbers
    flat = index[:, :, 0] * np.array(cut.wide) + index[:, :, 1]
    return np.stack([
        _ith(batch, flat[:, IMAGES], cut.size(IMAGES)),
        _ith(layer.filters, flat[:, FILTERS], cut.size(FILTERS)),
        _ith(layer.size[0], index[:, OUTPUT, 0], cut.tall[OUTPUT]),
        _ith(layer.size[1], index[:, OUTPUT, 1], cut.wide[OUTPUT]),
    ], axis=1)  # fmt: skip


class Layout(NamedTuple):
    """What of a feature map lies at which corner."""

    pieces: tuple[tuple[tuple[int, int], ...], ...]
    """[corners][images/channels/rows/columns] (begin, end)"""
    corners: tuple[tuple[int, int], ...]


def layout_of(layer: Layer, batch: int, cut: Cut) -> Layout:
    """Of the output of a layer, cut so at the corners."""
    ranges, (_, coordinate) = _map_ranges(layer, batch, cut), _places(cut)
    order = np.lexsort(coordinate.T)
    far = (SIDE - 1) // (CORNERS - 1)
    return Layout(
        tuple(tuple((int(a), int(b)) for a, b in ranges[k]) for k in order),
        tuple((int(far * coordinate[k, 0]), int(far * coordinate[k, 1])) for k in order),
    )


def _hops(ranges: Ranges, coordinate: Ints, layouts: Sequence[Layout]) -> Ints:
    """[layouts, places] Words times hops of bringing a part of a feature map to each."""
    pieces = np.array([layout.pieces for layout in layouts])
    corners = np.array([layout.corners for layout in layouts])
    begin = np.maximum(ranges[:, :, 0], pieces[:, :, None, :, 0])
    end = np.minimum(ranges[:, :, 1], pieces[:, :, None, :, 1])
    words = np.maximum(end - begin, 0).prod(axis=3)
    far = np.abs(corners[:, :, None] - coordinate).sum(axis=3)
    found: Ints = (words * far).sum(axis=1)
    return found


def _distance(one: Ints, other: Ints) -> Ints:
    found: Ints = np.abs(one[:, None, :] - other[None, :, :]).sum(axis=2)
    return found


@dataclass(frozen=True, slots=True)
class Shared:
    """A layer, cut."""

    node: Layer
    """What remains for a node, rounded up."""
    batch: int
    occupancy: float
    """Operations of the layer over those of all nodes."""
    filter_hops: int
    """Words times hops of everything once."""
    result: Layout
    result_hops: int
    """Of the result once, to the corners or from there; with sums of other nodes."""
    inputs: Ranges
    """Of nodes that work."""
    coordinate: Ints
    """Theirs."""

    def input_hops(self, layouts: Sequence[Layout], first: int = 0) -> Ints:
        """[layouts] Of a map that is read once, from where it may lie.

        `first`: which of the layer's input channels the map's first one is.
        """
        ranges = self.inputs.copy()
        ranges[:, 1] -= first
        found: Ints = _hops(ranges, self.coordinate, layouts).sum(axis=1)
        return found


def shared(layer: Layer, batch: int, cut: Cut) -> Shared:
    """Cost: linear in nodes."""
    index, coordinate = _places(cut)
    output = _map_ranges(layer, batch, cut)
    flat = index[:, CHANNELS, 0] * cut.wide[CHANNELS] + index[:, CHANNELS, 1]
    channels = _ith(layer.channels, flat, cut.size(CHANNELS))
    inputs = output.copy()
    if layer.is_region:
        # Neighbours along channels, as the tool has them: of a pool, one at the end.
        before = layer.inputs // 2
        inputs[:, 1, 0] = np.maximum(0, output[:, 1, 0] - before)
        inputs[:, 1, 1] = np.minimum(
            layer.channels * layer.inputs, output[:, 1, 1] + layer.inputs - before
        )
    else:
        inputs[:, 1] = channels
    for axis, window in ((2, layer.window[0]), (3, layer.window[1])):
        first, last = output[:, axis, 0] * layer.stride, output[:, axis, 1] - 1
        inputs[:, axis, 0] = first
        inputs[:, axis, 1] = np.maximum(first, last * layer.stride + window)
    # Where a layer has fewer parts than there are nodes, some have nothing to do.
    works = np.logical_and(_words(output) > 0, _words(inputs) > 0)
    filters = 0
    if not layer.is_region:
        ends = (SIDE - 1) * np.array(list(product(range(CORNERS), repeat=2)))
        size = (channels[:, 1] - channels[:, 0]) * (output[:, 1, 1] - output[:, 1, 0])
        size = size * prod(layer.window) * works
        filters = int((size * _distance(coordinate, ends).min(axis=1)).sum())
    result = layout_of(layer, batch, at_corners(cut))
    node = replace(
        layer, channels=-(-layer.channels // cut.size(CHANNELS)),
        filters=-(-layer.filters // cut.size(FILTERS)),
        size=(-(-layer.size[0] // cut.tall[OUTPUT]), -(-layer.size[1] // cut.wide[OUTPUT])),
    )  # fmt: skip
    if layer.is_region:
        node = replace(node, channels=node.filters)
    each = -(-batch // cut.size(IMAGES))
    return Shared(
        node, each, _operations(layer, batch) / (_operations(node, each) * len(index)), filters,
        result, _result_hops(output[works], coordinate[works], cut.size(CHANNELS), result),
        inputs[works], coordinate[works],
    )  # fmt: skip


def _words(ranges: Ranges) -> Ints:
    found: Ints = (ranges[:, :, 1] - ranges[:, :, 0]).prod(axis=1)
    return found


def _operations(layer: Layer, batch: int) -> int:
    work = batch * layer.filters * prod(layer.size) * prod(layer.window)
    return work * (layer.inputs if layer.is_region else layer.channels)


def _result_hops(output: Ranges, coordinate: Ints, sharers: int, result: Layout) -> int:
    """Of nodes with parts of the same sums, which follow each other, the middle one meets memory;
    the others send theirs there, one way."""
    teams = coordinate.reshape(-1, sharers, 2)
    middle, words = teams[:, sharers // 2], _words(output[::sharers])
    far = np.abs(teams - middle[:, None]).sum(axis=2)
    sent = -(-(words[:, None] * far) // 2)
    return int(_hops(output[::sharers], middle, [result]).sum() + sent.sum())
