"""A core touches only the memory that it is attached to.

A Place belongs to the instance of its memory that the core which enters it is attached to.  Inside,
a loop over cores, or a stage of a Pipe with a core offset, may run on cores that are attached to
another instance: they would read and write what is not theirs, over no port and in no time.  What
passes between cores goes through a memory that they share, or through a Queue.  Registers belong to
the engines that name them (`Engine.accumulators`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from worker.compiler.machine.machine import Machine, Managed
from worker.compiler.schedule.grid import coordinates, core_ids, instance_of
from worker.compiler.schedule.nodes import LoopKind, Move
from worker.compiler.schedule.verify_structure import refuse
from worker.compiler.schedule.walk import Frame, Leaf, Scope, Walk


def check_reach(flat: Walk, machine: Machine, touched: Callable[[Leaf], tuple[Scope, ...]]) -> None:
    """Raise VerifyError (rule reach) naming the first core of a leaf that reaches too far.

    `touched`: scopes that a leaf reads or writes.
    Cost: linear in leaves and what they touch, and in cores per different pair of a leaf's and a
    scope's place.
    """
    known: set[tuple[object, ...]] = set()
    for leaf in flat.leaves:
        loops = _core_loops(leaf.frames)
        for scope in touched(leaf):
            _check_registers(leaf, scope, machine)
            if scope.queue is not None or machine.level(scope.memory).instances == 1:
                continue
            around = _core_loops(scope.frames)
            key = (scope.memory, scope.core_base, around, leaf.core_base, loops)
            if key in known or (around, scope.core_base) == (loops, leaf.core_base):
                continue
            known.add(key)
            coords = coordinates(loops)
            owner = core_ids(scope.core_base, around, coords)
            user = core_ids(leaf.core_base, loops, coords)
            owner, user = np.broadcast_arrays(owner, user)
            far = instance_of(scope.memory, owner, machine) != instance_of(
                scope.memory, user, machine
            )
            if far.any():
                at = int(np.argmax(far))
                raise refuse(
                    leaf.path, "reach",
                    f"core {user.flat[at]} touches {scope.tensor} in {scope.memory} of core"
                    f" {owner.flat[at]}, which is not its own: place it inside the loop over cores,"
                    " in a memory that they share, or pass it through a queue",
                )  # fmt: skip


def _check_registers(leaf: Leaf, scope: Scope, machine: Machine) -> None:
    if machine.level(scope.memory).managed is not Managed.REGISTER or isinstance(leaf.node, Move):
        return
    engine = leaf.node.engine
    if machine.engine(engine).accumulators != scope.memory:
        raise refuse(
            leaf.path, "reach",
            f"{engine} does not reach {scope.tensor} in {scope.memory}, not its registers",
        )  # fmt: skip


def _core_loops(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    return tuple(f for f in frames if f.kind is LoopKind.CORES)
