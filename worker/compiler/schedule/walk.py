"""A schedule tree flattened for checking: leaves and scopes with the loops around them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from worker.compiler.ir.dtype import DType
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


Frames: TypeAlias = tuple[Frame, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A Place or Queue; `home` is the scope of a tensor that nothing places."""

    path: str
    tensor: str
    memory: str
    tile: Box | None
    """None: the whole tensor (home)."""
    copies: int
    dtype: DType
    init: Init
    frames: Frames
    core_base: int
    queue: Queue | None = None
    pipe: str = ""


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
    stages: tuple[tuple[str, int], ...]
    """(pipe path, stage) of the Pipes around it."""

    def find(self, tensor: str, memory: str | None = None) -> Scope | None:
        """Innermost enclosing scope of a tensor (in one memory)."""
        for scope in reversed(self.scopes):
            if scope.tensor == tensor and memory in (None, scope.memory):
                return scope
        return None


@dataclass(slots=True)
class Walk:
    """Leaves and scopes in tree order."""

    leaves: list[Leaf] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)


def walk(schedule: Schedule) -> Walk:
    """Flatten a schedule.  Cost: linear in the tree."""
    found = Walk()
    _visit(schedule, schedule.root, "0", (), 0, (), (), found)
    return found


def _visit(
    schedule: Schedule,
    node: Node,
    path: str,
    frames: Frames,
    base: int,
    scopes: tuple[Scope, ...],
    stages: tuple[tuple[str, int], ...],
    found: Walk,
) -> None:
    match node:
        case Move() | Compute():
            found.leaves.append(Leaf(len(found.leaves), path, node, frames, base, scopes, stages))
        case Loop(var, trip, kind, body, stride):
            inner = (*frames, Frame(var, trip, kind, stride, path))
            _visit(schedule, body, f"{path}.0", inner, base, scopes, stages, found)
        case Seq(parts):
            for i, part in enumerate(parts):
                _visit(schedule, part, f"{path}.{i}", frames, base, scopes, stages, found)
        case Place():
            dtype = node.dtype or schedule.graph.tensors[node.tensor].dtype
            scope = Scope(path, node.tensor, node.memory, node.tile, node.copies, dtype,
                          node.init, frames, base)  # fmt: skip
            found.scopes.append(scope)
            _visit(schedule, node.body, f"{path}.0", frames, base, (*scopes, scope), stages, found)
        case Pipe():
            inner = (*frames, Frame(node.var, node.trip, None, 0, path))
            rings = tuple(
                Scope(f"{path}.q{k}", q.tensor, q.memory, q.tile, q.depth,
                      q.dtype or schedule.graph.tensors[q.tensor].dtype, q.init, inner,
                      base + node.stages[q.producer].core_offset, q, path)
                for k, q in enumerate(node.queues)
            )  # fmt: skip
            found.scopes.extend(rings)
            for i, stage in enumerate(node.stages):
                _visit(schedule, stage.body, f"{path}.{i}", inner, base + stage.core_offset,
                       (*scopes, *rings), (*stages, (path, i)), found)  # fmt: skip
        case _:
            assert_never(node)


@dataclass(frozen=True, slots=True)
class Ends:
    """Storage that a leaf reads (per read slot) and writes; None is the tensor at home."""

    reads: tuple[Scope | None, ...]
    write: Scope | None


def reach_memory(engine: str, machine: Machine) -> str:
    """The placeable level that a compute engine addresses."""
    index = machine.level_index(machine.engine(engine).memory)
    while index > 0 and machine.levels[index].managed is not Managed.SCRATCHPAD:
        index -= 1
    return machine.levels[index].name


def compute_scope(leaf: Leaf, tensor: str, reach: str) -> Scope | None:
    """Where a Compute finds `tensor`: the innermost scope its engine reaches, else any."""
    return leaf.find(tensor, reach) or leaf.find(tensor)


def move_ends(leaf: Leaf, move: Move, home: str) -> Ends | str:
    """Source and destination of a Move, or a sentence saying what is missing."""
    if move.src == move.dst:
        inside = [s for s in leaf.scopes if s.tensor == move.tensor and s.memory == move.src]
        if len(inside) < 2:
            return f"a move of {move.tensor} within {move.src} needs two places of it there"
        outer, inner = inside[-2:]
        if outer.queue is not None and (outer.pipe, outer.queue.producer) in leaf.stages:
            return Ends((inner,), outer)
        return Ends((outer,), inner)
    ends: list[Scope | None] = []
    for memory in (move.src, move.dst):
        scope = None if memory == home else leaf.find(move.tensor, memory)
        if memory != home and scope is None:
            return f"no place of {move.tensor} in {memory} around the move"
        ends.append(scope)
    return Ends((ends[0],), ends[1])
