"""A schedule tree flattened: its leaves and its scopes, each with the loops around it.

Verifying, lowering and auditing work on this table instead of walking the tree.  A *scope* is a
Place or a Queue; a *frame* is one loop (or the iteration of a Pipe) as seen from inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Machine, Managed
from worker.compiler.schedule.nodes import (
    Box,
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Node,
    Pipe,
    Place,
    Queue,
    Schedule,
    Seq,
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One loop around a node; a Pipe counts as a loop of kind None."""

    var: str
    trip: int
    kind: LoopKind | None
    stride: int
    path: str
    is_folded: bool = False
    """A LANES loop around computes only: all its iterations are one instruction on one engine."""

    @property
    def is_repeating(self) -> bool:
        """Whether its iterations follow each other in time, on the same core."""
        return self.kind is not LoopKind.CORES and not self.is_folded


Frames: TypeAlias = tuple[Frame, ...]
Stages: TypeAlias = tuple[tuple[str, int], ...]
"""(pipe path, stage) of the Pipes around something."""


def iteration_weights(frames: Frames) -> tuple[int, ...]:
    """What a step of each loop adds to the number of a leaf's iteration; 0 where it is folded.

    Loops over cores count fastest, those of small strides first, so that neighbouring cores of one
    moment are neighbours: the others count as they are nested.
    """
    cores = [k for k, f in enumerate(frames) if f.kind is LoopKind.CORES]
    order = [k for k, f in enumerate(frames) if f.is_repeating]
    order += sorted(cores, key=lambda k: -frames[k].stride)
    found, weight = [0] * len(frames), 1
    for k in reversed(order):
        found[k] = weight
        weight *= frames[k].trip
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A Place or a Queue with its surroundings."""

    number: int
    path: str
    tensor: str
    memory: str
    tile: Box
    copies: int
    dtype: DType
    init: Init
    frames: Frames
    """Loops around it, outermost first; a Queue's last frame is its Pipe."""
    core_base: int
    """Sum of the core offsets of the stages around it (a Queue adds its producer's: the ring sits
    there, consumers reach across)."""
    stages: Stages
    """Of every Pipe around it; a Queue adds its own with stage -1 - k."""
    queue: Queue | None = None

    @property
    def slot_frames(self) -> Frames:
        """Loops whose iterations count the entries, hence choose the slot."""
        if self.queue is not None:
            return self.frames[-1:]
        return tuple(f for f in self.frames if f.is_repeating)

    def is_filled_in(self, stages: Stages) -> bool:
        """Whether it is a ring, and these stages around a node fill it."""
        return self.queue is not None and (self.stages[-1][0], self.queue.producer) in stages


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A Move or Compute."""

    number: int
    path: str
    node: Move | Compute
    frames: Frames
    core_base: int
    scopes: tuple[Scope, ...]
    """Enclosing scopes, outermost first."""
    stages: Stages

    def find(self, tensor: str, *memories: str) -> Scope | None:
        """Innermost enclosing scope of a tensor (in one of some memories)."""
        for scope in reversed(self.scopes):
            if scope.tensor == tensor and (not memories or scope.memory in memories):
                return scope
        return None


@dataclass(slots=True)
class Walk:
    """Leaves and scopes in tree order; queues of a Pipe stand before its stages."""

    schedule: Schedule
    leaves: list[Leaf] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By path of a Loop, Pipe, Place or Queue: its first leaf, and where its leaves end."""


def walk(schedule: Schedule) -> Walk:
    """Flatten a schedule.  Cost: linear in the tree."""
    found = Walk(schedule)
    _visit(schedule.root, "0", (), 0, (), (), found)
    return found


