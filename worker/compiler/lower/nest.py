"""A schedule tree flattened: its leaves and its scopes, each with the loops around it.

Everything else in lowering works on this table instead of walking the tree again.  A *scope* is a
Place or a Queue; a *frame* is one loop (or the iteration of a Pipe) as seen from inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from worker.compiler.errors import VerifyError
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Machine
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


class FrameKind(Enum):
    """How an enclosing loop counts for lowering."""

    TIME = 0
    """TIME and UNROLL loops, and LANES loops that hold more than computes."""
    CORES = 1
    LANES = 2
    """Folded: all iterations are one instruction on one engine."""
    PIPE = 3
    """The iteration of a Pipe."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One enclosing loop."""

    var: str
    trip: int
    kind: FrameKind
    core_stride: int
    path: str


@dataclass(frozen=True, slots=True)
class Scope:
    """A Place or a Queue with its surroundings."""

    path: str
    tensor: str
    memory: str
    tile: Box
    copies: int
    dtype: DType
    init: Init
    frames: tuple[Frame, ...]
    """Loops around it, outermost first; a Queue's last frame is its Pipe."""
    core_base: int
    """Sum of the core offsets of the stages around it (a Queue adds its producer's)."""
    stages: tuple[tuple[str, int], ...]
    """(pipe path, stage index) of every Pipe around it; a Queue adds its own with index -1 - k."""
    first_leaf: int
    """Leaves `first_leaf` .. `end_leaf - 1` lie inside it."""
    end_leaf: int
    queue: Queue | None

    @property
    def slot_frames(self) -> tuple[Frame, ...]:
        """Loops whose iterations count the entries, hence choose the slot."""
        if self.queue is not None:
            return self.frames[-1:]
        return tuple(f for f in self.frames if f.kind in (FrameKind.TIME, FrameKind.PIPE))


@dataclass(frozen=True, slots=True)
class Leaf:
    """A Move or a Compute with its surroundings."""

    path: str
    node: Move | Compute
    frames: tuple[Frame, ...]
    core_base: int
    stages: tuple[tuple[str, int], ...]
    scopes: tuple[int, ...]
    """Enclosing scopes, outermost first, as indices into `Nest.scopes`."""


@dataclass(frozen=True, slots=True)
class Nest:
    """The flattened tree."""

    schedule: Schedule
    leaves: tuple[Leaf, ...]
    """In tree order (the sequential order of one iteration)."""
    scopes: tuple[Scope, ...]
    """In tree order; queues of a Pipe stand before its stages."""
    leaf_range: tuple[tuple[str, int, int], ...]
    """(loop or pipe path, first leaf, end leaf) of every Loop and Pipe."""

    def range_of(self, path: str) -> tuple[int, int]:
        """Leaves inside the loop or pipe at `path`."""
        for other, first, end in self.leaf_range:
            if other == path:
                return first, end
        raise KeyError(path)

    def find_scope(self, leaf: Leaf, tensor: str, memory: str | None = None) -> int | None:
        """Innermost enclosing scope of `tensor`, in `memory` when given."""
        for index in reversed(leaf.scopes):
            scope = self.scopes[index]
            if scope.tensor == tensor and (memory is None or scope.memory == memory):
                return index
        return None


def flatten(schedule: Schedule, machine: Machine) -> Nest:
    """Flatten `schedule.root`.

    Raises:
        VerifyError: a Place or Queue in the home level or in a level the machine does not have.
    Cost: linear in the tree.
    """
    walker = _Walker(schedule, machine)
    walker.visit(schedule.root, "0", (), 0, (), ())
    return Nest(
        schedule,
        tuple(walker.leaves),
        tuple(s for s in walker.scopes if s is not None),
        tuple(walker.ranges),
    )


def is_foldable(node: Node) -> bool:
    """True when a LANES loop around `node` can be one instruction: only computes inside."""
    match node:
        case Compute():
            return True
        case Loop(_, _, kind, body, _):
            return kind is not LoopKind.CORES and is_foldable(body)
        case Seq(parts):
            return all(is_foldable(part) for part in parts)
        case _:
            return False


