"""Simulate units, and compose them into the run of a whole program."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from worker.compiler.isa.program import Opcode, UnitProgram
from worker.compiler.machine.machine import Machine
from worker.simulator.attribution import blame
from worker.simulator.bounds import lower_bounds, traffic
from worker.simulator.compose import simulate_program
from worker.simulator.energy import ledger
from worker.simulator.engine import Timing, compute_cycles, run_unit
from worker.simulator.memory import occupancy
from worker.simulator.results import EngineUse, Slice, Stall, UnitSimulation
from worker.simulator.sanity import recount, unit_checks
from worker.simulator.timing import BUSY, QUEUED, RESOURCE, TOKEN

__all__ = ["SIMULATOR_VERSION", "simulate_program", "simulate_unit"]

SIMULATOR_VERSION = "3"
"""Part of every simulation's cache key: change it when any number may change."""
NONE: Mapping[int, int] = MappingProxyType({})


def simulate_unit(
    program: UnitProgram,
    machine: Machine,
    predicted_cycles: int = 0,
    contractions: Mapping[int, int] = NONE,
) -> UnitSimulation:
    """Simulate one kernel alone, from launch to its last finish.

    `contractions`: operators of the unit's graph that multiply and accumulate, with the points that
    each needs; an engine of any kind may run them, and some points more than once.

    Raises:
        Deadlock: an instruction waits for what never happens.
    Cost: linear in instructions; the first call compiles the loop (seconds, cached on disk).
    """
    run = run_unit(program, machine)
    moved = traffic(program, machine, run)
    curves = occupancy(program, machine, run)
    bounds = lower_bounds(program, machine, run, moved)
    engines = _engine_use(program, machine, run)
    found = recount(program)
    blamed = blame(program, machine, run)
    macs = sum(map(found.of, contractions))
    return UnitSimulation(
        signature=program.signature,
        cycles=run.cycles,
        instructions=program.num_instructions,
        macs=macs,
        repeated_macs=max(0, macs - sum(contractions.values())),
        other_ops=int(found.work.sum()) - macs,
        work=tuple(found.work.tolist()),
        active_cores=len({s.core for s in program.streams}),
        compute_cycles=compute_cycles(run),
        stalls=(
            Stall("token", int(run.stream_stats[:, TOKEN].sum())),
            Stall("resource", int(run.stream_stats[:, RESOURCE].sum())),
            Stall("stream", int(run.stream_stats[:, QUEUED].sum())),
        ),
        traffic=moved,
        engines=engines,
        energy=ledger(program, machine, run),
        occupancy=curves,
        bounds=bounds,
        checks=unit_checks(
            program, machine, run, bounds, moved, curves, found, contractions, blamed
        ),
        slices=_slices(program, run),
        predicted_cycles=predicted_cycles,
        blame=blamed,
    )


def _engine_use(program: UnitProgram, machine: Machine, run: Timing) -> tuple[EngineUse, ...]:
    table = {engine.name: [0, 0] for engine in machine.engines}
    busy = run.stream_stats[:, BUSY].tolist()
    for stream, cycles, count in zip(program.streams, busy, run.stream_count.tolist(), strict=True):
        table[stream.engine][0] += cycles
        table[stream.engine][1] += count
    return tuple(EngineUse(name, cycles, count) for name, (cycles, count) in table.items())


def _slices(program: UnitProgram, run: Timing) -> tuple[Slice, ...]:
    rows = program.instructions
    found: list[Slice] = []
    base = run.slice_base.tolist()
    for number, stream in enumerate(program.streams):
        for k in range(base[number], base[number + 1]):
            merged = int(run.slice_count[k])
            row = rows[int(run.slice_instruction[k])]
            name = f"{Opcode(int(row['opcode'])).name} {program.nodes[int(row['node'])]}"
            if merged > 1:
                name = f"{merged} instructions from {name}"
            found.append(
                Slice(
                    stream.core, stream.engine, name, int(run.slice_start[k]),
                    int(run.slice_end[k]), merged,
                )
            )  # fmt: skip
    return tuple(found)