def _visit(
    node: Node,
    path: str,
    frames: Frames,
    base: int,
    scopes: tuple[Scope, ...],
    stages: Stages,
    found: Walk,
) -> None:
    first = len(found.leaves)
    match node:
        case Move() | Compute():
            found.leaves.append(Leaf(first, path, node, frames, base, scopes, stages))
            return
        case Loop(var, trip, kind, body, stride):
            is_folded = kind is LoopKind.LANES and _is_foldable(body)
            inner = (*frames, Frame(var, trip, kind, stride, path, is_folded))
            _visit(body, f"{path}.0", inner, base, scopes, stages, found)
        case Seq(parts):
            for i, part in enumerate(parts):
                _visit(part, f"{path}.{i}", frames, base, scopes, stages, found)
            return
        case Place():
            scope = _scope(found, path, node, node.copies, frames, base, stages)
            _visit(node.body, f"{path}.0", frames, base, (*scopes, scope), stages, found)
        case Pipe():
            inner = (*frames, Frame(node.var, node.trip, None, 0, path))
            rings = tuple(
                _scope(found, f"{path}.q{k}", q, q.depth, inner,
                       base + node.stages[q.producer].core_offset, (*stages, (path, -1 - k)), q)
                for k, q in enumerate(node.queues)
            )  # fmt: skip
            for i, stage in enumerate(node.stages):
                _visit(stage.body, f"{path}.{i}", inner, base + stage.core_offset,
                       (*scopes, *rings), (*stages, (path, i)), found)  # fmt: skip
            found.ranges.update({ring.path: (first, len(found.leaves)) for ring in rings})
        case _:
            assert_never(node)
    found.ranges[path] = first, len(found.leaves)


def _scope(
    found: Walk,
    path: str,
    node: Place | Queue,
    copies: int,
    frames: Frames,
    base: int,
    stages: Stages,
    queue: Queue | None = None,
) -> Scope:
    dtype = node.dtype or found.schedule.graph.tensors[node.tensor].dtype
    scope = Scope(
        len(found.scopes), path, node.tensor, node.memory, node.tile, max(copies, 1), dtype,
        node.init, frames, base, stages, queue,
    )  # fmt: skip
    found.scopes.append(scope)
    return scope


def _is_foldable(node: Node) -> bool:
    match node:
        case Compute():
            return True
        case Loop(_, _, kind, body, _):
            return kind is not LoopKind.CORES and _is_foldable(body)
        case Seq(parts):
            return all(_is_foldable(part) for part in parts)
        case _:
            return False


@dataclass(frozen=True, slots=True)
class Ends:
    """Storage that a leaf reads (per read slot) and writes; None is the tensor at home."""

    reads: tuple[Scope | None, ...]
    write: Scope | None


def reach_memory(engine: str, machine: Machine) -> str:
    """Level from which a compute engine takes placed operands, but for sums in its registers.

    Registers and caches hold nothing by themselves: the nearest slower scratchpad (or home) does.
    """
    index = machine.level_index(machine.engine(engine).memory)
    while index > 0 and machine.levels[index].managed is not Managed.SCRATCHPAD:
        index -= 1
    return machine.levels[index].name


def reached(engine: str, machine: Machine) -> tuple[str, ...]:
    """Levels in which a compute engine addresses what is placed: its memory, and its registers."""
    memory, registers = reach_memory(engine, machine), machine.engine(engine).accumulators
    return (memory, registers) if registers else (memory,)


def compute_scope(leaf: Leaf, tensor: str, levels: tuple[str, ...]) -> Scope | None:
    """Where a Compute finds `tensor`: the innermost scope in `levels` (`reached`), else any."""
    return leaf.find(tensor, *levels) or leaf.find(tensor)


def compute_ends(leaf: Leaf, compute: Compute, graph: Graph, machine: Machine) -> Ends:
    """Where a Compute finds its operands."""
    op, levels = graph.op(compute.op), reached(compute.engine, machine)
    return Ends(
        tuple(compute_scope(leaf, access.tensor, levels) for access in op.reads),
        compute_scope(leaf, op.write.tensor, levels),
    )


def move_ends(leaf: Leaf, move: Move, home: str) -> Ends | str:
    """Source and destination of a Move, or a sentence saying what is missing."""
    if move.src == move.dst:
        inside = [s for s in leaf.scopes if s.tensor == move.tensor and s.memory == move.src]
        if len(inside) < 2:
            return f"a move of {move.tensor} within {move.src} needs two places of it there"
        outer, inner = inside[-2:]
        if outer.is_filled_in(leaf.stages):
            return Ends((inner,), outer)
        return Ends((outer,), inner)
    ends: list[Scope | None] = []
    for memory in (move.src, move.dst):
        scope = None if memory == home else leaf.find(move.tensor, memory)
        if memory != home and scope is None:
            return f"no place of {move.tensor} in {memory} around the move"
        ends.append(scope)
    return Ends((ends[0],), ends[1])
