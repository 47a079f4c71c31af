"""What users write: the schema of a hardware document (YAML or JSON).

Every number may be plain (`8`) or carry its evidence (`{value: 8, tag: K, note: data sheet}`).
Tags: P printed in a paper, S seen in a vendor document, R read in a public repository, K widely
known, D derived from tagged values, G guess.  This file knows types, required fields and the range
of each single number; what fields say about each other is lint.py's business.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from worker.compiler.machine.quantity import (
    LEAST_RATE,
    Bytes,
    BytesPerCycle,
    Count,
    Cycles,
    Duplex,
    EnginePorts,
    Extent,
    Flag,
    Kept,
    LimitBound,
    Numbered,
    OpsPerCycle,
    OpsPerCycleOrNone,
    Part,
    PerSecond,
    PicoJoule,
    Quantity,
    Range,
    Seconds,
    Watts,
)

DTypeName = Literal[
    "f64",
    "f32",
    "f16",
    "bf16",
    "i64",
    "i32",
    "i16",
    "i8",
    "u64",
    "u32",
    "u16",
    "u8",
    "bool",
    "f8e4m3fn",
    "f8e4m3fnuz",
    "f8e5m2",
    "f8e5m2fnuz",
    "f4e2m1",
    "i4",
    "u4",
    "i2",
    "u2",
]
_USUAL_SOURCES: list[DTypeName] = ["f32"]
StageOperationName = Literal[
    "bias", "requantise", "activation", "add", "add_scaled", "multiply", "pool", "lookup"
]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.+-]{0,63}$")]
"""Of a level, engine, link or pattern: it ends up in file names, C comments and traces."""
PluginName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
"""Of a serializer, an engine or an oracle that a package brings."""
MAX_DEFINITION = 20_000
"""Characters of the definition of an operator."""

SymbolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
"""Of a C function, without the types at its end."""


class LevelSpec(Part):
    """One memory level; the list goes from slow (home of whole tensors) to fast."""

    name: Name
    capacity_bytes: Bytes
    instances: Count
    read_bytes_per_cycle: BytesPerCycle
    write_bytes_per_cycle: BytesPerCycle
    sustained_fraction: Annotated[Quantity, Range(0.01, 1)] | None = None
    """Of both rates, over long transfers.  Absent: 1; at the first level a guess."""
    duplex: Duplex | None = None
    """Absent: `half` for the first level, a guess; `full` for others, as two rates imply."""
    engine_ports: EnginePorts | None = None
    """Of a memory that engines compute from.  Absent: `own`, a guess."""
    latency_cycles: Cycles
    managed: Literal["scratchpad", "cache", "register"] = "scratchpad"
    technology: Literal["ddr", "lpddr", "hbm", "gddr", "sram", "register"] | None = None
    """Row of the generic energy table used where energies are not given."""
    read_energy_pj_per_byte: PicoJoule | None = None
    write_energy_pj_per_byte: PicoJoule | None = None
    align_bytes: Annotated[Quantity, Range(1, 1 << 20, integer=True)] | None = None
    burst_bytes: Annotated[Quantity, Range(1, 1 << 12, integer=True)] | None = None
    """Of the first level and of caches.  Absent: 1, any byte is moved alone; a guess."""
    reserve_fraction: Annotated[Quantity, Range(0, 0.9)] | None = None


CallCycles = Annotated[Quantity, Range(1, 1e9, integer=True)]
CallExtents = Annotated[list[Extent], Field(min_length=1, max_length=8)]


class CallSpec(Part):
    """A size of an instruction that has several."""

    extents: CallExtents
    cycles: CallCycles


class IntrinsicSpec(Part):
    """One hardware instruction: `extents` with `cycles`, a `formula` or an `oracle`; or a `table`
    of sizes."""

    name: Name
    op: Literal["matmul", "conv", "elementwise"]
    extents: CallExtents | None = None
    """The most that a call works on: m, n, k of a matmul; batch, output channels, height, width,
    kernel height, width, input channels of a conv, taken as a product of (batch x height x width)
    rows, as many columns as output channels and the rest as depth; of elementwise the points."""
    cycles: CallCycles | None = None
    """Of a call, however little of its extents it fills."""
    formula: (
        dict[
            Literal["1", "m", "n", "k", "mn", "mk", "nk", "mnk"],
            Annotated[Quantity, Range(0, 1e9)],
        ]
        | None
    ) = None
    """Cycles for each unit of a product of the extents of a call, of which an edge has fewer; "1":
    of a call."""
    table: Annotated[list[CallSpec], Field(min_length=1, max_length=64)] | None = None
    oracle: PluginName | None = None
    """What is asked for the cycles of calls: a vendor's simulator, in an installed package."""
    granule: CallExtents | None = None
    """Steps of the extents at which an oracle is asked; what lies in between costs as much as the
    next step up.  Absent: the extents themselves, an edge costs a full call."""
    call: SymbolName | None = None
    """What a kernel library has the instruction as: a C function for each set of types, such as
    `CALL_i8_i8_i32`.  Absent: kernels have code of their own for it."""


