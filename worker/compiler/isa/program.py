"""Programs: what lowering emits, the bundle carries, and the simulator runs.

A `UnitProgram` is one kernel's instruction list, held as arrays, in an order in which every wait is
on a token signalled earlier (dependences point backwards).
Large ones have loops (`loops`): what is said of the list holds for its expansion.
Each instruction belongs to one in-order stream (a core's engine).  Instructions of one stream run
in list order; different streams are held back only by tokens and shared resources.

Token semantics: a token's time is the latest finish among the instructions that signalled it so
far in list order; an instruction starts no earlier than the time of every token it waits for.
Signals of a token that several cores use come later by the machine's `signal_cycles`, those between
engines of one core by its `engine_signal_cycles`.
Resources: a transfer occupies each of its resources for ceil(bytes / payload_per_cycle) cycles, its
stream for the longest.  Those of a half-duplex memory are one port (`port_numbers`); a transfer
that reads and writes there takes it twice in turn.
What a cache holds does not pass the port behind it: that port is missing in the list of a transfer,
or is one of several `sharers`, each of which carries its part of what they bring in together.
Ports of memories that move whole bursts say so (`Resource.counted`): through them pass the bytes in
another column of the instruction, `drawn` at home and `returned` at a cache.
Ports serve who is ready first, its stream free and its tokens signalled; of equals, who is listed
first.  A transfer begins when it has all of its ports, and keeps its turn at each until then.
A resource may stand for the ports of several instances (`Resource.count`), each of which it takes:
a MULTICAST reads its source once and writes into all of them.
An instance of a mesh is a way over it (`machine.mesh`): it takes all of its links, of several ways
each once, and what waits for the transfer sees it later by the latency of all hops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from worker.compiler.isa.loops import (
    NO_LOOPS,
    Ints,
    Loops,
    last_counters,
    nesting,
    repetitions,
    unrolled,
)
from worker.compiler.machine.links import wires
from worker.compiler.machine.machine import Link


class Opcode(IntEnum):
    LOAD = 1
    """Home level or outer memory -> inner memory."""
    STORE = 2
    """Inner memory -> outer memory."""
    COPY = 3
    """Between instances of one level."""
    MULTICAST = 4
    """Outer memory -> the same place in several instances of an inner one: a LOAD of each of some
    cores as one transfer, issued by the first of them."""
    COMPUTE = 5
    PUSH = 6
    """Write of a queue entry (a transfer; 0 bytes when produced in place)."""
    POP = 7
    SYNC = 8
    """Zero-cost join: waits and signals only."""


MAX_RESOURCES = 6

INSTRUCTION = np.dtype(
    [
        ("opcode", "u1"),
        ("stream", "<i4"),
        ("node", "<i4"),  # index into UnitProgram.nodes (path in the schedule tree)
        ("op", "<i4"),  # index into the unit graph's ops, -1 for moves
        ("bytes", "<i8"),  # payload of a transfer (clipped), 0 for COMPUTE
        ("macs", "<i8"),  # multiply-accumulates of a contraction, else elementary operations
        ("cycles", "<i8"),  # least occupancy of the engine; of a transfer beside that of its ports
        ("drawn", "<i8"),  # bytes that a COMPUTE's engine reads of its own memory; of a transfer,
        # through a port of home that counts whole bursts, either way
        ("returned", "<i8"),  # bytes that it writes there; of a transfer, through that of a cache
        ("inside", "<i8"),  # bytes that the lines of a COMPUTE's array carry (`cost.feeds`)
        ("starved", "<i8"),  # of the cycles of a COMPUTE, those that only its own ports cost
        ("latency", "<i4"),  # added after occupancy before the finish is visible
        ("resource", "<i4", (MAX_RESOURCES,)),  # indices into UnitProgram.resources, -1 unused
        ("src", "<i4"),  # index into UnitProgram.buffers, -1 = operand at home
        ("dst", "<i4"),
        ("src_offset", "<i8"),  # bytes from the buffer's / operand's base
        ("dst_offset", "<i8"),
        ("iteration", "<i8"),  # which iteration of its leaf it carries out (`iteration_weights`)
        ("operand", "<i4"),  # of a leaf that computes, the operand that a transfer carries; else -1
    ]
)


PASSED = "bytes", "drawn", "returned"
"""Columns that say what passes a port: the payload, or whole bursts at home, or at a cache."""


class OperandRole(IntEnum):
    INPUT = 0
    CONSTANT = 1
    OUTPUT = 2
    SCRATCH = 3
    """An intermediate that lives in the home level inside this unit."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A whole tensor in the home level, bound to an address at each call."""

    tensor: str
    role: OperandRole
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """Storage of one Place or Queue at a planned address in each instance of its level."""

    tensor: str
    level: str
    address: int
    slot_bytes: int
    """Size of one copy; copies are adjacent, slot k at address + k * slot_bytes."""
    copies: int
    dtype: str
    extents: tuple[int, ...]
    """Unclipped tile extents; row-major."""
    path: str
    """Path of its Place/Queue in the schedule tree."""
    blocks: int = 1
    """Private blocks per instance: > 1 when the loops around the Place distinguish several cores
    attached to one instance.  Block b starts at address + b * block_bytes."""
    block_stride: int = 1
    """Distance in core ids between neighbouring blocks."""
    first_core: int = 0
    """Position, within its instance, of the core that owns block 0."""

    @property
    def block_bytes(self) -> int:
        """All copies of one block."""
        return self.slot_bytes * self.copies

    @property
    def size_bytes(self) -> int:
        return self.block_bytes * self.blocks

    def block_of(self, core: int, cores_per_instance: int) -> int:
        """Block used by a Place executed on `core` (a Queue: on its producer's core)."""
        if self.blocks == 1:
            return 0
        return (core % cores_per_instance - self.first_core) // self.block_stride


