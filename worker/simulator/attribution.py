"""Whose fault every cycle of a kernel is: the chain of instructions that its end waited for.

From the last finish backward, each instruction started when one thing happened: its engine became
free, a port did, or a value arrived.  What the instruction that caused this was doing meanwhile is
what the cycles were spent on, so the chain covers the run from 0 to its end without a gap, and
every cycle has exactly one cause:

- `engine:NAME`: a compute engine works; `fill:NAME`: its pipeline fills and drains; `feed:NAME`: it
  waits for the ports of its own memory, which is what it would not take if they were of any width.
- `port:LEVEL.read`, `port:LEVEL.write`, `link:NAME`: bytes pass; the slowest port of the transfer,
  or the one that the next instruction of the chain waited for.  Of an engine that shares its
  memory's ports with transfers, too: what a transfer waits for, or what they cost the engine beyond
  its own time.
- `dma:NAME`: a transfer engine sets up transfers, or has no room for more on their way.
- `latency`: a transfer or computation is over, but what waits for it does not see it yet;
  `synchronisation`: the same where its signal is on its way to another core.

Where several things happen at the same time, the engine comes first, then the port.  Making a cause
faster shortens the chain, until another one takes as long; what is not on it costs nothing.
Source: our own; a critical path of the simulated run, as in PERT.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from worker.compiler.clock.copies import BACK, LOGGED, MANY, MOVED, PUT
from worker.compiler.clock.forward import COMPUTE, Ints
from worker.compiler.clock.run import Timing
from worker.compiler.isa.program import Resource, UnitProgram, passed, port_numbers
from worker.compiler.jit import loop_for
from worker.compiler.machine.dma import is_limited
from worker.compiler.machine.machine import Engine, EngineKind, Machine
from worker.simulator.results import Blame

LATENCY = "latency"
SYNCHRONISATION = "synchronisation"
_STEPS = 6
"""What one instruction of the chain takes, in steps of a usual loop (`jit.INTERPRETED_STEPS`)."""


def blame(program: UnitProgram, machine: Machine, run: Timing) -> tuple[Blame, ...]:
    """Cycles by cause and node of the schedule tree, in the order of the tree's nodes.

    They sum to `run.cycles`.  Cost: linear in the instructions of the chain, at most those timed.
    """
    names, engine_of, fill_of, feed_of, port_of, way_of = _causes(program, machine)
    startup = np.array([_startup(machine.engine(s.engine)) for s in program.streams], np.int64)
    table = np.zeros((max(len(program.nodes), 1), len(names)), np.int64)
    rows = program.instructions
    laps = np.full((program.loops.depth + 1, 5), -1, np.int64)
    loop_for(trace_back, _STEPS * len(run.row))(
        run.last, run.cycles, run.row, run.begin, run.before, run.via, run.late, run.copies,
        laps, np.zeros((len(laps), *table.shape), np.int64),
        rows["opcode"], rows["stream"], *passed(rows, program.resources), rows["cycles"],
        rows["starved"], rows["latency"], rows["node"], rows["resource"],
        np.array([r.payload_per_cycle for r in program.resources], np.float64),
        port_numbers(program.resources), engine_of, fill_of, feed_of, startup, port_of, way_of,
        len(names) - 1, table,
    )  # fmt: skip
    return tuple(
        Blame(names[cause], program.nodes[node], int(table[node, cause]))
        for node, cause in np.argwhere(table).tolist()
    )


def _causes(
    program: UnitProgram, machine: Machine
) -> tuple[tuple[str, ...], Ints, Ints, Ints, Ints, Ints]:
    """Names of all causes, `synchronisation` and `latency` last; of each stream the numbers of its
    engine, that one's pipeline and its own ports; of each port its own, and a number that both
    directions of a half-duplex one share.  A port has one name in all instances of its level."""
    engines = [e.name for e in machine.engines if e.kind not in _MOVERS]
    kinds = "engine", "fill", "feed"
    names = dict.fromkeys(f"{kind}:{name}" for name in engines for kind in kinds)
    names |= dict.fromkeys(f"dma:{e.name}" for e in machine.engines if is_limited(e))
    names |= dict.fromkeys(map(_port, program.resources))
    number = {name: k for k, name in enumerate((*names, SYNCHRONISATION, LATENCY))}
    engine = np.array(
        [number.get(f"engine:{s.engine}", number.get(f"dma:{s.engine}", -1))
         for s in program.streams], np.int64,
    )  # fmt: skip
    fill = np.array([number.get(f"fill:{s.engine}", -1) for s in program.streams], np.int64)
    feed = np.array([number.get(f"feed:{s.engine}", -1) for s in program.streams], np.int64)
    port = np.array([number[_port(r)] for r in program.resources], np.int64)
    level = {name: k for k, name in enumerate(dict.fromkeys(r.level for r in program.resources))}
    way = np.array(
        [len(number) + level[r.level] if r.half_duplex else port[k]
         for k, r in enumerate(program.resources)], np.int64,
    )  # fmt: skip
    return tuple(number), engine, fill, feed, port, way


def _startup(engine: Engine) -> int:
    """Cycles of an instruction before its engine does what it is for."""
    return engine.setup_cycles if engine.kind in _MOVERS else engine.startup_cycles


_MOVERS = (EngineKind.DMA_IN, EngineKind.DMA_OUT)


def _port(port: Resource) -> str:
    if port.direction == "link":
        return f"link:{port.level}"
    return f"port:{port.level}.{port.direction}"


def trace_back(
    number: int, cycles: int, row: Ints, begin: Ints, before: Ints, via: Ints,
    hops: Ints, copies: Ints, laps: Ints, tables: Ints,
    opcode: Ints, stream: Ints, sizes: Ints, column: Ints, engine_cycles: Ints, starved: Ints,
    lag: Ints, node: Ints, resource: Ints, rate: np.ndarray, shared: Ints, engine_of: Ints,
    fill_of: Ints, feed_of: Ints, startup: Ints, port_of: Ints, way_of: Ints, latency: int,
    table: Ints,
) -> None:  # fmt: skip
    """From instruction `number`, whose finish ends the run, backward; adds to `table` [nodes,
    causes].

    `before`: who made each instruction start, -1 if nobody; `via`: the port they met at, else -1.
    `hops`: of each, cycles until its finish; empty where that is its row's `lag`.
    `sizes`, `column`: what passes each resource (`isa.program.passed`).
    `shared`: what each resource occupies (`port_numbers`); `way_of`: equal for both directions of a
    half-duplex level.
    Where the chain goes through a copy that repeats itself (`clock.copies`), it is walked lap after
    lap until it enters one where it entered one before; then whole cycles of laps are added at
    once.  `laps` [n, 5], -1, and `tables` [n, nodes, causes]: for copies within copies, n deep.
    """
    time = cycles
    met = -1
    while number >= 0:
        at = number
        moved = 0
        level = 0
        least = 0  # of numbers that are in one lap of the copy around this one
        while True:
            low = 0
            high = len(copies)
            while low < high:
                middle = (low + high) // 2
                if copies[middle, PUT] <= at:
                    low = middle + 1
                else:
                    high = middle
            j = low - 1
            k = at
            if j < 0:
                break
            put = copies[j, PUT]
            back = copies[j, BACK]
            k = copies[j, LOGGED] + at - put - copies[j, MANY]
            if k >= copies[j, LOGGED]:
                break
            if level < len(laps) and copies[j, MANY] > 2 * back:
                gone = laps[level, 1] - at
                is_same = (
                    laps[level, 0] == j and gone > 0 and gone % back == 0 and laps[level, 2] == met
                )
                took = laps[level, 3] - time
                if is_same and took == gone // back * copies[j, MOVED]:
                    turns = (at - max(put, least)) // gone
                    if turns > 0:
                        for n in range(table.shape[0]):
                            for c in range(table.shape[1]):
                                table[n, c] += turns * (table[n, c] - tables[level, n, c])
                        time -= turns * took
                        number -= turns * gone
                        at -= turns * gone
                    laps[level, 0] = -1
                elif laps[level, 0] != j or gone < 0 or gone >= laps[level, 4] * back:
                    is_next = laps[level, 0] == j and gone > 0
                    laps[level, 4] = 2 * laps[level, 4] if is_next else 1
                    laps[level, 0] = j
                    laps[level, 1] = at
                    laps[level, 2] = met
                    laps[level, 3] = time
                    tables[level] = table
            turns = (at - put) // back + 1
            at -= turns * back
            moved += turns * copies[j, MOVED]
            least = put - back
            level += 1
        i = row[k]
        s = stream[i]
        busy = engine_cycles[i]
        slowest = -1
        most = 0
        widest = -1  # the slowest port
        for p in range(resource.shape[1]):
            r = resource[i, p]
            if r < 0:
                break
            need = ceil(sizes[column[r], i] / rate[r])
            for q in range(p):
                if shared[resource[i, q]] == shared[r]:  # one port, both ways in turn
                    other = resource[i, q]
                    need += ceil(sizes[column[other], i] / rate[other])
            if need > most:
                most = need
                widest = r
            if need > busy:
                busy = need
                slowest = r
        start = begin[k] + moved
        end = start + busy
        if time > end:
            late = min(time - end, hops[k] if len(hops) else lag[i])
            table[node[i], latency - 1] += time - end - late  # the signal's way to another core
            if opcode[i] != COMPUTE and startup[s] > 0:  # what the other hides (`machine/dma.py`)
                if slowest < 0 and engine_cycles[i] == startup[s]:
                    hidden = min(late, most)
                    table[node[i], port_of[widest]] += hidden
                else:
                    hidden = min(late, startup[s])
                    table[node[i], engine_of[s]] += hidden
                late -= hidden
            table[node[i], latency] += late
            time = end
        length = time - start
        if opcode[i] == COMPUTE and met < 0:
            own = min(length, engine_cycles[i])
            filling = min(startup[s], own)
            table[node[i], fill_of[s]] += filling
            waiting = min(starved[i], own - filling)
            table[node[i], feed_of[s]] += waiting
            table[node[i], engine_of[s]] += own - filling - waiting
            if slowest >= 0:  # of a port that it shares with transfers
                table[node[i], port_of[slowest]] += length - own
        elif length > 0:
            own = engine_of[s]
            if met >= 0 or slowest >= 0:
                own = port_of[met if met >= 0 else slowest]
            for p in range(resource.shape[1]):
                r = resource[i, p]
                if r < 0 or met < 0 or port_of[r] == port_of[met]:
                    break
                if way_of[r] == way_of[met]:  # it went the other way through the same port
                    own = port_of[r]
            table[node[i], own] += length
        time = start
        met = via[k]
        number -= at - before[k]
