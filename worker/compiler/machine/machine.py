"""The machine as a value: what the compiler, the cost model and the simulator all read.

One schema covers clusters of cores with units (GraphTurbo), GPUs, meshes of nodes with PEs (KAPLA)
and IPUs: an ordered list of memory levels from slow (0, the home of every tensor) to fast, engines
inside each core, and links.  All numbers carry their unit in their name.
Source: 2-architecture.md "The machine".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.dataflow import Dataflow
from worker.compiler.machine.evidence import EnergyRange, Guess
from worker.compiler.machine.intrinsic import Intrinsic
from worker.compiler.machine.layout_policy import LayoutPolicy
from worker.compiler.machine.mesh import Mesh
from worker.compiler.machine.operator import DeclaredOperator, is_foreign
from worker.compiler.machine.pattern import AttributeRule, PatternRule, op_types
from worker.compiler.machine.rule import Condition


class Managed(StrEnum):
    """Who decides what a level holds."""

    SCRATCHPAD = "scratchpad"
    """The schedule places buffers here."""
    CACHE = "cache"
    """Transparent: transfers pass through it and occupy its bandwidth; what it holds does not pass
    the port of home (`lower.rows.cached`)."""
    REGISTER = "register"
    """Inside the engines, charged per MAC in energies.  The schedule places nothing here but the
    sums of `Engine.accumulators`."""


class EngineKind(StrEnum):
    MATRIX = "matrix"
    VECTOR = "vector"
    SCALAR = "scalar"
    DMA_IN = "dma_in"
    """Issues transfers towards the core, in order."""
    DMA_OUT = "dma_out"
    """Issues transfers away from the core, in order."""


class StageOperation(StrEnum):
    """What an output stage may do to an element on its way (`cost/output_stage.py`)."""

    BIAS = "bias"
    """Adds a value per channel."""
    REQUANTISE = "requantise"
    """Changes the format: a factor (or one per channel), an offset, one rounding, saturation."""
    ACTIVATION = "activation"
    """Piecewise linear: two limits, or another slope on one side of a limit."""
    ADD = "add"
    """Sum or difference of two tensors of one scale, with any offsets."""
    ADD_SCALED = "add_scaled"
    """The same of tensors with scales of their own: one operand is multiplied before."""
    MULTIPLY = "multiply"
    """Product of two tensors."""
    POOL = "pool"
    """Sum, minimum or maximum over windows; an element is one value that a window takes in."""
    LOOKUP = "lookup"
    """Any function of one value of at most 8 bits."""


class LinkKind(StrEnum):
    DMA = "dma"
    BUS = "bus"
    QUEUE = "queue"
    NOC = "noc"


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """One level of the hierarchy."""

    name: str
    capacity_bytes: int
    """Per instance."""
    instances: int
    """How many; must divide `num_cores`.  Core c uses instance c * instances // num_cores."""
    read_bytes_per_cycle: float
    """Per instance, shared by the cores attached to it; what it sustains of its peak."""
    write_bytes_per_cycle: float
    latency_cycles: int
    read_energy_pj_per_byte: float
    write_energy_pj_per_byte: float
    managed: Managed
    align_bytes: int = 1
    """Of buffers; of a cache its line."""
    reserve_fraction: float = 0.0
    """Part of the capacity kept free for the runtime (stack, descriptors); of a cache the part that
    holds nothing of use (data kept twice, sets that fill unevenly)."""
    burst_bytes: int = 1
    """Of home and of caches: the least that one access moves, from an address that is a multiple of
    it.  What of a tensor lies apart is moved in whole bursts (`machine/bursts.py`)."""
    half_duplex: bool = False
    """Reads and writes of one instance never overlap: both go through one port, which each transfer
    occupies for bytes / (the rate of its direction).  False: a port for each direction."""
    serves_engines: bool = False
    """What engines draw and return passes the ports of transfers; False: ports of their own."""

    @property
    def usable_bytes(self) -> int:
        return int(self.capacity_bytes * (1.0 - self.reserve_fraction))

    def transfer_cycles(self, read_bytes: float, written_bytes: float, instances: int = 1) -> float:
        """Cycles in which so many bytes pass the ports of `instances`, spread evenly over them.

        Reads and writes one after the other where they share a port, else side by side.
        """
        return self.port_cycles(
            read_bytes / (self.read_bytes_per_cycle * instances),
            written_bytes / (self.write_bytes_per_cycle * instances),
        )

    def port_cycles(self, reading_cycles: float, writing_cycles: float) -> float:
        """Cycles in which the ports of one instance have read and written for so many cycles."""
        if self.half_duplex:
            return reading_cycles + writing_cycles
        return max(reading_cycles, writing_cycles)

    @property
    def both_bytes_per_cycle(self) -> float:
        """Most bytes that an instance reads and writes in a cycle, in the best mix of the two."""
        if self.half_duplex:
            return max(self.read_bytes_per_cycle, self.write_bytes_per_cycle)
        return self.read_bytes_per_cycle + self.write_bytes_per_cycle