class DataflowSpec(Part):
    """How an array of MACs works through a product; what is left out costs the most."""

    stationary: Kept
    systolic: Flag | None = None
    """Absent: yes, folds are shifted in or out and the array fills and drains cell by cell."""
    double_buffered: Flag | None = None
    """Absent: no, nothing hides the load of a fold."""
    pipelined: Flag | None = None
    """Absent: no, the array fills and drains for every fold."""
    load_bytes_per_cycle: BytesPerCycle | None = None
    """Absent: what is kept comes through the feed."""
    hold: list[Extent] = Field(default_factory=list, max_length=2)
    """Absent: as many elements as the array has cells."""
    accumulator_bytes: Bytes | None = None
    """Absent: none, the sums of every fold return to the memory."""
    registers: Name | None = None
    """Of cells that keep rows: the register level that is spread over them."""
    bus_energy_pj_per_byte: PicoJoule | None = None
    """Of what crosses the edge of the array, and of what a cell takes from a line or its neighbour.
    Absent: none, which is listed as a guess."""


class EngineSpec(Part):
    """A unit inside every core."""

    name: Name
    kind: Literal["matrix", "vector", "scalar", "dma_in", "dma_out"]
    memory: Name
    macs_per_cycle: dict[DTypeName, OpsPerCycle] = Field(default_factory=dict)
    array: list[Extent] = Field(default_factory=list, max_length=3)
    startup_cycles: Cycles | None = None
    op_energy_pj: dict[DTypeName, PicoJoule] | None = None
    special_ops_per_cycle: OpsPerCycleOrNone | None = None
    output_stage: dict[StageOperationName, dict[DTypeName, OpsPerCycle]] = Field(
        default_factory=dict
    )
    """Elements per cycle, by operation and number format, of a unit that does them in one pass."""
    intrinsics: list[IntrinsicSpec] = Field(default_factory=list, max_length=256)
    dataflow: DataflowSpec | None = None
    """Absent: loads, skew and feeds of an array cost no time, which is listed as a guess."""
    feed_bytes_per_cycle: BytesPerCycle | None = None
    """Absent: with a dataflow the engine's share of its memory's port, else any; a guess."""
    drain_bytes_per_cycle: BytesPerCycle | None = None
    accumulators: Name | None = None
    """A register level in which sums stand from one instruction to the next.  Absent: they stand
    in `memory`."""
    setup_cycles: Cycles | None = None
    """Of a DMA engine.  Absent: a transfer is set up in no time, which is listed as a guess."""
    outstanding_bytes: Bytes | None = None
    """Of a DMA engine.  Absent: as many as its ports take, which is listed as a guess."""


Coordinate = Annotated[Quantity, Range(0, 65535, integer=True)]


class MeshSpec(Part):
    """Where the instances of a level stand, and by which routers home is reached."""

    rows: Count
    columns: Count
    ports: Annotated[
        list[Annotated[list[Coordinate], Field(min_length=2, max_length=2)]], Field(max_length=256)
    ]
    """(row, column) of each; a node uses the nearest one, of equals the first."""
    numbering: Numbered | None = None
    """Where instance n stands.  Absent: from home, the nearest to each of its ports in turn."""


class LinkSpec(Part):
    """An explicit connection between two levels, or between instances of one."""

    name: Name
    src: Name
    dst: Name
    kind: Literal["dma", "bus", "queue", "noc"]
    bytes_per_cycle: BytesPerCycle
    latency_cycles: Cycles
    energy_pj_per_byte: PicoJoule | None = None
    shared_by: Count | None = None
    multicast: Flag | None = None
    """Cores that load the same bytes may be served by one transfer: over a link between two levels,
    or by a noc that joins the instances of theirs in one cluster.  Absent: no."""
    mesh: MeshSpec | None = None
    """Of a noc: rate, latency and energy are those of each link from router to router, and all that
    comes from home or goes there crosses it.  Absent: only what moves within its level does."""


