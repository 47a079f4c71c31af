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
import numpy.typing as npt

from worker.compiler.errors import VerifyError
from worker.compiler.ir.op import TensorOp
from worker.compiler.lower.nest import FrameKind, Leaf, Nest, Scope
from worker.compiler.machine.machine import Machine, Managed
from worker.compiler.schedule.nodes import Compute, Move


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

    def scopes(self) -> tuple[int, ...]:
        """Scopes touched, each once."""
        found = (ref.scope for ref in (*self.reads, self.write))
        return tuple(dict.fromkeys(s for s in found if s is not None))


def resolve(nest: Nest, machine: Machine) -> tuple[Refs, ...]:
    """Operands of every leaf.

    Raises:
        VerifyError: a Move names a memory without a scope of its tensor, or a Compute an opaque op.
    """
    return tuple(
        _resolve_move(nest, leaf, leaf.node, machine)
        if isinstance(leaf.node, Move)
        else _resolve_compute(nest, leaf, leaf.node, machine)
        for leaf in nest.leaves
    )


def engine_memory(engine: str, machine: Machine) -> str:
    """Level from which a compute engine takes placed operands.

    Registers and caches hold nothing by themselves: the nearest slower scratchpad (or home) does.
    """
    index = machine.level_index(machine.engine(engine).memory)
    while index > 0 and machine.levels[index].managed is not Managed.SCRATCHPAD:
        index -= 1
    return machine.levels[index].name


def _resolve_move(nest: Nest, leaf: Leaf, move: Move, machine: Machine) -> Refs:
    home = machine.home.name
    if move.src == move.dst:
        src, dst = _same_memory(nest, leaf, move)
        return Refs((Ref(move.tensor, src),), Ref(move.tensor, dst))
    ends: list[Ref] = []
    for memory in (move.src, move.dst):
        scope = None if memory == home else nest.find_scope(leaf, move.tensor, memory)
        if memory != home and scope is None:
            raise VerifyError(
                "lower", leaf.path, "resident", f"no place of {move.tensor} in {memory} around it"
            )
        ends.append(Ref(move.tensor, scope))
    return Refs((ends[0],), ends[1])


def _same_memory(nest: Nest, leaf: Leaf, move: Move) -> tuple[int, int]:
    inside = [
        s
        for s in leaf.scopes
        if nest.scopes[s].tensor == move.tensor and nest.scopes[s].memory == move.src
    ]
    if len(inside) < 2:
        raise VerifyError(
            "lower", leaf.path, "resident",
            f"a move of {move.tensor} within {move.src} needs two places of it there",
        )  # fmt: skip
    outer, inner = inside[-2], inside[-1]
    queue = nest.scopes[outer].queue
    if queue is not None and is_producer(nest.scopes[outer], leaf):
        return inner, outer
    return outer, inner


def is_producer(ring: Scope, leaf: Leaf) -> bool:
    """True when `leaf` is in the stage that fills the queue `ring`."""
    assert ring.queue is not None
    pipe = ring.stages[-1][0]
    return (pipe, ring.queue.producer) in leaf.stages


def _resolve_compute(nest: Nest, leaf: Leaf, compute: Compute, machine: Machine) -> Refs:
    op = nest.schedule.graph.op(compute.op)
    if not isinstance(op, TensorOp):
        raise VerifyError("lower", leaf.path, "op", f"{op.name} is opaque and has no instructions")
    reach = engine_memory(compute.engine, machine)

    def ref(tensor: str) -> Ref:
        index = nest.find_scope(leaf, tensor, reach)
        if index is None:
            index = nest.find_scope(leaf, tensor)
        if index is None:
            return Ref(tensor, None, reach != machine.home.name)
        scope = nest.scopes[index]
        return Ref(tensor, index, scope.memory != reach or _is_remote(scope, leaf, machine))

    return Refs(tuple(ref(a.tensor) for a in op.reads), ref(op.write.tensor))


def _is_remote(scope: Scope, leaf: Leaf, machine: Machine) -> bool:
    """True when some core running `leaf` is attached to another instance than the ring's."""
    if scope.queue is None:
        return False
    count = machine.level(scope.memory).instances
    loops = [f for f in leaf.frames if f.kind is FrameKind.CORES]
    values: dict[str, npt.NDArray[np.int64]] = {}
    for axis, frame in enumerate(loops):
        shape = [1] * len(loops)
        shape[axis] = frame.trip
        steps = np.arange(frame.trip, dtype=np.int64) * frame.core_stride
        values[frame.var] = steps.reshape(shape)
    mine = sum(values.values(), start=np.array(leaf.core_base, dtype=np.int64))
    ring = sum(
        (values[f.var] for f in scope.frames if f.kind is FrameKind.CORES),
        start=np.array(scope.core_base, dtype=np.int64),
    )
    apart = mine * count // machine.num_cores != ring * count // machine.num_cores
    return bool(np.any(apart))
