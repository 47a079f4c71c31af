"""Bytes in use over time, per memory level, from the planned buffers and the run.

A buffer is alive in an instance from the first start to the last finish of the instructions below
its Place, on the cores attached to that instance.  Buffers that take turns at one address (their
lifetimes alternate inside a loop) count once: what is measured is the union of address ranges.
"""

from __future__ import annotations

import numpy as np

from worker.compiler.clock.run import Timing
from worker.compiler.ir.distinct import distinct
from worker.compiler.isa.program import Buffer, UnitProgram
from worker.compiler.machine.machine import Machine
from worker.simulator.results import Occupancy

MAX_STEPS = 256


def occupancy(program: UnitProgram, machine: Machine, run: Timing) -> tuple[Occupancy, ...]:
    """Occupancy of the fullest instance of every level below home that something is placed in.

    Cost: buffers x (nodes + instances), plus buffers^2 per level for the step function.
    """
    curves: list[Occupancy] = []
    for level in machine.placeable:
        lives: dict[int, list[tuple[int, int, int, int]]] = {}
        for buffer in program.buffers:
            if buffer.level == level.name:
                for instance, life in _lives(buffer, program, machine, run):
                    lives.setdefault(instance, []).append(life)
        best: tuple[int, tuple[int, ...], tuple[int, ...]] = (0, (0,), (0,))
        done: set[tuple[tuple[int, int, int, int], ...]] = set()
        for instance in sorted(lives):
            shape = _shape(lives[instance])
            if shape in done:  # instances that do the same hold the same
                continue
            done.add(shape)
            times, used = bytes_in_use(lives[instance])
            if max(used) > best[0]:
                best = (max(used), times, used)
        peak, times, used = best
        times, used = _thin(times, used)
        curves.append(Occupancy(level.name, level.capacity_bytes, peak, times, used))
    return tuple(curves)


def _shape(lives: list[tuple[int, int, int, int]]) -> tuple[tuple[int, int, int, int], ...]:
    """What decides the peak: address ranges and the order of events, not the exact times."""
    order = {
        t: k for k, t in enumerate(sorted({t for low, high, *_ in lives for t in (low, high)}))
    }
    return tuple((order[low], order[high], a, b) for low, high, a, b in lives)


def _lives(
    buffer: Buffer, program: UnitProgram, machine: Machine, run: Timing
) -> list[tuple[int, tuple[int, int, int, int]]]:
    """(instance, (from cycle, to cycle, first address, end address)) where the buffer is used."""
    # A Queue lives as long as its Pipe: its path is the Pipe's plus `.q{k}`.
    head, _, last = buffer.path.rpartition(".")
    root = head if last.startswith("q") else buffer.path
    rows = [
        k for k, path in enumerate(program.nodes) if path == root or path.startswith(root + ".")
    ]
    if not rows:
        return []
    first, final = run.span_first[rows], run.span_last[rows]
    used = first >= 0
    start = np.where(used, first, np.iinfo(np.int64).max).min(axis=0)
    end = np.where(used, final, -1).max(axis=0)
    instances = machine.level(buffer.level).instances
    start = start.reshape(instances, -1).min(axis=1)
    end = end.reshape(instances, -1).max(axis=1)
    span = (buffer.address, buffer.address + buffer.size_bytes)
    return [(int(i), (int(start[i]), int(end[i]), *span)) for i in np.flatnonzero(end >= 0)]


def bytes_in_use(
    lives: list[tuple[int, int, int, int]],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(cycles, bytes from each of them on) of buffers that may share addresses.

    A life is (from cycle, to cycle, first address, end address); what several hold counts once.
    """
    low, high, first, end = np.array(lives, dtype=np.int64).T
    times = distinct(np.concatenate(([0], low, high)))
    edges = distinct(np.concatenate((first, end)))
    # How many ranges hold the bytes between two edges: sums over both dimensions of what changes.
    held = np.zeros((len(times), len(edges)), dtype=np.int64)
    for time, sign in ((low, 1), (high, -1)):
        at = np.searchsorted(times, time)
        np.add.at(held, (at, np.searchsorted(edges, first)), sign)
        np.add.at(held, (at, np.searchsorted(edges, end)), -sign)
    held = held.cumsum(axis=0).cumsum(axis=1)
    used = (held[:, :-1] > 0) @ np.diff(edges)
    return tuple(times.tolist()), tuple(used.tolist())


def _thin(times: tuple[int, ...], used: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Drop steps that change nothing, then merge neighbours (keeping maxima) down to the limit."""
    kept = [0] + [k for k in range(1, len(times)) if used[k] != used[k - 1]]
    size = -(-len(kept) // MAX_STEPS)
    groups = [kept[k : k + size] for k in range(0, len(kept), size)]
    return tuple(times[g[0]] for g in groups), tuple(max(used[k] for k in g) for g in groups)


def placeable(machine: Machine) -> tuple[str, ...]:
    """Names of the levels whose occupancy is planned, home included."""
    return tuple(level.name for level in (machine.home, *machine.placeable))
