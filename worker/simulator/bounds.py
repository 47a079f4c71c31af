"""Lower bounds on a unit's cycles that no schedule of the same work can beat.

`compute:ENGINE`: its operations at the peak rate on every core of the machine.
`traffic:LEVEL`: compulsory bytes (each input and constant in once, each output out once) over the
total bandwidth of the level's instances; where reads and writes share a port, one after the other.
An operator that reads only part of an operand (Gather,
Slice) makes "whole operand" too much to ask, so the compulsory bytes never exceed those that the
program really moved; hence every bound holds for this program as well.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from worker.compiler.clock.run import Timing
from worker.compiler.isa.loops import repetitions
from worker.compiler.isa.program import OperandRole, UnitProgram, passed
from worker.compiler.machine.engine_ports import serves_an_engine
from worker.compiler.machine.machine import EngineKind, Machine, MemoryLevel
from worker.simulator.rates import peak_rate
from worker.simulator.results import Bound, LevelTraffic


def traffic(program: UnitProgram, machine: Machine, run: Timing) -> tuple[LevelTraffic, ...]:
    """Bytes that transfers bring through the ports of each level, summed over instances."""
    table = {level.name: [0, 0] for level in machine.levels}
    for port, num_bytes in zip(program.resources, run.resource_bytes.tolist(), strict=True):
        if port.direction != "link" and not serves_an_engine(port.level, port.counted, machine):
            table[port.level][port.direction == "write"] += num_bytes * port.count
    unasked = _unasked(program, machine)
    return tuple(
        LevelTraffic(name, read, write, unasked.get(name, 0))
        for name, (read, write) in table.items()
    )


def _unasked(program: UnitProgram, machine: Machine) -> dict[str, int]:
    """By level that moves bursts: their bytes without the payload.

    A loop over cores changes the instance of a port, and never its level.
    """
    rows = program.instructions
    sizes, column = passed(rows, program.resources)
    times = repetitions(program.loops)
    bursts = [
        number for number, port in enumerate(program.resources)
        if column[number] and not serves_an_engine(port.level, port.counted, machine)
    ]  # fmt: skip
    is_burst = np.zeros(len(program.resources) + 1, bool)  # the last one is of no port: -1
    is_burst[bursts] = True
    totals = np.zeros(len(program.resources), np.int64)
    named = rows["resource"]
    for place in range(named.shape[1]):
        uses = np.flatnonzero(is_burst[named[:, place]])
        uses = uses[(named[uses, :place] != named[uses, place, None]).all(axis=1)]
        port = named[uses, place]
        more = sizes[column[port], uses] - rows["bytes"][uses]
        np.add.at(totals, port, more * times[uses] if len(times) else more)
    found: dict[str, int] = {}
    for number in bursts:
        port = program.resources[number]
        more = int(totals[number]) * port.count // port.sharers
        found[port.level] = found.get(port.level, 0) + more
    return found


def compulsory(program: UnitProgram) -> tuple[int, int]:
    """(bytes that must come in, bytes that must go out)."""
    inward = sum(
        o.size_bytes
        for o in program.operands
        if o.role in (OperandRole.INPUT, OperandRole.CONSTANT)
    )
    return inward, sum(o.size_bytes for o in program.operands if o.role is OperandRole.OUTPUT)


def lower_bounds(
    program: UnitProgram, machine: Machine, run: Timing, moved: tuple[LevelTraffic, ...]
) -> tuple[Bound, ...]:
    """All bounds, engines first, then levels from slow to fast."""
    bounds: list[Bound] = []
    work_of: dict[str, int] = {}
    for stream, work in zip(program.streams, run.stream_macs.tolist(), strict=True):
        work_of[stream.engine] = work_of.get(stream.engine, 0) + work
    for engine in machine.engines:
        if engine.kind in (EngineKind.DMA_IN, EngineKind.DMA_OUT):
            continue
        work, name = work_of.get(engine.name, 0), f"compute:{engine.name}"
        if not work:  # a unit of fixed functions may have no rate for anything in this program
            bounds.append(Bound(name, 0))
            continue
        rate = peak_rate(engine, program) * machine.num_cores
        bounds.append(Bound(name, floor_cycles(work, rate)))
    inward, outward = compulsory(program)
    for level, flow in zip(machine.levels, moved, strict=True):
        # Seen from home, bytes come in through reads and go out through writes; below it, inverted.
        is_home = level.name == machine.home.name
        reads = min(inward if is_home else outward, flow.read_bytes)
        writes = min(outward if is_home else inward, flow.write_bytes)
        bounds.append(Bound(f"traffic:{level.name}", port_floor(level, reads, writes)))
    return tuple(bounds)


def port_floor(level: MemoryLevel, read_bytes: int, written_bytes: int) -> int:
    """Whole cycles that the ports of all instances of a level take at least for so many bytes."""
    return floor_cycles(level.transfer_cycles(read_bytes, written_bytes, level.instances), 1.0)


def floor_cycles(amount: float, per_cycle: float) -> int:
    """Whole cycles that `amount` takes at least.

    The tolerance keeps a rounding error of the division from adding a cycle to a bound.
    """
    return max(0, ceil(amount / per_cycle * (1 - 1e-12)))
