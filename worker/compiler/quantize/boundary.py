"""What a conversion did at the edges of regions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Conversion
from worker.compiler.quantization import Ranges


class BoundaryKind(StrEnum):
    QUANTIZE = "quantize"
    """Floats become integers where a value enters a region."""
    DEQUANTIZE = "dequantize"
    """Integers become floats where a value leaves."""
    CAST = "cast"
    """Between float formats."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """One value that changes its number format at the edge of a region."""

    value: str
    """Name in the user's model."""
    producer_node: str
    """Empty for an input of the model."""
    target: str
    """Whose region it enters or leaves."""
    kind: BoundaryKind
    dtype: DType
    """Inside the region."""
    scale: float | None
    """None for casts, as is `zero_point`."""
    zero_point: int | None
    elements: int
    bytes_before: int
    bytes_after: int
    sqnr_db: float | None
    """Measured on the calibration samples: this value against its rounded self, in decibels."""
    sqnr_reason: str = ""
    """Why there is no `sqnr_db`."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """An operator that stays float because its integers cost too much."""

    node: str
    sqnr_db: float
    """What the outputs keep when it alone is quantised: the least of them, in decibels."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """What corrections did to the constants of one operator."""

    node: str
    moved_weights: int
    """Integers that are not the nearest ones."""
    moved_bias: float
    """Root of the mean squared shift of the biases, in the result's units."""


@dataclass(frozen=True, slots=True)
class Equalised:
    """Channels between two products that were scaled where they are made, and back where read."""

    maker: str
    """Node whose result has the channels."""
    reader: str
    """The next product."""
    channels: int
    """With a factor other than 1."""
    span: float
    """Largest factor over the least."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """How the conversion to integers was done."""

    ranges: Ranges | None
    """As they were taken, never AUTO; None: nothing became integers."""
    sensitivities: tuple[Sensitivity, ...] = ()
    """Operators left float for `min_sqnr`, the most sensitive first."""
    corrected: tuple[Corrected, ...] = ()
    """In order of execution."""
    equalised: tuple[Equalised, ...] = ()
    """In order of execution."""


NOT_QUANTISED = Quantised(None)


@dataclass(frozen=True, slots=True)
class Converted:
    """A model after conversion."""

    model: OnnxModel
    """The model given, untouched, where nothing was converted; else a new one."""
    boundaries: tuple[Boundary, ...] = ()
    """In the order of the inserted nodes."""
    converted_nodes: tuple[str, ...] = ()
    """Names of nodes that now compute in a target's format, in model order."""
    warnings: tuple[tuple[str, str], ...] = ()
    """(code, sentence)."""
    conversions: Mapping[str, Conversion] = field(default_factory=dict)
    """What was converted for which target, by its name."""
    quantised: Quantised = NOT_QUANTISED
