"""What a strategy says of its kernels in reports: a typed summary, and how it is shown.

A strategy's descriptor names its `Summary`, which goes into report.json under the strategy's name,
and two functions that show one: on the page (`PageBlock`s) and in a terminal (`TextBlock`s).
Blocks are data; whoever shows them escapes, aligns and cuts.  This module imports no compiler,
because the command line shows reports, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import msgspec

from worker.compiler.errors import Detail

Columns: TypeAlias = "Mapping[int, Mapping[str, str | int | float | None]]"
"""Cells of the layer table by column, of units by position."""


@dataclass(frozen=True, slots=True)
class UnitNotes:
    """One kernel of a strategy's: what its summary is made of."""

    strategy: str
    unit: int
    """Position in the compiled model's units."""
    nodes: tuple[str, ...]
    """ONNX nodes of its first call."""
    calls: int
    """How often the model runs it: equal blocks share one unit."""
    notes: tuple[str, ...]
    """Of the schedule, as the strategy left them."""
    predicted_cycles: int
    """By the strategy's own model."""
    simulated_cycles: int | None = None
    """None: not simulated yet."""

    @property
    def label(self) -> str:
        """First and last node, for a reader."""
        return " .. ".join(dict.fromkeys((*self.nodes[:1], *self.nodes[-1:])))


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what strategies register: its type is its schema.

    Stored ones of other releases are read, too: what they have beside these fields is ignored.
    """

    schema_version: int = 1
    """Give another default whenever a stored summary would be misread or lacks a field."""
    nulls: ClassVar[Mapping[str, str]] = {}
    """Why a field may be null, a sentence by the field's name."""

    @classmethod
    def of(cls, units: Sequence[UnitNotes], options: Any) -> Self | None:
        """The summary of one program: of the strategy's units in order, at least one.

        `options` are the strategy's own.  None: there is nothing to say.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Figures:
    """Names and values, in order; objects within objects are shown by dotted names."""

    title: str
    values: Mapping[str, Detail]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows by column; what a row lacks is empty, what is no column is not shown."""

    title: str
    """Empty: it belongs to what is above."""
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Detail], ...]


@dataclass(frozen=True, slots=True)
class Markup:
    """HTML of the strategy's own, such as a plot in SVG: no scripts, no requests.

    It goes into the page as it is: names of nodes and tensors come from models and must be escaped.
    """

    title: str
    html: str


TextBlock: TypeAlias = Figures | Table
PageBlock: TypeAlias = Figures | Table | Markup