@dataclass(frozen=True, slots=True)
class Engine:
    """A unit inside every core that runs instructions in order."""

    name: str
    kind: EngineKind
    memory: str
    """Level its operands live in (compute) or it fills/drains (DMA)."""
    macs_per_cycle: Mapping[DType, float]
    """MATRIX: peak MACs.  VECTOR/SCALAR: elementary operations per cycle, of which a
    multiply-accumulate is one.  A format that is not listed is not executed.  Empty for DMA."""
    array: tuple[int, ...] = ()
    """Spatial dimensions (rows, columns) of a MATRIX engine; work is padded up to them."""
    startup_cycles: int = 0
    """Fill and drain of the pipeline per instruction, beside those of a `dataflow`."""
    op_energy_pj: Mapping[DType, float] | None = None
    """Per MAC (MATRIX) or per operation (VECTOR/SCALAR), of which a MAC is one."""
    special_ops_per_cycle: float = 0.0
    """Rate of exp/log/div/sqrt on VECTOR/SCALAR engines, in every format; 0: none."""
    output_stage: Mapping[StageOperation, Mapping[DType, float]] = field(default_factory=dict)
    """Elements per cycle of a VECTOR or SCALAR engine whose operations follow each other in one
    pass, by operation and number format.  An operator that consists of them takes as long as the
    slowest of those it needs; operators of anything else cost their elementary operations."""
    intrinsics: tuple[Intrinsic, ...] = ()
    dataflow: Dataflow | None = None
    """Of a MATRIX engine; None: loads, skew and feeds of its array cost no time."""
    feed_bytes_per_cycle: float = 0.0
    """From its memory, per core; 0: as many as it can use."""
    drain_bytes_per_cycle: float = 0.0
    """Into its memory."""
    accumulators: str = ""
    """Of a compute engine: a REGISTER level in which sums may stand from one instruction to the
    next; "": they stand in its memory."""
    setup_cycles: int = 0
    """Of a DMA engine: from taking up a transfer to the first request (`machine/dma.py`)."""
    outstanding_bytes: int = 0
    """Of a DMA engine: requested and not yet there; 0: as many as the ports take."""
    bus_energy_pj_per_byte: float = 0.0
    """Of an array with a dataflow (`machine/array_bus.py`)."""


@dataclass(frozen=True, slots=True)
class Link:
    """An explicit connection between two levels (or a level and itself, between instances)."""

    name: str
    src: str
    dst: str
    kind: LinkKind
    bytes_per_cycle: float
    """Per instance of the link; there is one instance per instance of the faster level."""
    latency_cycles: int
    energy_pj_per_byte: float
    shared_by: int = 1
    """How many instances of the faster level share one link."""
    multicast: bool = False
    """Whether what enters it may leave it at several instances of `dst` at once.  A noc brings what
    is loaded into one instance of its level to others of the cluster as well."""
    mesh: Mesh | None = None
    """Of a noc: where the instances of its level stand.  Then rate, latency and energy are those of
    each of its links, and what comes from home crosses it (`machine/links.py`)."""


@dataclass(frozen=True, slots=True)
class Host:
    """The processor that runs what the accelerator does not."""

    name: str
    flops_per_s: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    """Host <-> level 0 of the accelerator; infinite bandwidth is spelled `shared_memory`."""
    link_latency_s: float
    launch_overhead_s: float
    shared_memory: bool = False
    """Host and accelerator share level 0: boundary tensors are not copied."""
    energy_pj_per_flop: float = 0.0
    efficiency: float = 1.0
    """Sustained share of both peaks."""

    def work_s(self, flops: int, memory_bytes: int) -> float:
        """Seconds of work on the host: a roofline of its sustained rates."""
        peak = max(flops / self.flops_per_s, memory_bytes / self.memory_bytes_per_s)
        return peak / self.efficiency

    def copy_s(self, num_bytes: int) -> float:
        """Seconds of one transfer over the host link; 0 where memory is shared or nothing moves."""
        if self.shared_memory or not num_bytes:
            return 0.0
        return self.link_latency_s + num_bytes / self.link_bytes_per_s


