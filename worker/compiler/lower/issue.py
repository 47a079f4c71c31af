"""Instruction order: when, in program order, each iteration of each leaf is issued.

The simulator grants shared resources first come, first served in program order, so program order
must follow time:

- CORES iterations are innermost (lockstep): all cores do their iteration t before any does t + 1.
- A Move that fills a Place with `copies` = c is issued c - 1 entries ahead of its consumer, across
  all loops it may cross, with a prologue: LOAD(i + c - 1) stands before COMPUTE(i) and STORE(i).
- Stages of a Pipe are skewed: stage k works on iteration i - k while stage 0 works on i, consumers
  first inside one step, so that a full queue drains before it is filled again.

A leaf never moves before something it depends on: moving ahead stops below the point where its
path joins that of another writer of its source, and below a Seq whose other parts place buffers in
the same memory.  Position is affine in the loop variables: `offset + sum(step * digit)`.
Source: GraphTurbo's overlap of instructions across layers (4-papers.md section 1), as one rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import assert_never

from worker.compiler.lower.liveness import in_parallel
from worker.compiler.lower.nest import Frame, FrameKind, Nest, Scope
from worker.compiler.lower.resolve import Ref, Refs
from worker.compiler.schedule.nodes import Compute, Loop, LoopKind, Move, Node, Pipe, Place, Seq


@dataclass(frozen=True, slots=True)
class Ahead:
    """A Move issued `distance` entries early, counted over `frames` (outermost first)."""

    distance: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """Program position of a leaf: offset + sum over frames of step * iteration."""

    offset: int
    steps: tuple[int, ...]
    """Parallel to the leaf's frames; 0 for CORES and LANES."""


def prefetches(nest: Nest, refs: Sequence[Refs]) -> tuple[Ahead | None, ...]:
    """For each leaf, how far ahead it is issued.  Cost: quadratic in leaves and scopes."""
    writers: dict[Ref, list[int]] = {}
    touched: dict[int, list[int]] = {}
    for number, leaf_refs in enumerate(refs):
        writers.setdefault(_storage(leaf_refs.write), []).append(number)
        for used in leaf_refs.scopes():
            touched.setdefault(used, []).append(number)
    result: list[Ahead | None] = []
    for number, (leaf, leaf_refs) in enumerate(zip(nest.leaves, refs, strict=True)):
        index = leaf_refs.write.scope
        if not isinstance(leaf.node, Move) or index is None:
            result.append(None)
            continue
        scope = nest.scopes[index]
        if scope.copies < 2 or scope.queue or not _fills_first(nest, refs, index, touched[index]):
            result.append(None)
            continue
        floor = max(
            (_common(leaf.path, nest.leaves[w].path)
             for w in writers.get(_storage(leaf_refs.reads[0]), ()) if w != number),
            default=-1,
        )  # fmt: skip
        source = leaf_refs.reads[0].scope
        if source is not None:
            floor = max(floor, _depth(nest.scopes[source].path))
        floor = max(floor, _last_shared_seq(nest, scope))
        frames = tuple(
            f
            for f in scope.frames
            if f.kind in (FrameKind.TIME, FrameKind.PIPE) and _depth(f.path) > floor
        )
        useful = prod(f.trip for f in frames) > 1
        result.append(Ahead(scope.copies - 1, frames) if useful else None)
    return tuple(result)


def hoisted_loops(
    nest: Nest, refs: Sequence[Refs], ahead: Sequence[Ahead | None]
) -> tuple[str | None, ...]:
    """For each scope, the outermost loop over which its entries overlap in time, or None."""
    loops: list[str | None] = []
    for scope in nest.scopes:
        around = [f.path for f in scope.frames if f.kind in (FrameKind.TIME, FrameKind.PIPE)]
        loops.append(around[-1] if scope.copies > 1 and around and not scope.queue else None)
    for leaf_refs, plan in zip(refs, ahead, strict=True):
        index = leaf_refs.write.scope
        if plan is not None and index is not None:
            old = loops[index]
            path = plan.frames[0].path
            loops[index] = path if old is None or len(path) < len(old) else old
    return tuple(loops)


