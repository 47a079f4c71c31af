"""Buffers alive together fit every memory, on the worst core and instance.

A buffer counts from the entry of its Place to the last leaf that touches it, widened to whole
loops inside its body (a later iteration comes back to it).  A Place of several copies inside a
loop keeps its ring for the whole loop right around it.  So Places may nest as deep as the unit is
long while only those still in use add up.  Stages of a Pipe overlap in time: their peaks add up.

The demand is a lower bound of what any assignment of addresses needs, for the same lifetimes as
those lowering plans with (`lower.liveness`); lowering refuses the rare rest that fits by sum but
not by address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm, prod
from typing import TypeAlias

import numpy as np

from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import cores_of
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
from worker.compiler.schedule.walk import (
    Leaf,
    Scope,
    Walk,
    compute_ends,
    move_ends,
)

Interval: TypeAlias = "tuple[int, int]"
"""Half-open range of leaf numbers."""


def scope_bytes(scope: Scope, machine: Machine) -> int:
    """Bytes per instance: aligned copies, times the private buffers of the cores that share it."""
    level = machine.level(scope.memory)
    unit = lcm(level.align_bytes, scope.dtype.size_bytes)
    size = prod(span.extent for span in scope.tile) * scope.dtype.size_bytes
    return -(-size // unit) * unit * scope.copies * _blocks(scope, machine)


def _blocks(scope: Scope, machine: Machine) -> int:
    width = machine.num_cores // machine.level(scope.memory).instances
    local = np.unique(cores_of(scope) % width)
    if len(local) < 2:
        return 1
    stride = int(np.gcd.reduce(np.diff(local)))
    return int(local[-1] - local[0]) // stride + 1


def check_capacity(schedule: Schedule, flat: Walk, machine: Machine) -> None:
    """Raise VerifyError (rule capacity) naming the memory, the demand and the bound.

    Cost: linear in leaves x their operands, plus sorting the scopes.
    """
    sizes = {scope.path: scope_bytes(scope, machine) for scope in flat.scopes}
    lives = lifetimes(schedule, flat, machine)
    for level in machine.placeable:
        members = {s.path: sizes[s.path] for s in flat.scopes if s.memory == level.name}
        peaks = _Peaks(members, lives, shared=level.instances < machine.num_cores)
        demand = peaks.of(schedule.root, "0")
        if demand > level.usable_bytes:
            worst = max(members, key=lambda p: (members[p], p))
            raise refuse(
                worst, "capacity",
                f"{level.name} must hold {demand} bytes, {level.usable_bytes} are usable",
            )  # fmt: skip


def lifetimes(schedule: Schedule, flat: Walk, machine: Machine) -> dict[str, Interval]:
    """Leaves during which each scope (by path) holds something; empty bodies live for one leaf."""
    inside, loops = _extents(flat)
    lives: dict[str, Interval] = {}
    for scope in flat.scopes:
        first, end = inside.get(scope.path, (0, 1))
        lives[scope.path] = (first, end if scope.queue is not None else first + 1)
    for leaf in flat.leaves:
        for scope in touched(schedule, leaf, machine):
            if scope.queue is not None:
                continue
            inner = leaf.frames[len(scope.frames) :]
            end = loops[inner[0].path][1] if inner else leaf.number + 1
            first, last = lives[scope.path]
            lives[scope.path] = first, max(last, end)
    for scope in flat.scopes:
        around = [f.path for f in scope.frames if f.kind is not LoopKind.CORES]
        if scope.copies > 1 and around and scope.queue is None and scope.path in inside:
            lives[scope.path] = loops[around[-1]]
    return lives


def _extents(flat: Walk) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Leaves inside every scope and inside every loop, by path; leaf numbers ascend."""
    inside: dict[str, Interval] = {}
    loops: dict[str, Interval] = {}
    for leaf in flat.leaves:
        for found, paths in (
            (inside, [s.path for s in leaf.scopes]),
            (loops, [f.path for f in leaf.frames]),
        ):
            for path in paths:
                found[path] = found.get(path, (leaf.number, 0))[0], leaf.number + 1
    return inside, loops


def touched(schedule: Schedule, leaf: Leaf, machine: Machine) -> tuple[Scope, ...]:
    """Scopes that a leaf reads or writes."""
    if isinstance(leaf.node, Move):
        ends = move_ends(leaf, leaf.node, machine.home.name)
        assert not isinstance(ends, str)  # residency was checked before
    else:
        ends = compute_ends(leaf, leaf.node, schedule.graph, machine)
    return tuple(scope for scope in (*ends.reads, ends.write) if scope is not None)


@dataclass(slots=True)
class _Blocks:
    """Bytes alive during ranges of leaves, all in one thread of time."""

    ranges: list[tuple[Interval, int]] = field(default_factory=list)

    def peak(self) -> int:
        """Most bytes alive at one leaf.  Cost: sorting."""
        steps: dict[int, int] = {}
        for (first, end), size in self.ranges:
            steps[first] = steps.get(first, 0) + size
            steps[end] = steps.get(end, 0) - size
        most = alive = 0
        for at in sorted(steps):
            alive += steps[at]
            most = max(most, alive)
        return most


class _Peaks:
    """Peak demand of one level; a Pipe is one block that is as large as its stages together."""

    def __init__(
        self, sizes: Mapping[str, int], lives: Mapping[str, Interval], *, shared: bool
    ) -> None:
        self.sizes = sizes
        self.lives = lives
        self.shared = shared
        self.next_leaf = 0

    def of(self, node: Node, path: str) -> int:
        blocks = _Blocks()
        self._visit(node, path, blocks)
        return blocks.peak()

    def _visit(self, node: Node, path: str, blocks: _Blocks) -> None:
        match node:
            case Move() | Compute():
                self.next_leaf += 1
            case Loop():
                self._visit(node.body, f"{path}.0", blocks)
            case Seq(parts):
                for i, part in enumerate(parts):
                    self._visit(part, f"{path}.{i}", blocks)
            case Place():
                if path in self.sizes:
                    blocks.ranges.append((self.lives[path], self.sizes[path]))
                self._visit(node.body, f"{path}.0", blocks)
            case Pipe():
                first = self.next_leaf
                demand = self._pipe(node, path)
                blocks.ranges.append(((first, max(self.next_leaf, first + 1)), demand))

    def _pipe(self, pipe: Pipe, path: str) -> int:
        """Rings and stages; stages on cores with memories of their own do not add up."""
        rings = sum(self.sizes.get(f"{path}.q{k}", 0) for k in range(len(pipe.queues)))
        needs: dict[int, int] = {}
        for i, stage in enumerate(pipe.stages):
            where = 0 if self.shared else stage.core_offset
            needs[where] = needs.get(where, 0) + self.of(stage.body, f"{path}.{i}")
        return rings + max(needs.values(), default=0)