class HostSpec(Part):
    """The processor that runs what the accelerator does not."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    flops_per_s: PerSecond
    memory_bytes_per_s: PerSecond
    link_bytes_per_s: PerSecond
    link_latency_s: Seconds
    launch_overhead_s: Seconds
    shared_memory: bool = False
    energy_pj_per_flop: PicoJoule | None = None
    efficiency: Annotated[Quantity, Range(LEAST_RATE, 1)] | None = None
    """Sustained share of the two peaks above; absent: 1."""


class LimitSpec(Part):
    """Inclusive bounds of one attribute or derived quantity of an op."""

    min: LimitBound
    max: LimitBound


AttributeItem = int | float | str | list[int]


class AttributeSpec(Part):
    """Values one ONNX attribute may have; absent attributes count with their default."""

    allowed: Annotated[list[AttributeItem], Field(max_length=64)] = Field(default_factory=list)
    min: float | None = None
    max: float | None = None


class ClauseSpec(Part):
    """Demands on a node that hold together."""

    limits: dict[str, LimitSpec] = Field(default_factory=dict)
    attributes: dict[str, AttributeSpec] = Field(default_factory=dict)
    constant_inputs: list[Annotated[int, Field(ge=0, le=63)]] = Field(default_factory=list)
    """Input positions that must be initializers."""
    conditions: Annotated[list[ConditionSpec], Field(max_length=64)] = Field(default_factory=list)
    """All of which must hold."""


TermSpec = int | float | str | Annotated[list[int | float | str], Field(min_length=1, max_length=8)]
"""A number, a quantity, or a product of some."""


class ConditionSpec(Part):
    """`any_of` some clauses, or `compare` one term with another by exactly one relation."""

    any_of: Annotated[list[ClauseSpec], Field(max_length=16)] = Field(default_factory=list)
    compare: TermSpec | None = None
    at_most: TermSpec | None = None
    at_least: TermSpec | None = None
    equals: TermSpec | None = None
    multiple_of: TermSpec | None = None


class OpSpec(ClauseSpec):
    """One ONNX op type the accelerator runs, with its limits."""

    op_type: str
    dtypes: list[DTypeName] = Field(default_factory=list)
    note: str = Field(default="", max_length=500)
    """Shown in refusals and in the generated manual."""


class NodeSpec(Part):
    """One node or value of a pattern; exactly one of op, any, alternatives, same_as, path, use."""

    op: str | Annotated[list[str], Field(min_length=1, max_length=64)] | None = None
    """A value defined by a node of this type (or one of these)."""
    any: bool = False
    """A value from outside."""
    alternatives: Annotated[list[NodeSpec], Field(max_length=16)] = Field(default_factory=list)
    same_as: str | None = None
    """The value another part of the pattern binds by `bind`."""
    path: Annotated[list[str], Field(max_length=64)] = Field(default_factory=list)
    """Zero or more dominated nodes of these types, back to `to`."""
    to: NodeSpec | None = None
    max_nodes: Annotated[int, Field(ge=1, le=64)] = 8
    use: str | None = None
    """Name of another pattern of the table, put in here."""

    inputs: Annotated[list[NodeSpec], Field(max_length=16)] = Field(default_factory=list)
    attributes: dict[str, AttributeSpec] = Field(default_factory=dict)
    commutative: bool = False
    optional: bool = False
    through: Annotated[int, Field(ge=0, le=15)] = 0
    """With `optional`: the input that stands in for the absent node."""
    bind: Name | None = None
    constant: bool | None = None
    dtypes: list[DTypeName] = Field(default_factory=list)
    rank: LimitSpec | None = None
    shape: Annotated[list[int | LimitSpec | None], Field(max_length=8)] | None = None
    uses: LimitSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_words(cls, raw: object) -> object:
        """`any` and `constant` may be written as plain words."""
        match raw:
            case "any":
                return {"any": True}
            case "constant":
                return {"any": True, "constant": True}
            case _:
                return raw

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler(schema)
        definition = handler.resolve_ref_schema(found)
        body = dict(definition)
        definition.clear()
        definition["anyOf"] = [{"enum": ["any", "constant"]}, body]
        return found


class PatternSpec(Part):
    """One row of the pattern table."""

    name: Name
    match: NodeSpec
    priority: Annotated[Quantity, Range(-1000, 1000, integer=True)] | None = None
    intrinsic: Name | None = None
    """Instruction that runs it; absent: a composite of the pattern's name."""
    fragment: bool = False
    """Only put into other patterns by `use`, never matched by itself."""
    description: str = Field(default="", max_length=500)


class PartitionSpec(Part):
    """Limits of a region and what happens when one is broken."""

    mode: Literal["greedy", "criteria", "auto"] = "criteria"
    max_ops: Annotated[Quantity, Range(1, 1e9, integer=True)] | None = None
    max_macs: Annotated[Quantity, Range(1, 1e18)] | None = None
    max_weight_bytes: Bytes | None = None
    buffer_fit: Name | None = None
    min_macs: Annotated[Quantity, Range(0, 1e18)] | None = None
    min_ops: Annotated[Quantity, Range(1, 1e9, integer=True)] | None = None
    single_region: bool = False


