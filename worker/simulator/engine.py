"""Runs the timing loop on one unit and gives its statistics as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import Deadlock
from worker.compiler.isa.program import Opcode, UnitProgram, steps_of
from worker.compiler.jit import loop_for
from worker.compiler.machine.machine import Machine
from worker.simulator.timing import NO_ROOM, forward

Ints = npt.NDArray[np.int64]

_STEPS = 12
"""What one instruction takes, in steps of a usual loop (`jit.INTERPRETED_STEPS`)."""
_LOG = 1 << 20
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
    the instructions that were timed: all, but for iterations of loops that were skipped."""

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
    """[streams, 2]: columns of timing.BUSY, IDLE."""
    stream_macs: Ints
    stream_count: Ints
    resource_bytes: Ints
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
    """Entry of the log that finishes last, -1 where there is none."""
    before: npt.NDArray[np.int32]
    """[log] whose end made each instruction start, -1 where nobody's."""
    via: npt.NDArray[np.int32]
    """[log] the port that the two met at, -1 where it was the engine or a token."""
    jumps: Ints
    """[jumps, 4] Iterations that the log lacks: `timing.forward`."""


def run_unit(program: UnitProgram, machine: Machine) -> Timing:
    """Time one unit.

    Raises:
        Deadlock: an instruction waits for a token that no earlier instruction signals.
    Cost: linear in what runs, but for loops whose iterations repeat; millions of instructions per
    second once compiled.
    """
    room = program.num_instructions
    if len(program.loops.table):
        room = min(room, _LOG)
    while True:
        found = _run(program, machine, room)
        if found is not None:
            return found
        room *= 4


def _run(program: UnitProgram, machine: Machine, room: int) -> Timing | None:
    """None when the log, which has this room, got full."""
    rows, loops = program.instructions, program.loops
    num_streams, num_ports = len(program.streams), len(program.resources)
    num_tokens = max(program.num_tokens, 1)
    cells = max(len(program.nodes), 1) * machine.num_cores
    is_listed = not len(loops.table)
    base, chunk = np.zeros(num_streams + 1, np.int64), np.zeros(num_streams, np.int64)
    if is_listed:
        base, chunk = slice_plan(np.bincount(rows["stream"], minlength=num_streams))
    num_slices = int(base[-1])
    times = np.zeros(num_streams + num_ports + num_tokens, np.int64)
    times[num_streams + num_ports :] = -1
    stamps = np.full(len(times), -1, np.int64)
    stream_free, resource_free, token_time = np.split(times, [num_streams, num_streams + num_ports])
    totals = np.zeros(4 * num_streams + 2 * num_ports, np.int64)
    stats, stream_macs, stream_count, port_bytes, port_busy = np.split(
        totals, np.cumsum([2 * num_streams, num_streams, num_streams, num_ports])
    )
    stats = stats.reshape(num_streams, 2)
    span_first, span_last = np.full(cells, -1, np.int64), np.full(cells, -1, np.int64)
    slices = [np.zeros(num_slices, np.int64) for _ in range(4)]
    row = np.arange(room, dtype=np.int32) if is_listed else np.empty(room, np.int32)
    queue = np.empty(0 if is_listed else room, np.int32)
    begin = np.empty(room, np.int64)
    before, via = np.empty(room, np.int32), np.empty(room, np.int32)
    token_last = np.full(num_tokens, -1, np.int64)
    may_jump, depth = ~steps_of(program) & (loops.table["trip"] >= _FEWEST), max(loops.depth, 1)
    jumps = np.zeros((len(may_jump) and max(room // 8, 64), 4), np.int64)
    steps = [loops.stride["stream"], loops.stride["resource"], loops.wait_stride]
    cycles, stuck, entries, last, num_jumps = loop_for(forward, _STEPS * room)(
        rows["opcode"], rows["stream"], rows["bytes"], rows["macs"], rows["cycles"],
        rows["latency"], rows["node"], rows["resource"],
        program.wait_ptr, program.wait_token, program.signal_ptr, program.signal_token,
        np.array([r.bytes_per_cycle for r in program.resources], np.float64),
        np.array([s.core for s in program.streams], np.int64), machine.num_cores,
        None if is_listed else loops.table["first"], loops.table["end"], loops.table["trip"],
        may_jump, *steps, loops.signal_stride, base, chunk,
        row, queue, begin, before, via,
        times, totals, stamps, stream_free, resource_free, token_time,
        stats, stream_macs, stream_count, port_bytes, port_busy, span_first, span_last, *slices,
        token_last,
        np.zeros(depth, np.int64), np.zeros(depth, np.int64), np.zeros((depth, 7), np.int64),
        np.zeros((depth, len(times)), np.int64), np.zeros((depth, len(totals)), np.int64), jumps,
    )  # fmt: skip
    if stuck == NO_ROOM:
        return None
    if stuck >= 0:
        raise _deadlock(program, int(stuck), token_time)
    return Timing(
        int(cycles), row[:entries], rows["stream"] if is_listed else queue[:entries],
        begin[:entries], stream_free, stats, stream_macs, stream_count,
        port_bytes, port_busy, span_first.reshape(-1, machine.num_cores),
        span_last.reshape(-1, machine.num_cores), base, slices[0], slices[1], slices[2], slices[3],
        int(last), before[:entries], via[:entries], jumps[:num_jumps],
    )  # fmt: skip


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
