"""What a row of published figures says, and the closed lists that it chooses from."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from worker.compiler.ir.dtype import DType
from worker.compiler.options import Precision

Count: TypeAlias = Annotated[int, Meta(ge=1)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
Words: TypeAlias = Annotated[str, Meta(min_length=3)]


class Unit(StrEnum):
    """What a figure is measured in."""

    MS = "ms"
    CYCLES = "cycles"
    FPS = "fps"
    """Samples per second."""
    TOPS = "TOPS"
    """10^12 operations per second, two for each multiply-accumulate."""
    TB_PER_S = "TB/s"
    """10^12 bytes per second of all operands and results, each counted once."""
    MW = "mW"
    """Mean power of the chip without its home memory."""

    @property
    def is_rate(self) -> bool:
        """Whether more of it is less time."""
        return self in (Unit.FPS, Unit.TOPS, Unit.TB_PER_S)


class Role(StrEnum):
    """Whether the preset was made with the figure in view."""

    CALIBRATION = "calibration"
    """The preset or the model of time was chosen with it in view."""
    HELD_OUT = "held out"
    """Nothing was chosen by it."""


class Evidence(StrEnum):
    """How well a published figure is known; the letters of hardware specs, and M."""

    PRINTED = "P"
    SEEN = "S"
    READ = "R"
    KNOWN = "K"
    DERIVED = "D"
    MEASURED = "M"
    """By us, on the hardware or with the tool named."""


class Cause(StrEnum):
    """Why a ratio is not one: the closed list."""

    SEARCH = "search"
    """The compiler does not find what its own clock would reward."""
    COLD_CACHE = "cold caches"
    """Every kernel begins with empty caches, also where the one before left what it reads."""
    FEEDS = "feeds not timed"
    """Engines take operands from their buffer, and weights into the array, in no time."""
    DATAFLOW = "dataflow not in the spec"
    """Which loops the array unrolls follows from the operator, not from the chip."""
    OUTPUT_STAGE = "output stage not in the spec"
    """Bias, requantisation, activation run as vector operations, not in the array's drain."""
    LAUNCHES = "one launch for the vendor's many"
    """Ours is one kernel, whose cores signal each other; the vendor starts one a layer or so."""
    SUSTAINED = "sustained below peak"
    """The clock or the memory does not hold its data sheet's rate under load."""
    HOST = "host and launches"
    """The published figure counts launches and the host's part otherwise."""
    ENERGY_TABLE = "energy table"
    """Energies per access are another design's, or lack a part that the chip has."""
    ZEROS = "zeros not skipped"
    """The chip spends less where an operand is zero; operations cost ours alike."""
    PRESET_GUESS = "guess in the preset"
    """A number that the ratio hangs on is tagged G."""
    OTHER_MODEL = "other model version"
    """The published model or its data type is not quite ours."""


class Source(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a figure was published."""

    citation: Words
    evidence: Evidence


class Gemm(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="kind",
    tag="gemm",
):
    """C[m, n] = sum over k of A[m, k] B[k, n]."""

    m: Count
    n: Count
    k: Count
    dtype: DType


class Conv(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="kind",
    tag="conv",
):
    """A two-dimensional convolution of square maps with square kernels, without bias."""

    batch: Count
    groups: Count = 1
    in_channels: Count
    """Of each group."""
    out_channels: Count
    """Of each group."""
    size: Count
    """Rows, and columns, of the input."""
    kernel: Count
    stride: Count = 1
    pad: Annotated[int, Meta(ge=0)] = 0
    dtype: DType


class Copy(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="kind",
    tag="copy",
):
    """A copy within the home memory."""

    elements: Count
    dtype: DType


class Network(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="kind",
    tag="network",
):
    """A model file, compiled by all strategies in competition."""

    model: Words
    """Its file's name without `.onnx`."""
    precision: Precision = Precision.NATIVE
    symbols: dict[str, Count] = {}
    """Values of symbolic dimensions."""
    samples: Count = 1
    """In one run."""


Operator: TypeAlias = "Gemm | Conv | Copy"


class Row(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One published figure and what is compared with it."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    source: Source
    machine: str | dict[str, Any]
    """A preset's name, or a hardware spec of its own."""
    work: Gemm | Conv | Copy | Network
    figure: Positive
    unit: Unit
    role: Role
    band: tuple[Positive, Positive]
    """Lowest and highest ratio that is aimed at."""
    causes: Annotated[tuple[Cause, ...], Meta(min_length=1)]
    """Of the distance, the largest first."""
    miss: Positive | None = None
    """The ratio as it is known, where that is not within the band yet."""
    note: Words | None = None
    simulate: Count = 12
    """Mappings that are simulated, the best estimates first."""

    @property
    def machine_name(self) -> str:
        return self.machine if isinstance(self.machine, str) else str(self.machine.get("name", ""))


class Mean(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is aimed at with the geometric mean of the ratios of single operators' times."""

    band: tuple[Positive, Positive]
    causes: Annotated[tuple[Cause, ...], Meta(min_length=1)]
    miss: Positive | None = None


class Published(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file of all figures."""

    schema_version: Annotated[int, Meta(ge=1, le=1)]
    mean: Mean
    rows: Annotated[tuple[Row, ...], Meta(min_length=1)]
