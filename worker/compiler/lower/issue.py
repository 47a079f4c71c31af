"""Instruction order: when, in program order, each iteration of each leaf is issued.

The simulator grants shared resources first come, first served in program order, so program order
must follow time:

- CORES iterations are innermost (lockstep): all cores do their iteration t before any does t + 1.
- A Move that fills a Place with `copies` = c is issued c - 1 entries ahead of its consumer, across
  all loops it may cross, with a prologue: LOAD(i + c - 1) stands before COMPUTE(i) and STORE(i).
- Fills of a later layer may stand in front of an earlier one's activations (`lower.layers`).
- Stages of a Pipe are skewed: stage k works on iteration i - k while stage 0 works on i, consumers
  first inside one step, so that a full queue drains before it is filled again.

A leaf never moves before something it depends on: moving ahead stops below the point where its
path joins that of another writer of its source, and below a Seq whose other parts place buffers in
the same memory.  Position is affine in the loop variables: `offset + sum(step * digit)`.
Source: GraphTurbo's overlap of instructions across layers (4-papers.md section 1), as one rule.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import assert_never

from worker.compiler.lower.liveness import in_parallel
from worker.compiler.lower.resolve import Ref, Refs
from worker.compiler.schedule.nodes import Compute, Loop, LoopKind, Move, Node, Pipe, Place, Seq
from worker.compiler.schedule.walk import Frame, Scope, Walk


@dataclass(frozen=True, slots=True)
class Ahead:
    """A Move issued `distance` entries early, counted over `frames` (outermost first)."""

    distance: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Front:
    """Positions of the first entries of a fill that are issued at the start of a layer.

    Entry e < `entries`, counted over `frames`, stands at offset + e * step (plus what the loops
    around the layer add); the loops in `frames` do not count.
    """

    entries: int
    frames: tuple[Frame, ...]
    offset: int
    step: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Program position of a leaf: offset + sum over frames of step * iteration."""

    offset: int
    steps: tuple[int, ...]
    """Parallel to the leaf's frames; 0 for CORES and LANES."""
    front: Front | None = None


@dataclass(frozen=True, slots=True)
class Lead:
    """A fill whose first entries are issued at the start of a layer (`lower.layers`)."""

    path: str
    """Node in front of which they stand."""
    layer: int
    """Fills of earlier layers come first."""
    entries: int
    """How many, counted over `frames` (outermost first)."""
    frames: tuple[Frame, ...]


def users_of(refs: Sequence[Refs]) -> dict[int, list[int]]:
    """Leaves that touch each scope, ascending."""
    users: dict[int, list[int]] = {}
    for number, leaf_refs in enumerate(refs):
        for used in leaf_refs.scopes():
            users.setdefault(used, []).append(number)
    return users


def prefetches(nest: Walk, refs: Sequence[Refs]) -> tuple[Ahead | None, ...]:
    """For each leaf, how far ahead it is issued.  Cost: linear in leaves times depth."""
    writers: dict[Ref, list[int]] = {}
    touched = users_of(refs)
    by_memory = _by_memory(nest)
    for number, leaf_refs in enumerate(refs):
        writers.setdefault(_storage(leaf_refs.write), []).append(number)
    result: list[Ahead | None] = []
    for number, (leaf, leaf_refs) in enumerate(zip(nest.leaves, refs, strict=True)):
        index = leaf_refs.write.scope
        if not isinstance(leaf.node, Move) or index is None:
            result.append(None)
            continue
        scope = nest.scopes[index]
        if scope.copies < 2 or scope.queue or not fills_first(nest, refs, index, touched[index]):
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
        beside = by_memory[scope.memory]
        floor = max(floor, _last_shared_seq(nest, scope, beside, bisect_left(beside, index)))
        frames = tuple(f for f in scope.frames if f.is_repeating and _depth(f.path) > floor)
        useful = prod(f.trip for f in frames) > 1
        result.append(Ahead(scope.copies - 1, frames) if useful else None)
    return tuple(result)


def hoisted_loops(
    nest: Walk, refs: Sequence[Refs], ahead: Sequence[Ahead | None]
) -> tuple[str | None, ...]:
    """For each scope, the outermost loop over which its entries overlap in time, or None."""
    loops: list[str | None] = []
    for scope in nest.scopes:
        around = [f.path for f in scope.frames if f.is_repeating]
        loops.append(around[-1] if scope.copies > 1 and around and not scope.queue else None)
    for leaf_refs, plan in zip(refs, ahead, strict=True):
        index = leaf_refs.write.scope
        if plan is not None and index is not None:
            old = loops[index]
            path = plan.frames[0].path
            loops[index] = path if old is None or len(path) < len(old) else old
    return tuple(loops)