class ConversionSpec(Part):
    """Partial quantisation of regions to the target's number format."""

    dtype: Literal["f16", "bf16", "i8", "u8"]
    sources: Annotated[list[DTypeName], Field(min_length=1)] = _USUAL_SOURCES
    automatic: bool = False
    op_types: list[str] = Field(default_factory=list)
    per_channel: bool = True
    symmetric: bool = False
    power_of_two: bool = False
    on_accelerator: bool = False
    min_sqnr_db: Annotated[Quantity, Range(-100, 200)] | None = None


class LayoutSpec(Part):
    """Layouts the target computes in."""

    activations: Annotated[str, Field(pattern=r"^[A-Z]+([0-9]+[a-z])*$", max_length=16)]
    weights: Annotated[str, Field(pattern=r"^[A-Z]+([0-9]+[a-z])*$", max_length=16)] = "OIHW"
    op_types: Annotated[list[str], Field(min_length=1)]


class OperatorSpec(Part):
    """What an operator of a foreign domain computes."""

    name: Annotated[str, Field(max_length=260)]
    """`domain::op type`."""
    definition: Annotated[str, Field(max_length=MAX_DEFINITION)]
    """An ONNX function in ONNX's text form."""


class CapabilitiesSpec(Part):
    """What the accelerator may be given."""

    dtypes: Annotated[list[DTypeName], Field(min_length=1)]
    max_rank: Annotated[Quantity, Range(1, 64, integer=True)]
    groups: list[str] = Field(default_factory=list)
    """Named op lists of op_groups.yaml."""
    exclude: list[str] = Field(default_factory=list)
    """Op types taken out of the groups again."""
    ops: list[OpSpec] = Field(default_factory=list)
    patterns: Annotated[list[PatternSpec], Field(max_length=512)] = Field(default_factory=list)
    partition: PartitionSpec | None = None
    conversions: Annotated[list[ConversionSpec], Field(max_length=8)] = Field(default_factory=list)
    layout: LayoutSpec | None = None
    launch_unit: Literal["kernel", "region"] = "kernel"
    region_overhead_cycles: Cycles | None = None
    """Paid once per invocation of a region, beside its launches."""
    serializer: PluginName | None = None
    """What writes its regions for the chip: one that a package installs; absent: the built-in
    formats alone."""
    engine: PluginName | None = None
    """What executes its regions in verification and `run`: one that a package installs; absent:
    the compiled kernels."""


class TargetSpec(Part):
    """One of several accelerators in the machine."""

    name: Name
    priority: Annotated[Quantity, Range(-1000, 1000, integer=True)] | None = None
    engines: list[Name] = Field(default_factory=list)
    """Compute engines it may use; absent: all."""
    launch_latency_cycles: Cycles | None = None
    launch_gap_cycles: Cycles | None = None
    """Absent: as its latency, a guess, or with that absent too, the machine's."""
    capabilities: CapabilitiesSpec


class HardwareSpec(Part):
    """A whole hardware document, inheritance resolved."""

    schema_version: Literal[1] = 1
    name: Name
    description: str = Field(default="", max_length=4000)
    process_nm: Annotated[Quantity, Range(1, 1000)] | None = None
    """Feature size; chooses the column of the generic energy table."""
    clock_hz: Annotated[Quantity, Range(1e5, 2e10)]
    num_cores: Count
    num_clusters: Count | None = None
    launch_latency_cycles: Cycles
    """From submitting a kernel to its start while the device is idle."""
    launch_gap_cycles: Cycles | None = None
    """From the end of a kernel to the start of the next, queued already.  Absent: a guess, the
    latency."""
    signal_cycles: Cycles | None = None
    """Absent: a guess, two accesses to the innermost level that all cores share."""
    engine_signal_cycles: Cycles | None = None
    """Absent: engines of a core see each other's signals at once, which is listed as a guess."""
    static_power_w: Watts | None = None
    levels: Annotated[list[LevelSpec], Field(min_length=2, max_length=16)]
    engines: Annotated[list[EngineSpec], Field(min_length=1, max_length=64)]
    links: list[LinkSpec] = Field(default_factory=list, max_length=64)
    host: HostSpec
    capabilities: CapabilitiesSpec | None = None
    """Of the only accelerator, which is then called `accelerator`."""
    targets: Annotated[list[TargetSpec], Field(max_length=16)] = Field(default_factory=list)
    """Several accelerators in one machine; instead of `capabilities`."""
    operators: Annotated[list[OperatorSpec], Field(max_length=256)] = Field(default_factory=list)
    """Definitions of operators of the vendor's own domains."""
