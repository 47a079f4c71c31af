"""Simulate units, and compose them into the run of a whole program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from worker.compiler.clock.run import BUSY, Timing, run_unit, slice_plan
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import Opcode, Stream, UnitProgram
from worker.compiler.machine.energy_range import priced
from worker.compiler.machine.machine import Machine, Managed
from worker.simulator.attribution import blame
from worker.simulator.bounds import lower_bounds, traffic
from worker.simulator.compose import simulate_program
from worker.simulator.energy import ledger
from worker.simulator.memory import occupancy
from worker.simulator.mesh_load import mesh_load
from worker.simulator.repeats import Repeats, busy_cycles, compute_cycles
from worker.simulator.results import Bound, EngineUse, Slice, UnitSimulation
from worker.simulator.sanity import recount, unit_checks

__all__ = ["SIMULATOR_VERSION", "simulate_program", "simulate_unit"]

SIMULATOR_VERSION = "11"
"""Part of every simulation's cache key: change it when any number may change."""
NONE: Mapping[int, int] = MappingProxyType({})
UNKNOWN: Mapping[int, DType] = MappingProxyType({})


def simulate_unit(
    program: UnitProgram,
    machine: Machine,
    predicted_cycles: int = 0,
    contractions: Mapping[int, int] = NONE,
    floor: Sequence[tuple[str, int]] = (),
    formats: Mapping[int, DType] = UNKNOWN,
) -> UnitSimulation:
    """Simulate one kernel alone, from launch to its last finish.

    `contractions`: operators of the unit's graph that multiply and accumulate, with the points that
    each needs; an engine of any kind may run them, and some points more than once.  `floor`: what
    every schedule of the graph spends at least, by what on; the run is held against it.
    `formats`: the number format in which each operator computes, which its energy depends on; left
    out, that of the largest operand.

    Raises:
        Deadlock: an instruction waits for what never happens.
    Cost: linear in instructions; the first call compiles the loop (seconds, cached on disk).
    """
    run = run_unit(program, machine)
    moved = traffic(program, machine, run)
    curves = occupancy(program, machine, run)
    bounds = lower_bounds(program, machine, run, moved)
    engines = _engine_use(program, machine, run)
    caches = {level.name for level in machine.levels if level.managed is Managed.CACHE}
    found = recount(program, caches)
    blamed = blame(program, machine, run)
    macs = sum(map(found.of, contractions))
    least = tuple(Bound(*part) for part in floor)
    return UnitSimulation(
        signature=program.signature,
        cycles=run.cycles,
        instructions=program.num_instructions,
        macs=macs,
        repeated_macs=max(0, macs - sum(contractions.values())),
        other_ops=int(found.work.sum()) - macs,
        work=tuple(found.work.tolist()),
        active_cores=len({s.core for s in program.streams}),
        compute_cycles=compute_cycles(program, run),
        traffic=moved,
        engines=engines,
        energy=ledger(program, priced(machine), run, found, formats),
        occupancy=curves,
        bounds=bounds,
        checks=unit_checks(
            program, machine, run, (bounds, least), moved, curves, found, contractions, blamed
        ),
        slices=_slices(program, run),
        predicted_cycles=predicted_cycles,
        blame=blamed,
        floor=least,
        mesh=mesh_load(program, machine, run),
    )


def _engine_use(program: UnitProgram, machine: Machine, run: Timing) -> tuple[EngineUse, ...]:
    table = {engine.name: [0, 0] for engine in machine.engines}
    busy = run.stream_stats[:, BUSY].tolist()
    for stream, cycles, count in zip(program.streams, busy, run.stream_count.tolist(), strict=True):
        table[stream.engine][0] += cycles
        table[stream.engine][1] += count
    return tuple(EngineUse(name, cycles, count) for name, (cycles, count) in table.items())


def _slices(program: UnitProgram, run: Timing) -> tuple[Slice, ...]:
    if len(program.loops.table):
        return _repeated_slices(program, run)
    rows = program.instructions
    found: list[Slice] = []
    base = run.slice_base.tolist()
    for number, stream in enumerate(program.streams):
        for k in range(base[number], base[number + 1]):
            merged = int(run.slice_count[k])
            row = rows[int(run.slice_instruction[k])]
            begin, end = int(run.slice_start[k]), int(run.slice_end[k])
            found.append(_slice(program, stream, row, begin, end, merged))
    return tuple(found)


def _repeated_slices(program: UnitProgram, run: Timing) -> tuple[Slice, ...]:
    """The same where some iterations of loops were not timed."""
    rows = program.instructions
    chunk = slice_plan(run.stream_count)[1]
    drawn = np.flatnonzero(chunk)
    found: list[Slice] = []
    narrow = run.stream.astype(np.uint16) if len(program.streams) <= 1 << 16 else run.stream
    by_stream = np.argsort(narrow, kind="stable")
    ends = np.cumsum(np.bincount(run.stream, minlength=len(program.streams)))
    for number in drawn.tolist():
        own = by_stream[ends[number - 1] if number else 0 : ends[number]]
        runs = Repeats(own, run.copies)
        count, step = int(run.stream_count[number]), int(chunk[number])
        for first in range(0, count, step):
            merged = min(step, count - first)
            entry, moved = runs.find(first)
            begin = int(run.begin[entry]) + moved
            row = rows[run.row[entry]]
            entry, moved = runs.find(first + merged - 1)
            end = int(run.begin[entry]) + moved + busy_cycles(program, run, entry)
            found.append(_slice(program, program.streams[number], row, begin, end, merged))
    return tuple(found)


def _slice(
    program: UnitProgram, stream: Stream, row: np.void, begin: int, end: int, merged: int
) -> Slice:
    name = f"{Opcode(int(row['opcode'])).name} {program.nodes[int(row['node'])]}"
    if merged > 1:
        name = f"{merged} instructions from {name}"
    return Slice(stream.core, stream.engine, name, begin, end, merged)