@dataclass(frozen=True, slots=True)
class Stream:
    """One in-order instruction queue."""

    core: int
    engine: str


@dataclass(frozen=True, slots=True)
class Resource:
    """One port with finite bandwidth."""

    level: str
    """Memory level or link name."""
    instance: int
    direction: str
    """`read`, `write` or `link`."""
    bytes_per_cycle: float
    half_duplex: bool = False
    """The same port serves the other direction of this instance."""
    sharers: int = 1
    """Transfers that bring the same bytes into a cache together: of its own payload each carries
    one part in so many through this port.  Resources that differ in nothing else are one port."""
    count: int = 1
    """Ports that a transfer takes together: of this instance and of those behind it; each passes
    all of its bytes at the rate above."""
    step: int = 1
    """Distance in instances between neighbouring ones."""
    counted: str = "bytes"
    """Column of an instruction that says what passes: one of `PASSED`."""

    @property
    def payload_per_cycle(self) -> float:
        """Bytes of a transfer's payload that are served in a cycle."""
        return self.bytes_per_cycle * self.sharers

    @property
    def instances(self) -> range:
        """All of them."""
        return range(self.instance, self.instance + self.count * self.step, self.step)


def port_numbers(resources: Sequence[Resource]) -> Ints:
    """[resources] The number of the resource whose port each one occupies; of several, the first.

    The first listed one of the same level and instance, and direction unless they are half duplex.
    Cost: linear.
    """
    first: dict[tuple[str, int, str], int] = {}
    numbers = [
        first.setdefault(
            (resource.level, resource.instance, "" if resource.half_duplex else resource.direction),
            number,
        )
        for number, resource in enumerate(resources)
    ]
    return np.array(numbers, dtype=np.int64)


NO_MESHES: Mapping[str, Link] = MappingProxyType({})


def port_sets(
    resources: Sequence[Resource], meshes: Mapping[str, Link] = NO_MESHES
) -> tuple[Ints, Ints, int]:
    """(pointer [resources + 1], ports, how many there are): each resource k occupies the ports
    numbered ports[pointer[k] : pointer[k + 1]].

    Of one that stands for one port, that of `port_numbers`; of several, those of the resources that
    are listed for them alone, or numbers of their own; of ways over a mesh those of its links.
    Cost: linear in ports.
    """
    single = port_numbers(resources).tolist()
    known: dict[tuple[str, int, str], int] = {}
    for resource, number in zip(resources, single, strict=True):
        if resource.count == 1 and resource.level not in meshes:
            known.setdefault(_port(resource, resource.instance), number)
    total = len(resources)
    ports: list[int] = []
    pointer = [0]
    for resource, number in zip(resources, single, strict=True):
        if resource.count == 1 and resource.level not in meshes:
            ports.append(number)
        else:
            for instance in wires(meshes, resource.level, resource.instances)[0]:
                port = known.setdefault(_port(resource, instance), total)
                total += port == total
                ports.append(port)
        pointer.append(len(ports))
    return np.array(pointer, dtype=np.int64), np.array(ports, dtype=np.int64), total


