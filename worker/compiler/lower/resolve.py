"""Which storage each leaf of a schedule names: a scope (Place, Queue) or a tensor at home.

Compute: the innermost enclosing scope of the operand, else home.  An operand whose storage the
engine cannot address (home, an outer scratchpad, a ring beside another core) is *staged*: lowering
adds the transfer that fetches or delivers it.
Move within one memory needs two scopes of the tensor there: the outer one is the source and the
inner one the destination, except in the stage that produces a Queue, where the ring is written.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worker.compiler.errors import VerifyError
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import coordinates, core_ids, instance_of
from worker.compiler.schedule.nodes import Compute, LoopKind, Move, Schedule
from worker.compiler.schedule.unread import Unread
from worker.compiler.schedule.walk import (
    Leaf,
    Scope,
    Walk,
    compute_scope,
    move_ends,
    reached,
    walk,
)


@dataclass(frozen=True, slots=True)
class Ref:
    """One operand of a leaf."""

    tensor: str
    scope: int | None
    """None: the tensor at home."""
    staged: bool = False
    """Computes only: the engine does not reach the storage directly."""


@dataclass(frozen=True, slots=True)
class Refs:
    """Operands of one leaf.  A Move reads `reads[0]`; a Compute's reads follow its read slots."""

    reads: tuple[Ref, ...]
    write: Ref
    may_be_unread: bool = False
    """Whether it fills something, in some iteration, that nothing reads (`schedule.unread`)."""

    def scopes(self) -> tuple[int, ...]:
        """Scopes touched, each once."""
        found = (ref.scope for ref in (*self.reads, self.write))
        return tuple(dict.fromkeys(s for s in found if s is not None))


def flatten(schedule: Schedule, machine: Machine) -> Walk:
    """The tree as a table, for what follows in lowering.

    Raises:
        VerifyError: a Place or Queue in the home level or in a level the machine does not have.
    """
    nest = walk(schedule)
    placeable = {level.name for level in machine.levels[1:]}
    for scope in nest.scopes:
        if scope.memory not in placeable:
            reason = f"{scope.memory!r} is not a level below the home level"
            raise VerifyError("lower", scope.path, "memory", reason)
    return nest


def resolve(nest: Walk, machine: Machine) -> tuple[Refs, ...]:
    """Operands of every leaf.

    Raises:
        VerifyError: a Move names a memory without a scope of its tensor.
    """
    unread = Unread(nest, machine)
    return tuple(
        _resolve_move(leaf, leaf.node, machine, may_be_unread=unread.ever(leaf.number))
        if isinstance(leaf.node, Move)
        else _resolve_compute(nest.schedule.graph, leaf, leaf.node, machine)
        for leaf in nest.leaves
    )


def _resolve_move(leaf: Leaf, move: Move, machine: Machine, *, may_be_unread: bool) -> Refs:
    ends = move_ends(leaf, move, machine.home.name)
    if isinstance(ends, str):
        raise VerifyError("lower", leaf.path, "resident", ends)
    src, dst = (None if s is None else s.number for s in (*ends.reads, ends.write))
    return Refs((Ref(move.tensor, src),), Ref(move.tensor, dst), may_be_unread)


def _resolve_compute(graph: Graph, leaf: Leaf, compute: Compute, machine: Machine) -> Refs:
    op = graph.op(compute.op)
    levels = reached(compute.engine, machine)

    def ref(tensor: str) -> Ref:
        scope = compute_scope(leaf, tensor, levels)
        if scope is None:
            return Ref(tensor, None, machine.home.name not in levels)
        is_staged = scope.memory not in levels or _is_remote(scope, leaf, machine)
        return Ref(tensor, scope.number, is_staged)

    return Refs(tuple(ref(a.tensor) for a in op.reads), ref(op.write.tensor))


def _is_remote(scope: Scope, leaf: Leaf, machine: Machine) -> bool:
    """True when some core running `leaf` is attached to another instance than the ring's."""
    if scope.queue is None:
        return False
    loops = [f for f in leaf.frames if f.kind is LoopKind.CORES]
    coords = coordinates(loops)
    mine = core_ids(leaf.core_base, loops, coords)
    ring = core_ids(scope.core_base, scope.frames, coords)
    apart = instance_of(scope.memory, mine, machine) != instance_of(scope.memory, ring, machine)
    return bool(np.any(apart))