class _Walker:
    def __init__(self, schedule: Schedule, machine: Machine) -> None:
        self.tensors = schedule.graph.tensors
        self.placeable = {level.name for level in machine.levels[1:]}
        self.leaves: list[Leaf] = []
        self.scopes: list[Scope | None] = []
        self.ranges: list[tuple[str, int, int]] = []

    def visit(
        self,
        node: Node,
        path: str,
        frames: tuple[Frame, ...],
        core_base: int,
        stages: tuple[tuple[str, int], ...],
        scopes: tuple[int, ...],
    ) -> None:
        first = len(self.leaves)
        match node:
            case Move() | Compute():
                self.leaves.append(Leaf(path, node, frames, core_base, stages, scopes))
            case Seq(parts):
                for i, part in enumerate(parts):
                    self.visit(part, f"{path}.{i}", frames, core_base, stages, scopes)
            case Loop(var, trip, kind, body, stride):
                frame = Frame(var, trip, _frame_kind(kind, body), stride, path)
                self.visit(body, f"{path}.0", (*frames, frame), core_base, stages, scopes)
                self.ranges.append((path, first, len(self.leaves)))
            case Place():
                self._check_memory(path, node.memory)
                index = len(self.scopes)
                self.scopes.append(None)
                self.visit(node.body, f"{path}.0", frames, core_base, stages, (*scopes, index))
                self.scopes[index] = Scope(
                    path, node.tensor, node.memory, node.tile, max(node.copies, 1),
                    node.dtype or self.tensors[node.tensor].dtype, node.init, frames, core_base,
                    stages, first, len(self.leaves), None,
                )  # fmt: skip
            case Pipe():
                self._visit_pipe(node, path, frames, core_base, stages, scopes)
            case _:
                assert_never(node)

    def _visit_pipe(
        self,
        pipe: Pipe,
        path: str,
        frames: tuple[Frame, ...],
        core_base: int,
        stages: tuple[tuple[str, int], ...],
        scopes: tuple[int, ...],
    ) -> None:
        first = len(self.leaves)
        inner = (*frames, Frame(pipe.var, pipe.trip, FrameKind.PIPE, 0, path))
        rings = tuple(range(len(self.scopes), len(self.scopes) + len(pipe.queues)))
        self.scopes.extend(None for _ in rings)
        for i, stage in enumerate(pipe.stages):
            self.visit(
                stage.body, f"{path}.{i}", inner, core_base + stage.core_offset,
                (*stages, (path, i)), (*scopes, *rings),
            )  # fmt: skip
        for k, (index, queue) in enumerate(zip(rings, pipe.queues, strict=True)):
            self._check_memory(f"{path}.q{k}", queue.memory)
            # The ring sits where its producer is: consumers reach across.
            base = core_base + pipe.stages[queue.producer].core_offset
            self.scopes[index] = Scope(
                f"{path}.q{k}", queue.tensor, queue.memory, queue.tile, max(queue.depth, 1),
                queue.dtype or self.tensors[queue.tensor].dtype, queue.init, inner, base,
                (*stages, (path, -1 - k)), first, len(self.leaves), queue,
            )  # fmt: skip
        self.ranges.append((path, first, len(self.leaves)))

    def _check_memory(self, path: str, memory: str) -> None:
        if memory not in self.placeable:
            raise VerifyError(
                "lower", path, "memory", f"{memory!r} is not a level below the home level"
            )


def _frame_kind(kind: LoopKind, body: Node) -> FrameKind:
    match kind:
        case LoopKind.CORES:
            return FrameKind.CORES
        case LoopKind.LANES:
            return FrameKind.LANES if is_foldable(body) else FrameKind.TIME
        case LoopKind.TIME | LoopKind.UNROLL:
            return FrameKind.TIME
        case _:
            assert_never(kind)