def hop_cycles(resources: Sequence[Resource], meshes: Mapping[str, Link]) -> Ints:
    """[resources + 1] Cycles by which what passes each is seen later; of none (-1) as well."""
    found = [wires(meshes, r.level, r.instances)[2] if r.level in meshes else 0 for r in resources]
    return np.array([*found, 0], dtype=np.int64)


def late_by(
    rows: npt.NDArray[np.void], resources: Sequence[Resource], meshes: Mapping[str, Link]
) -> Ints:
    """[rows] From the end of each instruction, listed without loops, to its finish: its latency and
    that of its hops."""
    latency = rows["latency"]
    if not meshes:
        return latency
    found: Ints = latency + hop_cycles(resources, meshes)[rows["resource"]].sum(axis=1)
    return found


def _port(resource: Resource, instance: int) -> tuple[str, int, str]:
    return resource.level, instance, "" if resource.half_duplex else resource.direction


def passed(
    rows: npt.NDArray[np.void], resources: Sequence[Resource]
) -> tuple[npt.NDArray[np.int64], Ints]:
    """(bytes [columns, rows], column of each resource): what transfers bring through ports.

    Where all ports pass payload, that is the only column.
    """
    column = np.array([PASSED.index(r.counted) for r in resources], dtype=np.int64)
    if not column.any():
        return rows["bytes"][None], column
    return np.stack([rows[name] for name in PASSED]), column