def timings(
    nest: Walk,
    refs: Sequence[Refs],
    ahead: Sequence[Ahead | None],
    widths: Sequence[int],
    leads: Mapping[int, Lead],
) -> tuple[Timing, ...]:
    """Positions of all leaves.

    `widths[leaf]` is how many instructions one iteration of the leaf may become; `leads` are the
    fills issued at the start of a layer, by leaf.  Positions are dense: their range is about the
    number of time steps of the tree.
    """
    room: dict[str, int] = {}
    for plan in ahead:
        if plan is not None:
            inner = prod(f.trip for f in plan.frames[1:])
            path = plan.frames[0].path
            room[path] = max(room.get(path, 0), -(-plan.distance // inner))
    places, front = _lead_places(leads)
    numbering = _Numbering(room, widths, skewed_pipes(nest, refs), front)
    numbering.visit(nest.schedule.root, "0", 0, {})
    result: list[Timing] = []
    for number, (leaf, (offset, steps)) in enumerate(
        zip(nest.leaves, numbering.found, strict=True)
    ):
        early = None
        if number in leads:
            lead, (first, step) = leads[number], places[number]
            early = Front(lead.entries, lead.frames, numbering.fronts[lead.path] + first, step)
        result.append(Timing(offset, tuple(steps.get(f.path, 0) for f in leaf.frames), early))
    return tuple(result)


def _lead_places(leads: Mapping[int, Lead]) -> tuple[dict[int, tuple[int, int]], dict[str, int]]:
    """Per leaf (position of its entry 0 in its front, step per entry); the size of each front.

    A front lists the fills of one layer after those of another, first entries first.
    """
    groups: dict[tuple[str, int], list[int]] = {}
    for number in sorted(leads, key=lambda n: (leads[n].path, leads[n].layer, n)):
        groups.setdefault((leads[number].path, leads[number].layer), []).append(number)
    places: dict[int, tuple[int, int]] = {}
    front: dict[str, int] = {}
    for (path, _), members in groups.items():
        base = front.get(path, 0)
        for k, number in enumerate(members):
            places[number] = base + k, len(members)
        front[path] = base + len(members) * max(leads[n].entries for n in members)
    return places, front


def skewed_pipes(nest: Walk, refs: Sequence[Refs]) -> frozenset[str]:
    """Paths of the Pipes whose stages may be skewed in program order.

    Legal when every queue is at least as deep as the distance of its stages and the stages share
    nothing else that one of them writes.
    """
    rings: dict[str, list[Scope]] = {}
    for path in (f.path for leaf in nest.leaves for f in leaf.frames if f.kind is None):
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


def _stages_share(nest: Walk, refs: Sequence[Refs], pipe: str) -> bool:
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

    def __init__(
        self,
        room: dict[str, int],
        widths: Sequence[int],
        skewed: frozenset[str],
        front: Mapping[str, int],
    ) -> None:
        self.room = room
        self.front = front
        """Positions to leave free in front of a node."""
        self.fronts: dict[str, int] = {}
        """Where they start; the loops around the node add to it."""
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
        total += self.front.get(path, 0)
        self.sizes[path] = total
        return total

    def visit(self, node: Node, path: str, offset: int, steps: dict[str, int]) -> None:
        if path == "0" and not self.sizes:
            self.size(node, path)
        if path in self.front:
            self.fronts[path] = offset
            offset += self.front[path]
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


def fills_first(nest: Walk, refs: Sequence[Refs], scope: int, users: Sequence[int]) -> bool:
    """True when moves alone write `scope` and all stand before its first reader in tree order."""
    writes = [n for n in users if refs[n].write.scope == scope]
    reads = [n for n in users if any(r.scope == scope for r in refs[n].reads)]
    return all(isinstance(nest.leaves[n].node, Move) for n in writes) and (
        not reads or max(writes) < min(reads)
    )


def _by_memory(nest: Walk) -> dict[str, list[int]]:
    """Scopes of each memory, in tree order."""
    found: dict[str, list[int]] = {}
    for index, scope in enumerate(nest.scopes):
        found.setdefault(scope.memory, []).append(index)
    return found


def _last_shared_seq(nest: Walk, scope: Scope, neighbours: Sequence[int], at: int) -> int:
    """Depth of the innermost branching above `scope` with a scope of its memory beside it.

    `neighbours` are the scopes of its memory in tree order and `at` its own place: the farther
    apart two of them are there, the higher they branch, so the nearest on each side decide.
    """
    best = -1
    for side in (range(at - 1, -1, -1), range(at + 1, len(neighbours))):
        for k in side:
            other = nest.scopes[neighbours[k]]
            if _is_within(other.path, scope.path) or _is_within(scope.path, other.path):
                continue
            if in_parallel(scope, other):
                continue
            best = max(best, _common(scope.path, other.path))
            break
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
