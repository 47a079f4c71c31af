"""How an array of MACs is fed: part of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Stationary(StrEnum):
    """What an array keeps while the rest streams past it (`Dataflow`)."""

    WEIGHT = "weight"
    """The right factor: of a convolution its weights.  Sums are made along the rows."""
    INPUT = "input"
    """The left factor.  Sums are made along the rows."""
    OUTPUT = "output"
    """The sums themselves, until they are complete."""
    ROW = "row"
    """Rows of all three: in every cell a row of a filter slides along a row of the input
    (`cost.row_stationary`)."""


@dataclass(frozen=True, slots=True)
class Dataflow:
    """How an array of MACs works through a product: fold by fold of what it keeps.

    A fold is as much of the stationary operand as the array holds: depth x columns of weights,
    depth x rows of inputs, or rows x columns of sums.
    """

    stationary: Stationary
    is_systolic: bool = True
    """Operands go from cell to cell: a fold is shifted in, or its sums out, in as many cycles as
    the array has rows, and rows + columns - 2 pass between its first and its last cell."""
    is_double_buffered: bool = False
    """While one fold is computed, the next is loaded, or the sums of the last leave."""
    is_pipelined: bool = False
    """Folds follow each other without a gap: the array fills and drains once per instruction."""
    load_bytes_per_cycle: float = 0.0
    """Of a way of its own for stationary weights or inputs; 0: they come through the feed."""
    hold: tuple[int, ...] = ()
    """Extents of a fold where cells hold several elements; empty: one each."""
    accumulator_bytes: int = 0
    """Sums that stay beside the array until their depth is done, a stripe of what streams at a
    time; 0: every fold's sums return."""
    registers: str = ""
    """Level that is spread over the cells, where they keep rows."""
    cell_bytes: int = 0
    """A cell's part of it."""