def widths(resources: Sequence[Resource]) -> Ints:
    """[resources] Ports that each stands for."""
    return np.array([resource.count for resource in resources], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class UnitProgram:
    """One kernel, lowered.  Arrays are read-only.

    Shapes: instructions [n] of INSTRUCTION; wait_ptr, signal_ptr [n+1] int32 (CSR offsets);
    wait_token, signal_token int32.
    """

    signature: str
    operands: tuple[Operand, ...]
    buffers: tuple[Buffer, ...]
    streams: tuple[Stream, ...]
    resources: tuple[Resource, ...]
    nodes: tuple[str, ...]
    """Schedule-tree paths, referenced by instructions."""
    instructions: npt.NDArray[np.void]
    wait_ptr: npt.NDArray[np.int32]
    wait_token: npt.NDArray[np.int32]
    signal_ptr: npt.NDArray[np.int32]
    signal_token: npt.NDArray[np.int32]
    num_tokens: int
    loops: Loops = NO_LOOPS

    @property
    def num_rows(self) -> int:
        """Instructions that are listed."""
        return len(self.instructions)

    @property
    def num_instructions(self) -> int:
        """Instructions that run."""
        return int(repetitions(self.loops).sum()) if len(self.loops.table) else self.num_rows


def steps_of(unit: UnitProgram) -> npt.NDArray[np.bool_]:
    """[loops] Whether the iterations of each use other streams, ports or tokens."""
    loops = unit.loops
    moves = (loops.stride["stream"] != 0) | np.any(loops.stride["resource"] != 0, axis=2)
    if len(loops.table):
        for pointer, stride in (
            (unit.wait_ptr, loops.wait_stride), (unit.signal_ptr, loops.signal_stride),
        ):  # fmt: skip
            owner = np.repeat(np.arange(unit.num_rows), np.diff(pointer))
            np.logical_or.at(moves, owner, stride != 0)
    found = [
        bool(moves[first:end, depth].any())
        for (first, end, _), depth in zip(loops.table.tolist(), nesting(loops.table), strict=True)
    ]
    return np.array(found, dtype=np.bool_)


def instructions_of(unit: UnitProgram) -> Ints:
    """[streams] How many run on each."""
    loops, stream = unit.loops, unit.instructions["stream"]
    if not len(loops.table):
        return np.bincount(stream, minlength=len(unit.streams))
    found: Ints = np.zeros(len(unit.streams), dtype=np.int64)
    trips, steps = last_counters(loops) + 1, loops.stride["stream"]
    times = np.where(steps == 0, trips, 1).prod(axis=1)
    moves = np.any(steps != 0, axis=1)
    np.add.at(found, stream[~moves], times[~moves])
    for row in np.flatnonzero(moves).tolist():
        own = stream[row : row + 1].astype(np.int64)
        for trip, step in zip(trips[row].tolist(), steps[row].tolist(), strict=True):
            if step:
                own = np.add.outer(own, step * np.arange(trip)).ravel()
        np.add.at(found, own, times[row])
    return found


def expanded(unit: UnitProgram) -> UnitProgram:
    """The program without loops: every instruction that runs, in order.

    Cost: linear in what runs.
    """
    return excerpt(unit, 0, unit.num_instructions) if len(unit.loops.table) else unit


def excerpt(unit: UnitProgram, begin: int, end: int) -> UnitProgram:
    """The instructions begin : end that run, listed in order, as a program of their own.

    Cost: linear in their number, and in the loops of the program.
    """
    loops = unit.loops
    if not len(loops.table):
        waits, signals = (p[begin : end + 1] for p in (unit.wait_ptr, unit.signal_ptr))
        found = waits - waits[0], signals - signals[0]
        for array in found:
            array.setflags(write=False)
        return replace(
            unit, instructions=unit.instructions[begin:end], wait_ptr=found[0],
            wait_token=unit.wait_token[waits[0] : waits[-1]], signal_ptr=found[1],
            signal_token=unit.signal_token[signals[0] : signals[-1]],
        )  # fmt: skip
    return listing(unit, *unrolled(loops, begin, end))


def listing(unit: UnitProgram, rows: Ints, counters: Ints) -> UnitProgram:
    """Some runs of a program, listed in order, as a program of their own; as `unrolled` gives them.

    Cost: linear in their number.
    """
    loops = unit.loops
    table = unit.instructions.take(rows)  # indexing copies records field by field
    for name in ("stream", "src_offset", "dst_offset", "iteration"):
        table[name] += _steps(loops.stride[name], rows, counters)
    for port in range(MAX_RESOURCES):
        table["resource"][:, port] += _steps(loops.stride["resource"][..., port], rows, counters)
    wait_ptr, wait_token = _listed(
        unit.wait_ptr, unit.wait_token, loops.wait_stride, rows, counters
    )
    signal_ptr, signal_token = _listed(
        unit.signal_ptr, unit.signal_token, loops.signal_stride, rows, counters
    )
    table.setflags(write=False)
    return replace(
        unit, instructions=table, wait_ptr=wait_ptr, wait_token=wait_token, signal_ptr=signal_ptr,
        signal_token=signal_token, loops=NO_LOOPS,
    )  # fmt: skip


def _steps(stride: npt.NDArray[np.generic], rows: Ints, counters: Ints) -> Ints:
    total: Ints = np.zeros(len(rows), dtype=np.int64)
    for depth in range(stride.shape[1]):
        if stride[:, depth].any():
            total += stride[rows, depth].astype(np.int64) * counters[:, depth]
    return total


def _listed(
    pointer: npt.NDArray[np.int32],
    token: npt.NDArray[np.int32],
    stride: npt.NDArray[np.int32],
    rows: Ints,
    counters: Ints,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """CSR lists of all that runs."""
    counts = np.diff(pointer)[rows]
    ends = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    which = np.arange(ends[-1]) - np.repeat(ends[:-1] - pointer[:-1][rows], counts)
    own = token[which] + _steps(stride, which, np.repeat(counters, counts, axis=0))
    found = ends.astype(np.int32), own.astype(np.int32)
    for array in found:
        array.setflags(write=False)
    return found


@dataclass(frozen=True, slots=True)
class Binding:
    """One operand of a call: which model tensor, and where it lives in the home arena."""

    tensor: str
    address: int


@dataclass(frozen=True, slots=True)
class UnitCall:
    """Launch of one unit.  `bindings` are parallel to the unit's operands."""

    unit: int
    bindings: tuple[Binding, ...]
    onnx_nodes: tuple[str, ...]
    op_type: str
    region: int = 0
    """Which region of the partition it belongs to, counted in execution order."""
    launch_cycles: int = 0
    """Overhead paid before it starts; 0 inside a region that is launched as one."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """Run of one host sub-model (ONNX) between accelerator parts."""

    host: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_bytes: int
    """Bytes that must be copied from the accelerator's home level."""
    output_bytes: int
    """Bytes that must be copied to it (tensors read by accelerator parts)."""
    flops: int
    memory_bytes: int
    onnx_nodes: tuple[str, ...]
    op_types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A whole model: unique units and the order in which they are called."""

    units: tuple[UnitProgram, ...]
    calls: tuple[UnitCall | HostCall, ...]
    home_bytes: int
    """Size of the planned home arena (weights, activations, scratch)."""
    weight_bytes: int
    peak_activation_bytes: int
