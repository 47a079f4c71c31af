"""Which scopes are alive at the same time in the same memory.

A scope lives from its entry to its last access (widened to whole loops inside its body, since a
later iteration comes back to it).  Stages of one Pipe run at the same time, so scopes in different
stages always meet, unless their cores are attached to different instances of the memory.
A scope whose moves are issued ahead (`lower.issue`) lives for the whole loop it is hoisted over;
one that is filled early (`lower.layers`) lives from the layer from which it should be free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import cores_of, instance_of
from worker.compiler.schedule.walk import Scope, Walk

Flags: TypeAlias = "npt.NDArray[np.bool_]"


def instances_of(scope: Scope, machine: Machine) -> npt.NDArray[np.int64]:
    """Instances of the scope's level that hold it, ascending."""
    return np.unique(instance_of(scope.memory, cores_of(scope), machine))


def live_intervals(
    nest: Walk, accesses: Sequence[Sequence[int]], hoisted: Sequence[str | None]
) -> tuple[tuple[int, int], ...]:
    """Half-open leaf interval during which each scope holds a value.

    `accesses[leaf]` are the scopes that leaf touches; `hoisted[scope]` is the path of the outermost
    loop over which its fills are issued ahead, or None.
    """
    inside = [nest.ranges[scope.path] for scope in nest.scopes]
    ends = [first + 1 for first, _ in inside]
    for number, (leaf, touched) in enumerate(zip(nest.leaves, accesses, strict=True)):
        for index in touched:
            scope = nest.scopes[index]
            inner = leaf.frames[len(scope.frames) :]
            end = nest.ranges[inner[0].path][1] if inner else number + 1
            ends[index] = max(ends[index], min(end, inside[index][1]))
    intervals: list[tuple[int, int]] = []
    for scope, whole, end, loop in zip(nest.scopes, inside, ends, hoisted, strict=True):
        if scope.queue is not None:
            intervals.append(whole)
        elif loop is not None:
            intervals.append(nest.ranges[loop])
        else:
            intervals.append((whole[0], end))
    return tuple(intervals)


def outermost_intervals(nest: Walk) -> tuple[tuple[int, int], ...]:
    """Intervals widened to the outermost repeating loop around each scope.

    Under them no two scopes of one loop share an address, hence no iteration waits for another
    because of memory alone.
    """
    intervals: list[tuple[int, int]] = []
    for scope in nest.scopes:
        repeating = [f.path for f in scope.frames if f.is_repeating and f.trip > 1]
        intervals.append(nest.ranges[repeating[0] if repeating else scope.path])
    return tuple(intervals)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Which scopes can get in each other's way, whenever they are alive.  Shapes: [scopes, _]."""

    together: Flags
    """Another scope on some instance of the same level."""
    beside: Flags
    """Another scope in another stage of a pipe: alive at the same time."""
    held: Mapping[str, Flags]
    """By level, [its scopes, its instances]: which of them hold it."""

    @staticmethod
    def of(nest: Walk, machine: Machine) -> Neighbours:
        """Cost: quadratic in the number of scopes, with numpy's constant."""
        count = len(nest.scopes)
        beside = np.zeros((count, count), dtype=np.bool_)
        staged = [k for k, scope in enumerate(nest.scopes) if scope.stages]
        for a in staged:
            for b in staged:
                beside[a, b] = in_parallel(nest.scopes[a], nest.scopes[b])
        together = np.zeros((count, count), dtype=np.bool_)
        held: dict[str, Flags] = {}
        for level in dict.fromkeys(scope.memory for scope in nest.scopes):
            members = [k for k, scope in enumerate(nest.scopes) if scope.memory == level]
            held[level] = np.zeros((len(members), machine.level(level).instances), dtype=np.bool_)
            for row, k in enumerate(members):
                held[level][row, instances_of(nest.scopes[k], machine)] = True
            ones = held[level].astype(np.float32)
            together[np.ix_(members, members)] = ones @ ones.T > 0
        np.fill_diagonal(together, val=False)
        return Neighbours(together, beside, held)


def conflicts(intervals: Sequence[tuple[int, int]], near: Neighbours) -> tuple[frozenset[int], ...]:
    """For each scope, the scopes of the same level it must not overlap.

    Cost: quadratic in the number of scopes, with numpy's constant.
    """
    if not intervals:
        return ()
    meet = (_alive(intervals) | _alive(intervals).T | near.beside) & near.together
    return tuple(frozenset(np.flatnonzero(row).tolist()) for row in meet)


def crowd_bytes(intervals: Sequence[tuple[int, int]], sizes: Sequence[int], held: Flags) -> int:
    """Most bytes alive at once in one instance of a level: no addresses need less.

    The arguments tell of each scope of the level when it is alive, how large, and on which
    instances.
    """
    if not intervals:
        return 0
    size = np.array(sizes, dtype=np.int64)
    return int((_alive(intervals).astype(np.int64) @ (held * size[:, None])).max())


def _alive(intervals: Sequence[tuple[int, int]]) -> Flags:
    """[k, j]: whether j is alive when k starts.  Of two that meet, one is when the other starts."""
    first, end = np.array(intervals, dtype=np.int64).T
    alive: Flags = (first <= first[:, None]) & (first[:, None] < end)
    return alive


def in_parallel(a: Scope, b: Scope) -> bool:
    """True when some Pipe around both has them in different stages (or one is its queue)."""
    for (pipe_a, stage_a), (pipe_b, stage_b) in zip(a.stages, b.stages, strict=False):
        if pipe_a != pipe_b:
            return False
        if stage_a != stage_b:
            return True
    return False