@dataclass(frozen=True, slots=True)
class OpSupport:
    """One supported ONNX op type with its limits."""

    op_type: str
    dtypes: tuple[DType, ...]
    """Empty: every dtype in `Capabilities.dtypes`."""
    limits: tuple[tuple[str, int, int], ...] = ()
    """(derived quantity, minimum, maximum), e.g. ("kernel_h", 1, 16)."""
    attributes: tuple[AttributeRule, ...] = ()
    constant_inputs: tuple[int, ...] = ()
    """Input positions that must be initializers (weights that the target packs)."""
    note: str = ""
    """The author's own sentence about the rule: shown in refusals and in the manual."""
    conditions: tuple[Condition, ...] = ()
    pointer: str = ""
    """Where the row, or the group that it is of, stands in the user's document."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an accelerator target may be given."""

    ops: tuple[OpSupport, ...]
    dtypes: tuple[DType, ...]
    max_rank: int
    """Largest tensor rank of a supported op."""
    patterns: tuple[PatternRule, ...] = ()
    """Highest priority first, then table order."""
    pointer: str = ""
    """In the user's document."""

    def support(self, op_type: str) -> OpSupport | None:
        return next((s for s in self.ops if s.op_type == op_type), None)

    @property
    def foreign_names(self) -> tuple[str, ...]:
        """Operators of foreign domains that a row names, sorted."""
        named = {s.op_type for s in self.ops}.union(*(op_types(p.root) for p in self.patterns))
        return tuple(sorted(filter(is_foreign, named)))


class LaunchUnit(StrEnum):
    """What costs one launch overhead."""

    KERNEL = "kernel"
    REGION = "region"
    """A whole region is one invocation (an engine that runs a compiled graph)."""


class PartitionMode(StrEnum):
    GREEDY = "greedy"
    """Maximal regions."""
    CRITERIA = "criteria"
    """Greedy, then split and dropped by the target's criteria."""
    AUTO = "auto"
    """Criteria, then dropped, trimmed or joined where the weighed cost says so."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """User limits of a region (BYOC section 3.1.3).  None: no limit."""

    mode: PartitionMode = PartitionMode.CRITERIA
    max_ops: int | None = None
    max_macs: int | None = None
    max_weight_bytes: int | None = None
    buffer_fit: str | None = None
    """Memory level in which a sequence's tensors must fit together."""
    min_macs: int = 0
    """Regions with fewer MACs go back to the host."""
    min_ops: int = 1
    single_region: bool = False
    """One kernel per model: only the best region stays."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """Partial quantisation: how a region's numbers become the target's (BYOC section 3.2)."""

    dtype: DType
    """F16, BF16, I8 or U8."""
    sources: tuple[DType, ...]
    """Model types it replaces."""
    automatic: bool
    """Applied without being asked for where the target lacks the model's type."""
    op_types: tuple[str, ...] = ()
    """Op types it converts; empty: every op the target offers in `dtype`."""
    per_channel: bool = True
    """Weights: one scale per output channel."""
    symmetric: bool = False
    """Activations: zero point in the middle."""
    power_of_two: bool = False
    """Scales are powers of two (shift instead of multiply)."""
    on_accelerator: bool = False
    """Boundary conversions run inside the region instead of on the host."""
    min_sqnr_db: float = 0.0
    """Least signal to quantisation-noise ratio of every output, in decibels."""


@dataclass(frozen=True, slots=True)
class AcceleratorTarget:
    """One thing a region can be given to: a set of engines with capabilities and rules."""

    name: str
    capabilities: Capabilities
    priority: int = 0
    """Higher first; ties in the order of the spec.  An operator goes to one target."""
    engines: tuple[str, ...] = ()
    """Compute engines it may use; empty: all.  DMA engines are shared."""
    criteria: Criteria = Criteria()
    conversions: tuple[Conversion, ...] = ()
    layout: LayoutPolicy | None = None
    launch_unit: LaunchUnit = LaunchUnit.KERNEL
    launch_latency_cycles: int | None = None
    """None: the machine's, and its gap."""
    launch_gap_cycles: int | None = None
    """None: as long as the target's own latency."""
    region_overhead_cycles: int = 0
    """Paid once per invocation of a region, beside its launches: binding and synchronisation."""
    serializer: str = ""
    engine: str = ""
    """Plugins that write its regions and execute them; "": none, and the compiled kernels."""