def timings(
    nest: Nest, refs: Sequence[Refs], ahead: Sequence[Ahead | None], widths: Sequence[int]
) -> tuple[Timing, ...]:
    """Positions of all leaves.

    `widths[leaf]` is how many instructions one iteration of the leaf may become.  Positions are
    dense: their range is about the number of time steps of the tree.
    """
    room: dict[str, int] = {}
    for plan in ahead:
        if plan is not None:
            inner = prod(f.trip for f in plan.frames[1:])
            path = plan.frames[0].path
            room[path] = max(room.get(path, 0), -(-plan.distance // inner))
    numbering = _Numbering(room, widths, skewed_pipes(nest, refs))
    numbering.visit(nest.schedule.root, "0", 0, {})
    return tuple(
        Timing(offset, tuple(steps.get(f.path, 0) for f in leaf.frames))
        for leaf, (offset, steps) in zip(nest.leaves, numbering.found, strict=True)
    )


def skewed_pipes(nest: Nest, refs: Sequence[Refs]) -> frozenset[str]:
    """Paths of the Pipes whose stages may be skewed in program order.

    Legal when every queue is at least as deep as the distance of its stages and the stages share
    nothing else that one of them writes.
    """
    rings: dict[str, list[Scope]] = {}
    for path in (f.path for leaf in nest.leaves for f in leaf.frames if f.kind is FrameKind.PIPE):
        rings.setdefault(path, [])
    for scope in nest.scopes:
        if scope.queue is not None:
            rings.setdefault(scope.stages[-1][0], []).append(scope)
    legal: list[str] = []
    for path, queues in rings.items():
        deep = all(
            0 < consumer - ring.queue.producer <= ring.copies
            for ring in queues
            if ring.queue is not None
            for consumer in ring.queue.consumers
        )
        if deep and not _stages_share(nest, refs, path):
            legal.append(path)
    return frozenset(legal)


def _stages_share(nest: Nest, refs: Sequence[Refs], pipe: str) -> bool:
    """True when a storage other than the pipe's queues is written in one stage, used in another."""
    users: dict[Ref, set[int]] = {}
    written: set[Ref] = set()
    for leaf, leaf_refs in zip(nest.leaves, refs, strict=True):
        stage = next((k for path, k in leaf.stages if path == pipe), None)
        if stage is None:
            continue
        for ref in (*leaf_refs.reads, leaf_refs.write):
            if ref.scope is None or nest.scopes[ref.scope].queue is None:
                users.setdefault(_storage(ref), set()).add(stage)
        written.add(_storage(leaf_refs.write))
    return any(len(stages) > 1 and ref in written for ref, stages in users.items())


class _Numbering:
    """Assigns dense time positions by walking the tree once."""

    def __init__(self, room: dict[str, int], widths: Sequence[int], skewed: frozenset[str]) -> None:
        self.room = room
        self.widths = widths
        self.skewed = skewed
        self.found: list[tuple[int, dict[str, int]]] = []
        self.sizes: dict[str, int] = {}
        self.next_leaf = 0

    def size(self, node: Node, path: str) -> int:
        """Positions taken by `node`; called once per node, in tree order."""
        match node:
            case Move() | Compute():
                total = self.widths[self.next_leaf]
                self.next_leaf += 1
            case Seq(parts):
                total = sum(self.size(p, f"{path}.{i}") for i, p in enumerate(parts))
            case Place():
                total = self.size(node.body, f"{path}.0")
            case Loop():
                total = self.size(node.body, f"{path}.0")
                if node.kind in (LoopKind.TIME, LoopKind.UNROLL, LoopKind.LANES):
                    total *= node.trip + self.room.get(path, 0)
            case Pipe():
                step = sum(self.size(s.body, f"{path}.{i}") for i, s in enumerate(node.stages))
                skew = len(node.stages) - 1 if path in self.skewed else 0
                total = step * (node.trip + self.room.get(path, 0) + skew)
            case _:
                assert_never(node)
        self.sizes[path] = total
        return total

    def visit(self, node: Node, path: str, offset: int, steps: dict[str, int]) -> None:
        if path == "0" and not self.sizes:
            self.size(node, path)
        match node:
            case Move() | Compute():
                self.found.append((offset, steps))
            case Seq(parts):
                for i, part in enumerate(parts):
                    self.visit(part, f"{path}.{i}", offset, steps)
                    offset += self.sizes[f"{path}.{i}"]
            case Place():
                self.visit(node.body, f"{path}.0", offset, steps)
            case Loop():
                step = 0 if node.kind is LoopKind.CORES else self.sizes[f"{path}.0"]
                start = offset + self.room.get(path, 0) * step
                self.visit(node.body, f"{path}.0", start, {**steps, path: step})
            case Pipe():
                self._visit_pipe(node, path, offset, steps)
            case _:
                assert_never(node)

    def _visit_pipe(self, pipe: Pipe, path: str, offset: int, steps: dict[str, int]) -> None:
        sizes = [self.sizes[f"{path}.{i}"] for i in range(len(pipe.stages))]
        step = sum(sizes)
        base = offset + self.room.get(path, 0) * step
        skewed = path in self.skewed
        for i, stage in enumerate(pipe.stages):
            before = sum(sizes[i + 1 :]) if skewed else sum(sizes[:i])
            start = base + before + (i * step if skewed else 0)
            self.visit(stage.body, f"{path}.{i}", start, {**steps, path: step})


def _storage(ref: Ref) -> Ref:
    """The storage alone: a scope by number, or a tensor at home."""
    return Ref(ref.tensor, ref.scope)


def _fills_first(nest: Nest, refs: Sequence[Refs], scope: int, users: Sequence[int]) -> bool:
    """True when moves alone write `scope` and all stand before its first reader in tree order."""
    writes = [n for n in users if refs[n].write.scope == scope]
    reads = [n for n in users if any(r.scope == scope for r in refs[n].reads)]
    return all(isinstance(nest.leaves[n].node, Move) for n in writes) and (
        not reads or max(writes) < min(reads)
    )


def _last_shared_seq(nest: Nest, scope: Scope) -> int:
    """Depth of the innermost branching above `scope` with a scope of its memory beside it."""
    best = -1
    for other in nest.scopes:
        if other.memory == scope.memory and not _is_within(other.path, scope.path):
            if _is_within(scope.path, other.path) or in_parallel(scope, other):
                continue
            best = max(best, _common(scope.path, other.path))
    return best


def _is_within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(outer + ".")


def _depth(path: str) -> int:
    return path.count(".")


def _common(a: str, b: str) -> int:
    """Depth of the deepest node that is on both paths."""
    depth = -1
    for x, y in zip(a.split("."), b.split("."), strict=False):
        if x != y:
            break
        depth += 1
    return depth
