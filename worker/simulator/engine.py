"""Runs the timing loop on one unit and gives its statistics as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import Deadlock
from worker.compiler.isa.program import Opcode, UnitProgram
from worker.compiler.jit import loop_for
from worker.compiler.machine.machine import Machine
from worker.simulator.timing import forward

Ints = npt.NDArray[np.int64]

_STEPS = 12
"""What one instruction takes, in steps of a usual loop (`jit.INTERPRETED_STEPS`)."""
MAX_SLICES = 512
"""Boxes of the timeline kept per unit, over all streams."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What the timing loop measured.  Arrays are parallel to the unit's tables."""

    cycles: int
    begin: Ints
    """Start of each instruction [n]."""
    stream_free: Ints
    """When each stream's engine ended its last instruction."""
    stream_stats: Ints
    """[streams, 4]: columns of timing.BUSY, TOKEN, RESOURCE, QUEUED."""
    stream_macs: Ints
    stream_count: Ints
    resource_bytes: Ints
    resource_busy: Ints
    span_first: Ints
    """[nodes, cores]: first start of the node's instructions on the core, -1 where none."""
    span_last: Ints
    """[nodes, cores]: last finish."""
    slice_base: Ints
    """[streams + 1] offsets into the slice arrays; equal where a stream is not drawn."""
    slice_start: Ints
    slice_end: Ints
    slice_count: Ints
    slice_instruction: Ints
    """First instruction of each slice."""
    compute_start: Ints
    """Start of each compute instruction, in program order."""
    compute_end: Ints
    last: int
    """The instruction that finishes last, -1 where there is none."""
    before: npt.NDArray[np.int32]
    """[n] whose end made each instruction start, -1 where nobody's."""
    via: npt.NDArray[np.int32]
    """[n] the port that the two met at, -1 where it was the engine or a token."""


def run_unit(program: UnitProgram, machine: Machine) -> Timing:
    """Time one unit.

    Raises:
        Deadlock: an instruction waits for a token that no earlier instruction signals.
    Cost: linear; millions of instructions per second once compiled.
    """
    rows = program.instructions
    num_streams, num_ports = len(program.streams), len(program.resources)
    cells = max(len(program.nodes), 1) * machine.num_cores
    counts = np.bincount(rows["stream"], minlength=num_streams).astype(np.int64)
    base, chunk = slice_plan(counts)
    num_slices = int(base[-1])
    begin = np.zeros(len(rows), np.int64)
    token_time = np.full(max(program.num_tokens, 1), -1, np.int64)
    stream_free, resource_free = np.zeros(num_streams, np.int64), np.zeros(num_ports, np.int64)
    stats = np.zeros((num_streams, 4), np.int64)
    stream_macs, stream_count = np.zeros(num_streams, np.int64), np.zeros(num_streams, np.int64)
    port_bytes, port_busy = np.zeros(num_ports, np.int64), np.zeros(num_ports, np.int64)
    span_first, span_last = np.full(cells, -1, np.int64), np.full(cells, -1, np.int64)
    slices = [np.zeros(num_slices, np.int64) for _ in range(4)]
    compute_start, compute_end = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    before, via = np.full(len(rows), -1, np.int32), np.full(len(rows), -1, np.int32)
    lasts = [np.full(size, -1, np.int64) for size in (num_streams, num_ports, len(token_time))]
    cycles, stuck, computes, last = loop_for(forward, _STEPS * len(rows))(
        rows["opcode"], rows["stream"], rows["bytes"], rows["macs"], rows["cycles"],
        rows["latency"], rows["node"], rows["resource"],
        program.wait_ptr, program.wait_token, program.signal_ptr, program.signal_token,
        np.array([r.bytes_per_cycle for r in program.resources], np.float64),
        np.array([s.core for s in program.streams], np.int64), machine.num_cores, base, chunk,
        begin, token_time, stream_free, resource_free, stats, stream_macs, stream_count,
        port_bytes, port_busy, span_first, span_last, *slices, compute_start, compute_end,
        before, via, *lasts,
    )  # fmt: skip
    if stuck >= 0:
        raise _deadlock(program, int(stuck), token_time)
    return Timing(
        int(cycles), begin, stream_free, stats, stream_macs, stream_count, port_bytes, port_busy,
        span_first.reshape(-1, machine.num_cores), span_last.reshape(-1, machine.num_cores), base,
        slices[0], slices[1], slices[2], slices[3],
        compute_start[:computes], compute_end[:computes], int(last), before, via,
    )  # fmt: skip


def slice_plan(counts: Ints) -> tuple[Ints, Ints]:
    """(offsets of each stream's slices, instructions merged per slice; 0 = stream not drawn)."""
    num_streams = max(len(counts), 1)
    budget = max(MAX_SLICES // num_streams, 8)
    drawn = np.arange(len(counts)) < MAX_SLICES // budget
    chunk = np.where(drawn, np.maximum(-(-counts // budget), 1), 0)
    used = np.where(drawn, -(-counts // np.maximum(chunk, 1)), 0)
    return np.concatenate(([0], np.cumsum(used))).astype(np.int64), chunk.astype(np.int64)


def compute_cycles(run: Timing) -> int:
    """Cycles during which at least one compute engine is busy.  Cost: two sorts."""
    if not len(run.compute_start):
        return 0
    starts, ends = np.sort(run.compute_start), np.sort(run.compute_end)
    # Sorted apart, the k-th interval of the union breaks where start k+1 lies past end k.
    gaps = np.maximum(starts[1:] - ends[:-1], 0).sum()
    return int(ends[-1] - starts[0] - gaps)


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