@dataclass(frozen=True, slots=True)
class Machine:
    """An accelerator, complete and checked."""

    name: str
    clock_hz: float
    num_cores: int
    num_clusters: int
    """Divides num_cores; 1 when cores are not grouped."""
    levels: tuple[MemoryLevel, ...]
    """Slow to fast; level 0 is the home level, where whole tensors live."""
    engines: tuple[Engine, ...]
    """The same set in every core."""
    links: tuple[Link, ...]
    host: Host
    targets: tuple[AcceleratorTarget, ...]
    """At least one; highest priority first."""
    launch_latency_cycles: int
    """From submitting a kernel to its start on an idle device."""
    static_power_w: float = 0.0
    signal_cycles: int = 0
    """From the finish of an instruction to when another core sees its signal."""
    engine_signal_cycles: int = 0
    """The same, to when another engine of its core does."""
    launch_gap_cycles: int | None = None
    """From the end of a kernel to the start of the next, which is queued already; None: as long as
    the latency."""
    guesses: tuple[Guess, ...] = ()
    energy_ranges: tuple[EnergyRange, ...] = ()
    operators: tuple[DeclaredOperator, ...] = ()
    """Of foreign domains: what they compute, in the order of the document."""

    @property
    def foreign_names(self) -> frozenset[str]:
        """Operators of foreign domains that the document defines, or that a rule names."""
        named = {operator.name for operator in self.operators}
        for target in self.targets:
            named.update(target.capabilities.foreign_names)
        return frozenset(named)

    @property
    def home(self) -> MemoryLevel:
        return self.levels[0]

    @property
    def signals(self) -> tuple[int, int]:
        """What a signal takes to another engine of its core, and to another core."""
        return self.engine_signal_cycles, self.signal_cycles

    def target(self, name: str) -> AcceleratorTarget:
        """Target by name; KeyError if there is none."""
        for target in self.targets:
            if target.name == name:
                return target
        raise KeyError(name)

    def restricted(self, target: AcceleratorTarget) -> Machine:
        """The machine as `target` sees it: its engines (and all DMA), itself as only target."""
        moving = (EngineKind.DMA_IN, EngineKind.DMA_OUT)
        engines = tuple(
            e
            for e in self.engines
            if not target.engines or e.name in target.engines or e.kind in moving
        )
        return replace(self, engines=engines, targets=(target,))

    def launch_latency(self, target: AcceleratorTarget) -> int:
        """Cycles from submitting a kernel to its start while `target` is idle."""
        own = target.launch_latency_cycles
        return self.launch_latency_cycles if own is None else own

    def launch_gap(self, target: AcceleratorTarget) -> int:
        """Cycles between two kernels of `target` of which the second is queued already."""
        own, gap = target.launch_latency_cycles, target.launch_gap_cycles
        if own is None and gap is None:
            own, gap = self.launch_latency_cycles, self.launch_gap_cycles
        return self.launch_latency(target) if gap is None else gap

    @property
    def scratchpads(self) -> tuple[MemoryLevel, ...]:
        """Scratchpads below home, slow to fast."""
        return tuple(m for m in self.levels[1:] if m.managed is Managed.SCRATCHPAD)

    @property
    def placeable(self) -> tuple[MemoryLevel, ...]:
        """Levels below home that something is placed in, slow to fast: scratchpads, and registers
        that sums of an engine may stand in."""
        keep = {engine.accumulators for engine in self.engines}
        return tuple(
            m for m in self.levels[1:] if m.managed is Managed.SCRATCHPAD or m.name in keep
        )

    def level(self, name: str) -> MemoryLevel:
        """Level by name; KeyError if there is none."""
        for level in self.levels:
            if level.name == name:
                return level
        raise KeyError(name)

    def level_index(self, name: str) -> int:
        """Position of a level by name; KeyError if there is none."""
        for i, level in enumerate(self.levels):
            if level.name == name:
                return i
        raise KeyError(name)

    def port_energy(self, name: str, direction: str) -> float:
        """pJ per byte through a port of a level (`read`, `write`) or over a link (`link`)."""
        if direction == "link":
            return next(k.energy_pj_per_byte for k in self.links if k.name == name)
        level = self.level(name)
        return (
            level.read_energy_pj_per_byte if direction == "read" else level.write_energy_pj_per_byte
        )

    def engine(self, name: str) -> Engine:
        """Engine by name; KeyError if there is none."""
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise KeyError(name)

    def engines_of(self, kind: EngineKind) -> tuple[Engine, ...]:
        return tuple(e for e in self.engines if e.kind is kind)

    def route(self, src: str, dst: str) -> tuple[str, ...]:
        """Levels a transfer passes through, ends included; CACHE levels between are crossed,
        SCRATCHPAD and REGISTER levels between are bypassed."""
        i, j = self.level_index(src), self.level_index(dst)
        if abs(i - j) < 2:
            return (src, dst)
        step = 1 if j >= i else -1
        inner = [
            self.levels[k].name
            for k in range(i + step, j, step)
            if self.levels[k].managed is Managed.CACHE
        ]
        return (src, *inner, dst)
