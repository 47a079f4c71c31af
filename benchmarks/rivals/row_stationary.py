"""Layers as loop nests of a row-stationary array: the space that nn-dataflow searches on one node.

A unit pass slides rows of a filter along rows of the input, a row of each on a PE.  Passes are
repeated over the array (replication) and over time: loops over groups of input channels (I), of
output channels (O) and over images (B).  What one pass moves at every level, and what it holds,
follows from the layer and the array; how often passes run, and what stays between them, is blocking
(`blocking`).
Source: nn_dataflow 2.x (stanford-mast), which this restates: facts and formulas, none of its code.
Words of 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

FILTER, INPUT, OUTPUT = range(3)
"""Data, in the order of all triples here."""
LOOPS_OF_PRODUCTS = ((1, 1, 0), (1, 0, 1), (0, 1, 1))
"""By data: which of the loops (I, O, B) it has.  Rows: filter, input, output."""
LOOPS_OF_REGIONS = ((0, 0, 0), (0, 1, 1), (0, 1, 1))

Words = tuple[float, float, float]
"""Of filter, input and output."""


@dataclass(frozen=True, slots=True)
class Node:
    """One array with its memories; energies per operation or word."""

    array: tuple[int, int] = (16, 16)
    register_words: int = 256
    """Of one PE."""
    buffer_words: int = 65_536
    op: float = 1.0
    register: float = 1.0
    bus: float = 2.0
    buffer: float = 6.0
    dram: float = 200.0


@dataclass(frozen=True, slots=True)
class Layer:
    """A product over windows, or (`is_region`) a pool, or an addition of `inputs` tensors."""

    channels: int
    filters: int
    size: tuple[int, int]
    """Of the output: rows, columns."""
    window: tuple[int, int]
    stride: int = 1
    is_region: bool = False
    inputs: int = 1


@dataclass(frozen=True, slots=True)
class Nest:
    """One way to replicate a layer's unit passes over the array."""

    loops: tuple[int, int, int]
    """Iterations of I, O, B."""
    has: tuple[tuple[int, int, int], ...]
    """By data, its loops."""
    dram: Words
    """Moved by one pass."""
    buffer: Words
    bus: Words
    buffer_room: Words
    """Held of one pass."""
    register_room: Words
    """By a PE."""
    ops: float
    """Of one pass."""
    cycles: int


def _folded(extent: int, cells: int) -> tuple[int, int]:
    """(passes that an extent is folded into, copies of it side by side)."""
    return (-(-extent // cells), 1) if extent > cells else (1, cells // extent)


def nests(layer: Layer, batch: int, node: Node) -> list[Nest]:
    """The replications with the fewest iterations, as they are met with more and more input
    channels side by side.  Cost: the divisors of the array's height."""
    found: list[Nest] = []
    for together, beside in copies(layer, node):
        nest = nest_of(layer, batch, node, together, beside)
        if not found or _iterations(nest.loops) <= min(_iterations(n.loops) for n in found):
            found.append(nest)
    return found


def _pass_shape(layer: Layer, node: Node) -> tuple[int, int, int, int]:
    """(folds of the filter's rows, of the output's rows; copies of the set above each other, beside
    each other)."""
    tall_folds, tall_copies = _folded(layer.window[0], node.array[0])
    row_folds, row_copies = _folded(layer.size[0], node.array[1])
    moved_up = min(tall_copies, row_folds)  # what does not fit in width stands above each other
    return tall_folds, -(-row_folds // moved_up), tall_copies // moved_up, row_copies


def copies(layer: Layer, node: Node) -> list[tuple[int, int]]:
    """(input channels, output channels) of the passes side by side that fill the array."""
    _, _, tall, across = _pass_shape(layer, node)
    if layer.is_region:
        return [(1, tall * across)]
    return [(a, tall // a * across) for a in range(1, tall + 1) if tall % a == 0]


def nest_of(layer: Layer, batch: int, node: Node, together: int, beside: int) -> Nest:
    """The nest of passes over so many input channels, and output channels, side by side."""
    (rows, columns), (tall, wide) = layer.size, layer.window
    tall_folds, row_folds, _, _ = _pass_shape(layer, node)
    cells = -(-tall // tall_folds) * -(-rows // row_folds)
    part = rows / row_folds
    """Rows of the output in one pass: a mean, so that all passes together count exactly."""
    high = tall + (part - 1) * layer.stride
    long = wide + (columns - 1) * layer.stride
    work = tall * wide * part * columns * (layer.inputs if layer.is_region else 1)
    filters = 0 if layer.is_region else tall * wide
    again = 1 if layer.is_region else tall_folds
    """Times that a row of the input passes."""
    held_rows = tall + (ceil(part) - 1) * layer.stride
    inputs, outputs = min(together, layer.channels), min(beside, layer.filters)
    of_inputs = 1 if layer.is_region else -(-layer.channels // inputs)
    of_outputs = -(-layer.filters // outputs)
    # Of the last iteration only a part is real: all count as that much less.
    less_in = 1.0 if layer.is_region else layer.channels / (inputs * of_inputs)
    less_out = layer.filters / (outputs * of_outputs)
    less = (less_in * less_out, less_out if layer.is_region else less_in, less_out)
    held = (inputs * outputs, outputs if layer.is_region else inputs, outputs)
    count = inputs * outputs
    return Nest(
        (of_inputs, of_outputs, batch * row_folds),
        LOOPS_OF_REGIONS if layer.is_region else LOOPS_OF_PRODUCTS,
        _times((filters, high * long, part * columns), held, less),
        _times((filters, again * high * long, tall_folds * part * columns), held, less),
        _times(
            (filters and wide * cells * tall_folds, long * cells * again,
             columns * cells * tall_folds),
            (count,) * 3, less,
        ),
        _times((filters, held_rows * long, ceil(part) * columns), held, (1.0,) * 3),
        (wide if filters else 0, wide, 1),
        work * count * less[FILTER],
        tall_folds * wide * columns * (layer.inputs if layer.is_region else 1),
    )  # fmt: skip


def _iterations(loops: tuple[int, int, int]) -> int:
    return loops[0] * loops[1] * loops[2]


def _times(unit: Words, count: Words, less: Words) -> Words:
    a, b, c = (u * n * part for u, n, part in zip(unit, count, less, strict=True))
    return a, b, c
