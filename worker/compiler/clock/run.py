"""Runs the timing loop on one unit and gives its statistics as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from worker.compiler.clock.cycles import Arrays, Cycles
from worker.compiler.clock.forward import NO_ROOM, OUT_OF_ORDER, forward
from worker.compiler.clock.readiness import (
    CROSSED,
    KNOWN,
    LAST,
    MARKS,
    NEVER,
    PLACES,
    SIGNALS,
    WAITS,
    by_readiness,
)
from worker.compiler.clock.signals import token_delays
from worker.compiler.errors import Deadlock
from worker.compiler.isa.loops import NO_LOOPS
from worker.compiler.isa.program import (
    Opcode,
    Resource,
    Stream,
    UnitProgram,
    hop_cycles,
    instructions_of,
    passed,
    port_sets,
    steps_of,
)
from worker.compiler.jit import loop_for
from worker.compiler.machine.links import meshes
from worker.compiler.machine.machine import Link, Machine

Ints = npt.NDArray[np.int64]

BUSY, IDLE = range(2)

_STEPS, _EVENT_STEPS = 12, 40
"""What one instruction takes, in steps of a usual loop (`jit.INTERPRETED_STEPS`)."""
FIRST_KNOWN = 1 << 16
"""Instructions that are looked at ahead of the first that has not run, at first."""
FIRST_LOG = 1 << 23
"""Instructions for which the log of a program with loops has room at first; what is not used costs
nothing."""
_FEWEST = 6
"""Iterations below which a loop is run in full: it takes two to see that they repeat, three remain
when it is left."""
MAX_SLICES = 512
"""Boxes of the timeline kept per unit, over all streams."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What the timing loop measured.  Arrays are parallel to the unit's tables, or to the log of
    the instructions that were timed: all, but for iterations of loops that were skipped.  An
    instruction's number counts all that ran before it; where none was skipped, that is its entry in
    the log."""

    cycles: int
    row: npt.NDArray[np.int32]
    """[log] Row of each."""
    stream: npt.NDArray[np.int32]
    """[log] Stream of each."""
    begin: Ints
    """[log] Start of each."""
    stream_free: Ints
    """When each stream's engine ended its last instruction."""
    stream_stats: Ints
    """[streams, 2]: columns BUSY and IDLE: cycles that it works, and that it waits."""
    stream_macs: Ints
    stream_count: Ints
    resource_bytes: Ints
    """What passed each: of payload that several bring in together, what comes once."""
    resource_busy: Ints
    span_first: Ints
    """[nodes, cores]: first start of the node's instructions on the core, -1 where none."""
    span_last: Ints
    """[nodes, cores]: last finish."""
    slice_base: Ints
    """[streams + 1] offsets into the slice arrays; equal where a stream is not drawn.  Not filled
    where the program has loops: the log is not whole."""
    slice_start: Ints
    slice_end: Ints
    slice_count: Ints
    slice_instruction: Ints
    """First instruction of each slice."""
    last: int
    """The instruction that finishes last, by its number; -1 where there is none."""
    before: Ints
    """[log] whose end made each instruction start, by its number; -1 where nobody's."""
    via: npt.NDArray[np.int32]
    """[log] the port that the two met at, -1 where it was the engine or a token."""
    late: Ints
    """[log] Cycles from the end of each to its finish; empty where that is its latency."""
    copies: Ints
    """[copies, 7] Instructions that the log lacks: `copies`."""
    in_order: bool
    """Every port was granted in the order of the program: one pass over it found the times."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """What of a machine decides about the time of instructions."""

    ports: tuple[Resource, ...]
    """All that they name."""
    cores: tuple[int, ...]
    """Of every stream."""
    signal_cycles: tuple[int, int]
    """Between engines of a core, and between cores."""
    meshes: Mapping[str, Link] = field(default_factory=dict)
    """By name (`machine.links.meshes`)."""


def run_unit(program: UnitProgram, machine: Machine) -> Timing:
    """Time one unit.

    Raises:
        Deadlock: an instruction waits for a token that no earlier instruction signals.
    Cost: linear in what runs, but for loops whose iterations repeat; millions of instructions per
    second once compiled, about a fifth of that where ports are granted out of the program's order.
    """
    return _run(program, machine.num_cores, machine.signals, meshes(machine))


def last_finish(
    rows: npt.NDArray[np.void],
    waits: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]],
    signals: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]],
    num_tokens: int,
    wiring: Wiring,
) -> int:
    """When a list of instructions has run whose tables do not stand yet.

    `waits`, `signals`: pointers and tokens as a program has them.
    """
    streams = tuple(Stream(core, "") for core in wiring.cores)
    nodes = ("",) * (int(rows["node"].max(initial=0)) + 1)
    program = UnitProgram(
        "", (), (), streams, wiring.ports, nodes, rows, *waits, *signals, num_tokens, NO_LOOPS
    )
    num_cores = max(wiring.cores, default=0) + 1
    return _run(program, num_cores, wiring.signal_cycles, wiring.meshes).cycles


def _run(
    program: UnitProgram,
    num_cores: int,
    signal_cycles: tuple[int, int],
    meshes: Mapping[str, Link],
) -> Timing:
    delays = token_delays(
        program.instructions["stream"], np.array([s.core for s in program.streams], np.int64),
        ((program.wait_ptr, program.wait_token), (program.signal_ptr, program.signal_token)),
        program.loops, program.num_tokens, signal_cycles,
    )  # fmt: skip
    listed = program.num_instructions
    has_loops = bool(len(program.loops.table))
    room = min(listed, FIRST_LOG) if has_loops else listed
    found: Timing | int = NO_ROOM
    wires = _Wires.of(program.resources, meshes)
    while found == NO_ROOM:
        found = _in_order(program, num_cores, delays, wires, room)
        room *= 4
    if isinstance(found, Timing):
        return found
    room = min(listed, FIRST_LOG) if has_loops else listed
    return _by_readiness(program, num_cores, delays, wires, room, min(listed, FIRST_KNOWN))


class _Wires(NamedTuple):
    """What resources occupy."""

    pointer: Ints
    ports: Ints
    num_ports: int
    hops: Ints
    """[resources + 1] Cycles by which what passes is seen later; empty where nothing is."""

    @staticmethod
    def of(resources: Sequence[Resource], meshes: Mapping[str, Link]) -> _Wires:
        hops = hop_cycles(resources, meshes)
        return _Wires(*port_sets(resources, meshes), hops if hops.any() else hops[:0])


class _Tables:
    """What both loops are given: columns of a program, and what they fill."""

    def __init__(
        self, program: UnitProgram, num_cores: int, delays: Ints, wires: _Wires, room: int
    ) -> None:
        rows, loops = program.instructions, program.loops
        num_streams, num_resources = len(program.streams), len(program.resources)
        self.num_cores = num_cores
        self.sharers = np.array([r.sharers for r in program.resources], np.int64)
        self.is_listed = not len(loops.table)
        self.depth = max(loops.depth, 1)
        sizes, column = passed(rows, program.resources)
        self.columns = (
            rows["stream"], sizes, rows["macs"], rows["cycles"], rows["latency"],
            rows["node"], rows["resource"], program.wait_ptr, program.wait_token,
            program.signal_ptr, program.signal_token, delays, column,
            np.array([r.payload_per_cycle for r in program.resources], np.float64),
            wires.pointer, wires.ports, wires.hops,
            np.array([s.core for s in program.streams], np.int64), num_cores,
        )  # fmt: skip
        self.steps = steps_of(program)
        self.may_jump = ~self.steps & (loops.table["trip"] >= _FEWEST)
        self.loops = (
            None if self.is_listed else loops.table["first"], loops.table["end"],
            loops.table["trip"], self.may_jump, loops.stride["stream"], loops.stride["resource"],
            loops.wait_stride, loops.signal_stride,
        )  # fmt: skip
        base, chunk = np.zeros(num_streams + 1, np.int64), np.zeros(num_streams, np.int64)
        if self.is_listed:
            base, chunk = slice_plan(np.bincount(rows["stream"], minlength=num_streams))
        self.drawn = base, chunk
        self.totals = np.zeros(3 * num_streams + 2 * num_resources, np.int64)
        self.per_stream = self.totals[: 3 * num_streams].reshape(3, num_streams)
        self.per_port = self.totals[3 * num_streams :].reshape(2, num_resources)
        cells = max(len(program.nodes), 1) * num_cores
        self.spans = np.full((2, cells), -1, np.int64)
        self.slices = np.zeros((4, int(base[-1])), np.int64)
        self.begin = np.empty(room, np.int64)
        self.causes = np.empty(room, np.int64), np.empty(room, np.int32)
        self.late = np.empty(room if len(wires.hops) else 0, np.int64)
        self.copies = np.zeros((max(room // 8, 64) if len(self.may_jump) else 3, 7), np.int64)

    def lengthen(self, room: int) -> None:
        """Give the log, begun already, this room."""
        before, via = self.causes
        self.begin = _longer(self.begin, room)
        self.causes = _longer(before, room), _longer(via, room)
        self.late = _longer(self.late, room) if len(self.late) else self.late

    def timing(
        self,
        found: tuple[int, int, int, int, int],
        row: npt.NDArray[np.int32],
        stream: npt.NDArray[np.int32],
        stream_free: Ints,
        *,
        in_order: bool,
    ) -> Timing:
        cycles, _, entries, last, num_copies = map(int, found)
        busy, macs, count = self.per_stream
        before, via = self.causes
        port_bytes, port_busy = self.per_port
        span_first, span_last = self.spans.reshape(2, -1, self.num_cores)
        start, end, merged, first = self.slices
        return Timing(
            cycles, row[:entries], stream[:entries], self.begin[:entries], stream_free,
            np.stack([busy, stream_free - busy], axis=1), macs, count,
            -(-port_bytes // self.sharers), port_busy, span_first, span_last, self.drawn[0],
            start, end, merged, first, last, before[:entries], via[:entries],
            self.late[:entries], self.copies[:num_copies], in_order,
        )  # fmt: skip


def _in_order(
    program: UnitProgram, num_cores: int, delays: Ints, wires: _Wires, room: int
) -> Timing | int:
    """NO_ROOM when the log, which has this room, got full; OUT_OF_ORDER."""
    tables = _Tables(program, num_cores, delays, wires, room)
    rows, depth = program.instructions, tables.depth
    num_streams, num_ports = len(program.streams), wires.num_ports
    times = np.zeros(num_streams + 2 * num_ports + max(program.num_tokens, 1), np.int64)
    parts = np.split(times, np.cumsum([num_streams, num_ports, num_ports]))
    stream_free, _, _, token_time = parts
    token_time[:] = -1
    row = np.arange(room, dtype=np.int32) if tables.is_listed else np.empty(room, np.int32)
    queue = np.empty(0 if tables.is_listed else room, np.int32)
    found = loop_for(forward, _STEPS * room)(
        *tables.columns, *tables.loops, *tables.drawn, row, queue, tables.begin, *tables.causes,
        tables.late, times, tables.totals, np.full(len(times), -1, np.int64), *parts,
        *tables.per_stream, *tables.per_port, *tables.spans, *tables.slices,
        np.full(len(token_time), -1, np.int64),
        np.zeros(depth, np.int64), np.zeros(depth, np.int64), np.zeros((depth, 7), np.int64),
        np.zeros((depth, len(times)), np.int64), np.zeros((depth, len(tables.totals)), np.int64),
        tables.copies,
    )  # fmt: skip
    stuck = int(found[1])
    if stuck in (NO_ROOM, OUT_OF_ORDER):
        return stuck
    if stuck >= 0:
        raise _deadlock(program, stuck, token_time)
    streams = rows["stream"] if tables.is_listed else queue
    return tables.timing(found, row, streams, stream_free, in_order=True)


def _by_readiness(
    program: UnitProgram, num_cores: int, delays: Ints, wires: _Wires, room: int, known: int
) -> Timing:
    """`room`, `known`: entries of the log and instructions that there is space for at first."""
    tables = _Tables(program, num_cores, delays, wires, room)
    depth, num_tokens = tables.depth, max(program.num_tokens, 1)
    num_streams, num_ports = len(program.streams), wires.num_ports
    known = _power_of_two(known)
    ring = np.zeros((known, 10), np.int64)
    ports = np.empty((known, program.instructions["resource"].shape[1]), np.int32)
    signals = np.zeros((2 * known, 6), np.int64)
    waits = np.zeros((2 * known, 3), np.int64)
    tokens = np.full((num_tokens, 4), -1, np.int64)
    marks = np.zeros((1 if tables.is_listed else _power_of_two(max(2 * known, depth)), 4), np.int64)
    width = _power_of_two(num_streams + 1)
    expected = instructions_of(program)
    head = np.full(width, -1, np.int64)
    earliest = np.full(width, NEVER, np.int64)
    earliest[:num_streams][expected > 0] = 0
    first = np.concatenate([np.zeros(width, np.int64), np.arange(width)])
    for node in range(width - 1, 0, -1):
        a, b = first[2 * node], first[2 * node + 1]
        first[node] = b if earliest[b] < earliest[a] else a
    stream_free, port_free = np.zeros(num_streams, np.int64), np.zeros(num_ports, np.int64)
    row, queue = np.empty(room, np.int32), np.empty(room, np.int32)
    streams = (
        head, np.full(width, -1, np.int64), earliest, first, np.zeros(2 * width, np.int64),
        np.full(num_streams, -1, np.int64), np.full(num_ports, -1, np.int64),
    )  # fmt: skip
    loops = (
        *np.zeros((3, depth), np.int64), np.full(len(tables.may_jump), -1, np.int64),
        np.full((depth, 2), -1, np.int64), np.zeros(PLACES, np.int64),
    )  # fmt: skip
    place, cycles = loops[-1], Cycles(program, tables.steps, tables.may_jump)
    while True:
        found = loop_for(by_readiness, _EVENT_STEPS * len(row))(
            *tables.columns, *tables.loops, expected, *tables.drawn,
            row, queue, tables.begin, *tables.causes, tables.late,
            tables.totals, stream_free, port_free,
            *tables.per_stream, *tables.per_port, *tables.spans, *tables.slices,
            ring, ports, signals, waits, tokens, marks, *streams, *loops,
        )  # fmt: skip
        if found[1] == CROSSED:
            cycles.look(
                Arrays(
                    ring,
                    signals,
                    tokens,
                    marks,
                    head,
                    earliest,
                    streams[-2],
                    streams[-1],
                    stream_free,
                    port_free,
                    loops[0],
                    loops[1],
                    loops[2],
                    loops[3],
                    loops[4],
                    place,
                    tables.totals,
                )
            )
        elif found[1] != NO_ROOM:
            break
        elif found[2] == len(row):
            room = 2 * len(row)
            row, queue = _longer(row, room), _longer(queue, room)
            tables.lengthen(room)
        else:
            ring, ports = _wider(ring, place[KNOWN]), _wider(ports, place[KNOWN])
            signals, waits = _wider(signals, place[SIGNALS]), _wider(waits, place[WAITS])
            marks = _wider(marks, place[MARKS])
    if found[1] >= 0:
        raise _deadlock(program, int(found[1]), tokens[:, LAST])
    tables.copies = np.array(cycles.copies, np.int64).reshape(-1, 7)
    found = *found[:4], len(tables.copies)
    return tables.timing(found, row, queue, stream_free, in_order=False)


def _longer(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """The same with room for more behind it."""
    longer = np.empty((length, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


def _wider(ring: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Twice the length, powers of two; the last of `count` numbers stand where they belong."""
    size = len(ring)
    wider = np.zeros((2 * size, *ring.shape[1:]), ring.dtype)
    first = max(count - size, 0)
    turn = min((first // size + 1) * size, count)  # where the numbers begin anew in the ring
    for low, high in ((first, turn), (turn, count)):
        at, old = low & (2 * size - 1), low & (size - 1)
        wider[at : at + high - low] = ring[old : old + high - low]
    return wider


def _power_of_two(count: int) -> int:
    """The next one."""
    return 1 << max(count - 1, 1).bit_length()


def slice_plan(counts: Ints) -> tuple[Ints, Ints]:
    """(offsets of each stream's slices, instructions merged per slice; 0 = stream not drawn)."""
    num_streams = max(len(counts), 1)
    budget = max(MAX_SLICES // num_streams, 8)
    drawn = np.arange(len(counts)) < MAX_SLICES // budget
    chunk = np.where(drawn, np.maximum(-(-counts // budget), 1), 0)
    used = np.where(drawn, -(-counts // np.maximum(chunk, 1)), 0)
    return np.concatenate(([0], np.cumsum(used))).astype(np.int64), chunk.astype(np.int64)


def _deadlock(program: UnitProgram, stuck: int, token_time: Ints) -> Deadlock:
    row = program.instructions[stuck]
    waits = program.wait_token[program.wait_ptr[stuck] : program.wait_ptr[stuck + 1]]
    missing = [int(t) for t in waits if token_time[t] < 0]
    stream = program.streams[int(row["stream"])]
    return Deadlock(
        f"instruction {stuck} ({Opcode(int(row['opcode'])).name}, node "
        f"{program.nodes[int(row['node'])]}, core {stream.core} {stream.engine}) waits for token "
        f"{missing[0]}, which no earlier instruction signals"
    )
