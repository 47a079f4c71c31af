"""Whose fault every cycle of a kernel is: the chain of instructions that its end waited for.

From the last finish backward, each instruction started when one thing happened: its engine became
free, a port did, or a value arrived.  What the instruction that caused this was doing meanwhile is
what the cycles were spent on, so the chain covers the run from 0 to its end without a gap, and
every cycle has exactly one cause:

- `engine:NAME`: a compute engine works; `fill:NAME`: its pipeline fills and drains.
- `port:LEVEL.read`, `port:LEVEL.write`, `link:NAME`: bytes pass; the slowest port of the transfer,
  or the one that the next instruction of the chain waited for.
- `latency`: a transfer or computation is over, but what waits for it does not see it yet.

Where several things happen at the same time, the engine comes first, then the port.  Making a cause
faster shortens the chain, until another one takes as long; what is not on it costs nothing.
Source: our own; a critical path of the simulated run, as in PERT.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from worker.compiler.isa.program import Resource, UnitProgram
from worker.compiler.jit import loop_for
from worker.compiler.machine.machine import EngineKind, Machine
from worker.simulator.engine import Timing
from worker.simulator.results import Blame
from worker.simulator.timing import COMPUTE, Ints

LATENCY = "latency"
_STEPS = 6
"""What one instruction of the chain takes, in steps of a usual loop (`jit.INTERPRETED_STEPS`)."""


def blame(program: UnitProgram, machine: Machine, run: Timing) -> tuple[Blame, ...]:
    """Cycles by cause and node of the schedule tree, in the order of the tree's nodes.

    They sum to `run.cycles`.  Cost: linear in the instructions of the chain, at most all.
    """
    names, engine_of, fill_of, port_of = _causes(program, machine)
    startup = np.array([machine.engine(s.engine).startup_cycles for s in program.streams], np.int64)
    table = np.zeros((max(len(program.nodes), 1), len(names)), np.int64)
    rows = program.instructions
    loop_for(trace_back, _STEPS * len(rows))(
        run.last, run.cycles, run.begin, run.before, run.via,
        rows["opcode"], rows["stream"], rows["bytes"], rows["cycles"], rows["node"],
        rows["resource"], np.array([r.bytes_per_cycle for r in program.resources], np.float64),
        engine_of, fill_of, startup, port_of, len(names) - 1, table,
    )  # fmt: skip
    return tuple(
        Blame(names[cause], program.nodes[node], int(table[node, cause]))
        for node, cause in np.argwhere(table).tolist()
    )


def _causes(program: UnitProgram, machine: Machine) -> tuple[tuple[str, ...], Ints, Ints, Ints]:
    """Names of all causes, `latency` last; of each stream its engine's and its pipeline's number,
    of each port its own.  A port has one name in all instances of its level."""
    engines = [e.name for e in machine.engines if e.kind not in _MOVERS]
    names = dict.fromkeys(f"{kind}:{name}" for name in engines for kind in ("engine", "fill"))
    names |= dict.fromkeys(map(_port, program.resources))
    number = {name: k for k, name in enumerate((*names, LATENCY))}
    engine = np.array([number.get(f"engine:{s.engine}", -1) for s in program.streams], np.int64)
    fill = np.array([number.get(f"fill:{s.engine}", -1) for s in program.streams], np.int64)
    port = np.array([number[_port(r)] for r in program.resources], np.int64)
    return tuple(number), engine, fill, port


_MOVERS = (EngineKind.DMA_IN, EngineKind.DMA_OUT)


def _port(port: Resource) -> str:
    if port.direction == "link":
        return f"link:{port.level}"
    return f"port:{port.level}.{port.direction}"


def trace_back(
    k: int, cycles: int, begin: Ints, before: Ints, via: Ints,
    opcode: Ints, stream: Ints, num_bytes: Ints, engine_cycles: Ints, node: Ints,
    resource: Ints, rate: np.ndarray, engine_of: Ints, fill_of: Ints, startup: Ints,
    port_of: Ints, latency: int, table: Ints,
) -> None:  # fmt: skip
    """From instruction `k`, whose finish ends the run, backward; adds to `table` [nodes, causes].

    `before`: who made each instruction start, -1 if nobody; `via`: the port they met at, else -1.
    """
    time = cycles
    met = -1
    while k >= 0:
        s = stream[k]
        busy = engine_cycles[k]
        slowest = -1
        for p in range(resource.shape[1]):
            r = resource[k, p]
            if r < 0:
                break
            need = ceil(num_bytes[k] / rate[r])
            if need > busy:
                busy = need
                slowest = r
        end = begin[k] + busy
        if time > end:
            table[node[k], latency] += time - end
            time = end
        length = time - begin[k]
        if opcode[k] == COMPUTE:
            filling = min(startup[s], length)
            table[node[k], fill_of[s]] += filling
            table[node[k], engine_of[s]] += length - filling
        elif length > 0:
            table[node[k], port_of[met if met >= 0 else slowest]] += length
        time = begin[k]
        met = via[k]
        k = before[k]
