"""Which scopes are alive at the same time in the same memory.

A scope lives from its entry to its last access (widened to whole loops inside its body, since a
later iteration comes back to it).  Stages of one Pipe run at the same time, so scopes in different
stages always meet, unless their cores are attached to different instances of the memory.
A scope whose moves are issued ahead (`lower.issue`) lives for the whole loop it is hoisted over;
one that is filled early (`lower.layers`) lives from the layer from which it should be free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from worker.compiler.lower.nest import FrameKind, Nest, Scope
from worker.compiler.machine.machine import Machine


def cores_of(scope: Scope) -> npt.NDArray[np.int64]:
    """Cores that enter the scope, ascending, each once."""
    cores = np.array([scope.core_base], dtype=np.int64)
    for frame in scope.frames:
        if frame.kind is FrameKind.CORES:
            steps = np.arange(frame.trip, dtype=np.int64) * frame.core_stride
            cores = (cores[:, None] + steps).ravel()
    return np.unique(cores)


def instances_of(scope: Scope, machine: Machine) -> npt.NDArray[np.int64]:
    """Instances of the scope's level that hold it, ascending."""
    count = machine.level(scope.memory).instances
    return np.unique(cores_of(scope) * count // machine.num_cores)


def live_intervals(
    nest: Nest, accesses: Sequence[Sequence[int]], hoisted: Sequence[str | None]
) -> tuple[tuple[int, int], ...]:
    """Half-open leaf interval during which each scope holds a value.

    `accesses[leaf]` are the scopes that leaf touches; `hoisted[scope]` is the path of the outermost
    loop over which its fills are issued ahead, or None.
    """
    ends = [scope.first_leaf + 1 for scope in nest.scopes]
    for number, (leaf, touched) in enumerate(zip(nest.leaves, accesses, strict=True)):
        for index in touched:
            scope = nest.scopes[index]
            inner = leaf.frames[len(scope.frames) :]
            end = nest.range_of(inner[0].path)[1] if inner else number + 1
            ends[index] = max(ends[index], min(end, scope.end_leaf))
    intervals: list[tuple[int, int]] = []
    for scope, end, loop in zip(nest.scopes, ends, hoisted, strict=True):
        if scope.queue is not None:
            intervals.append((scope.first_leaf, scope.end_leaf))
        elif loop is not None:
            intervals.append(nest.range_of(loop))
        else:
            intervals.append((scope.first_leaf, end))
    return tuple(intervals)


def outermost_intervals(nest: Nest) -> tuple[tuple[int, int], ...]:
    """Intervals widened to the outermost repeating loop around each scope.

    Under them no two scopes of one loop share an address, hence no iteration waits for another
    because of memory alone.
    """
    intervals: list[tuple[int, int]] = []
    for scope in nest.scopes:
        loops = [f for f in scope.frames if f.kind in (FrameKind.TIME, FrameKind.PIPE)]
        repeating = [f.path for f in loops if f.trip > 1]
        intervals.append(
            nest.range_of(repeating[0]) if repeating else (scope.first_leaf, scope.end_leaf)
        )
    return tuple(intervals)


def conflicts(
    nest: Nest, intervals: Sequence[tuple[int, int]], machine: Machine
) -> tuple[frozenset[int], ...]:
    """For each scope, the scopes of the same level it must not overlap.

    Cost: quadratic in the number of scopes, with numpy's constant.
    """
    count = len(nest.scopes)
    if count == 0:
        return ()
    first = np.array([i[0] for i in intervals], dtype=np.int64)
    end = np.array([i[1] for i in intervals], dtype=np.int64)
    meet = (first[:, None] < end[None, :]) & (first[None, :] < end[:, None])
    staged = [k for k, scope in enumerate(nest.scopes) if scope.stages]
    for a in staged:
        for b in staged:
            meet[a, b] |= in_parallel(nest.scopes[a], nest.scopes[b])
    for level in dict.fromkeys(scope.memory for scope in nest.scopes):
        held = np.zeros((count, machine.level(level).instances), dtype=np.float32)
        for k, scope in enumerate(nest.scopes):
            if scope.memory == level:
                held[k, instances_of(scope, machine)] = 1
        inside = held.any(axis=1)
        meet[inside] &= held[inside] @ held.T > 0
    np.fill_diagonal(meet, val=False)
    return tuple(frozenset(np.flatnonzero(row).tolist()) for row in meet)


def in_parallel(a: Scope, b: Scope) -> bool:
    """True when some Pipe around both has them in different stages (or one is its queue)."""
    for (pipe_a, stage_a), (pipe_b, stage_b) in zip(a.stages, b.stages, strict=False):
        if pipe_a != pipe_b:
            return False
        if stage_a != stage_b:
            return True
    return False
