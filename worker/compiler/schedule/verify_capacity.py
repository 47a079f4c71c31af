"""Buffers alive together fit every memory, on the worst core and instance."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm, prod

import numpy as np

from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import Ints
from worker.compiler.schedule.nodes import (
    Compute,
    Loop,
    LoopKind,
    Move,
    Node,
    Pipe,
    Place,
    Schedule,
    Seq,
)
from worker.compiler.schedule.verify_structure import refuse
from worker.compiler.schedule.walk import Scope, Walk


def scope_bytes(scope: Scope, machine: Machine) -> int:
    """Bytes per instance: aligned copies, times the private buffers of the cores that share it."""
    assert scope.tile is not None
    level = machine.level(scope.memory)
    unit = lcm(level.align_bytes, scope.dtype.size_bytes)
    size = prod(span.extent for span in scope.tile) * scope.dtype.size_bytes
    return -(-size // unit) * unit * scope.copies * _blocks(scope, machine)


def cores_of(scope: Scope) -> Ints:
    """Cores that enter a scope, ascending."""
    cores = np.array([scope.core_base], dtype=np.int64)
    for frame in scope.frames:
        if frame.kind is LoopKind.CORES:
            cores = np.unique((cores[:, None] + np.arange(frame.trip) * frame.stride).ravel())
    return cores


def _blocks(scope: Scope, machine: Machine) -> int:
    width = machine.num_cores // machine.level(scope.memory).instances
    local = np.unique(cores_of(scope) % width)
    if len(local) < 2:
        return 1
    stride = int(np.gcd.reduce(np.diff(local)))
    return int(local[-1] - local[0]) // stride + 1


def check_capacity(schedule: Schedule, flat: Walk, machine: Machine) -> None:
    """Raise VerifyError (rule capacity) naming the memory, the demand and the bound."""
    sizes = {scope.path: scope_bytes(scope, machine) for scope in flat.scopes}
    for level in machine.scratchpads:
        members = {s.path: sizes[s.path] for s in flat.scopes if s.memory == level.name}
        demand = _peak(schedule.root, "0", members, level.instances < machine.num_cores)
        if demand > level.usable_bytes:
            worst = max(members, key=lambda p: (members[p], p))
            raise refuse(
                worst, "capacity",
                f"{level.name} must hold {demand} bytes, {level.usable_bytes} are usable",
            )  # fmt: skip


def _peak(node: Node, path: str, sizes: Mapping[str, int], shared: bool) -> int:
    match node:
        case Move() | Compute():
            return 0
        case Loop():
            return _peak(node.body, f"{path}.0", sizes, shared)
        case Seq(parts):
            needs = [_peak(p, f"{path}.{i}", sizes, shared) for i, p in enumerate(parts)]
            return max(needs, default=0)
        case Place():
            return sizes.get(path, 0) + _peak(node.body, f"{path}.0", sizes, shared)
        case Pipe():
            return _pipe_peak(node, path, sizes, shared)


def _pipe_peak(pipe: Pipe, path: str, sizes: Mapping[str, int], shared: bool) -> int:
    """Stages overlap in time: they add up, unless they are on cores with memories of their own."""
    rings = sum(sizes.get(f"{path}.q{k}", 0) for k in range(len(pipe.queues)))
    needs: dict[int, int] = {}
    for i, stage in enumerate(pipe.stages):
        where = 0 if shared else stage.core_offset
        need = _peak(stage.body, f"{path}.{i}", sizes, shared)
        needs[where] = needs.get(where, 0) + need
    return rings + max(needs.values(), default=0)
