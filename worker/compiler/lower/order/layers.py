"""Where the layers of a unit start, and which fills are issued across them.

A unit may hold many layers.  The stream of a core's loads is in order: the load of an activation
waits for the layer before and blocks everything behind it.  So weights (and whatever else nothing
in the unit writes) are listed in front of the first activation of their layer, or of an earlier
layer: their first entries then arrive while the cores still compute the layer before.  Their
buffers must be free by then, so the distance is chosen by buffer room (`distances`).  Copies of
weights out of a cluster's buffer go to the front of their own layer only, behind the loads of the
layer before and in front of what later layers fetch: they may have to wait for that buffer.

A *context* is the body of a repeating loop (or the root); its *layers* are what stands side by side
in its Seqs, each with a Compute and a fill.  Fills that share an engine with the
activations of their layer are issued early only where they stand in front of them in tree order:
that order says what the schedule wants.  A unit of one layer is not touched.
Source: GraphTurbo's scheduling across layers (4-papers.md section 1, paper section 4.4); the paper
moves instructions one by one, here a whole fill moves by whole layers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import assert_never

import numpy as np

from worker.compiler.lower.issue import Ahead, Lead, fills_first, users_of
from worker.compiler.lower.resolve import Refs
from worker.compiler.machine.dma import dma_engine
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute, Loop, LoopKind, Move, Node, Pipe, Place, Seq
from worker.compiler.schedule.walk import Frame, Leaf, Walk

MOST_LAYERS_AHEAD = 6


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a context; `path` is the node at whose start it begins."""

    path: str
    first_leaf: int


@dataclass(frozen=True, slots=True)
class EarlyFill:
    """A fill that may be issued early: `layer` is its own, as a position in `layers`."""

    leaf: int
    scope: int
    layers: tuple[Layer, ...]
    layer: int
    entries: int
    """How many entries may stand in front: they have a slot each."""
    frames: tuple[Frame, ...]
    """Loops that count the entries, outermost first."""
    shares_engine: bool = True
    """Whether the activations of its layer wait in the same stream of transfers."""
    reach: int = 1
    """Layers ahead that pay off (`lower.pace`)."""
    work: str = ""
    """Node of the first layer behind the fills that stand in front of its work; empty: none."""
    most: int = MOST_LAYERS_AHEAD
    """Layers ahead at most, where it shares the engine."""
    after: int | None = None
    """Leaf of the early fill of its layer that brings what it copies: it must be early too."""

    def context_frames(self, frames: Sequence[Frame]) -> tuple[Frame, ...]:
        """Of the loops around the fill, the repeating ones outside its layers."""
        return tuple(f for f in frames if f.is_repeating and f.trip > 1 and f not in self.frames)

    def starts(self, distance: int) -> str:
        """Node in front of which it is issued; never before the first layer's own fills.

        Ports are granted in program order, so a fill on an engine of its own stands in front of
        all stores of the layer it should overlap.
        """
        back = max(distance - 1, 0) if self.shares_engine else distance
        if back >= self.layer and self.work and not self.shares_engine:
            return self.work
        return self.layers[max(self.layer - back, 1)].path

    def free_from(self, distance: int) -> int:
        """Leaf from which its buffer must be free so that it waits for nothing."""
        return self.layers[max(self.layer - distance, 0)].first_leaf

    def lead(self, distance: int) -> Lead:
        """What the numbering of instructions needs to know.

        Nearer than planned, all but the first entry would keep the layer's activations waiting.
        """
        entries = self.entries if distance >= self.reach else 1
        return Lead(self.starts(distance), self.layer, entries, self.frames)


def early_fills(
    nest: Walk, refs: Sequence[Refs], ahead: Sequence[Ahead | None], machine: Machine
) -> tuple[EarlyFill, ...]:
    """Fills that may be issued across layers, in tree order.  Cost: linear in leaves x depth."""
    contexts = _layers_of(nest, refs)
    if all(len(layers) < 2 for layers in contexts.values()):
        return ()
    produced = _first_writes(nest, refs)
    uses = _first_dependent_uses(nest, refs, contexts, produced)
    users = users_of(refs)
    work = first_work(nest.schedule.root)
    found: list[EarlyFill] = []
    once: dict[int, str] = {}
    for number, (leaf, leaf_refs, plan) in enumerate(zip(nest.leaves, refs, ahead, strict=True)):
        index = leaf_refs.write.scope
        if not isinstance(leaf.node, Move) or index is None or leaf.stages:
            continue
        source = leaf_refs.reads[0]
        if source.tensor in produced:
            continue
        frames = plan.frames if plan is not None else ()
        context = _contexts_around(leaf, frames)[-1]
        layer = layer_at(contexts[context], number)
        is_copy = source.scope is not None
        after = None
        if source.scope is not None:
            filler = _filler(refs, users[source.scope], source.scope)
            if filler is None:
                continue
            if _is_around(context, nest.leaves[filler]) and (
                layer_at(contexts[context], filler) == layer
            ):
                after = filler
        use = uses.get((context, layer))  # None: nothing of the layer waits for an earlier one
        own = _engine(nest, number, machine)
        shares_engine = use is not None and _engine(nest, use, machine) == own
        is_late = shares_engine and use is not None and number > use
        if is_copy and (not shares_engine or (after is not None and once.get(after) != context)):
            continue
        if layer < 1 or is_late or not fills_first(nest, refs, index, users[index]):
            continue
        trips = prod(f.trip for f in frames)
        if trips == 1:
            once[number] = context
        found.append(
            EarlyFill(
                number, index, contexts[context], layer, min(nest.scopes[index].copies, trips),
                frames, shares_engine, work="" if context else work,
                most=1 if is_copy else MOST_LAYERS_AHEAD, after=after,
            )
        )  # fmt: skip
    return tuple(found)


def distances(
    early: Sequence[EarlyFill],
    intervals: Sequence[tuple[int, int]],
    sizes: Sequence[int],
    levels: Sequence[str],
    capacity: Mapping[str, int],
    most: int,
) -> tuple[int, ...]:
    """How many layers ahead each fill is issued, at most `most`: what room in its memory allows.

    -1: where the tree has it.  0: in front of its layer's activations, but the buffer may be in use
    by the layer before.

    `intervals`, `sizes` (bytes), `levels` are per scope.  All fills get one layer where they can
    before any gets two, earlier ones first.  Room is the sum of what is alive at a leaf.
    Cost: linear in fills x leaves.
    """
    end = max((last for _, last in intervals), default=0)
    alive = {name: np.zeros(end, dtype=np.int64) for name in capacity}
    for (first, last), size, level in zip(intervals, sizes, levels, strict=True):
        alive[level][first:last] += size
    first_of = {fill.scope: intervals[fill.scope][0] for fill in early}
    chosen = [-1] * len(early)
    for distance in range(most + 1):
        for k, fill in enumerate(early):
            if chosen[k] < distance - 1 or distance > fill.reach:
                continue
            used = alive[levels[fill.scope]]
            start, until = fill.free_from(distance), first_of[fill.scope]
            room = capacity[levels[fill.scope]] - sizes[fill.scope]
            if start < until and int(used[start:until].max()) > room:
                continue
            used[start:until] += sizes[fill.scope]
            first_of[fill.scope] = min(start, until)
            chosen[k] = distance
    return tuple(chosen)


def _filler(refs: Sequence[Refs], users: Sequence[int], scope: int) -> int | None:
    """The leaf that writes a scope, if it is one alone."""
    writers = [n for n in users if refs[n].write.scope == scope]
    return writers[0] if len(writers) == 1 else None


def _is_around(context: str, leaf: Leaf) -> bool:
    """Whether a leaf lies in a context."""
    return context in _contexts_around(leaf, ())


def _engine(nest: Walk, number: int, machine: Machine) -> str:
    """Engine that issues a fill; empty for a Compute, which holds up no transfer."""
    node = nest.leaves[number].node
    return dma_engine(machine, node.dst, outward=False).name if isinstance(node, Move) else ""


def first_work(root: Node) -> str:
    """Path of the first node from the root on that is neither a Move nor only around Moves.

    Loops over cores are entered: what a section's clusters bring in is needed first of all.
    """
    node, path = root, "0"
    while True:
        match node:
            case Place() | Loop(kind=LoopKind.CORES):
                node, path = node.body, f"{path}.0"
            case Seq(parts):
                behind = [i for i, part in enumerate(parts) if not isinstance(part, Move)]
                if not behind:
                    return path
                node, path = parts[behind[0]], f"{path}.{behind[0]}"
            case _:
                return path


def _first_writes(nest: Walk, refs: Sequence[Refs]) -> dict[str, int]:
    """First leaf that computes each tensor."""
    found: dict[str, int] = {}
    for number, (leaf, leaf_refs) in enumerate(zip(nest.leaves, refs, strict=True)):
        if isinstance(leaf.node, Compute):
            found.setdefault(leaf_refs.write.tensor, number)
    return found


def _first_dependent_uses(
    nest: Walk,
    refs: Sequence[Refs],
    contexts: Mapping[str, tuple[Layer, ...]],
    produced: Mapping[str, int],
) -> dict[tuple[str, int], int]:
    """Per (context, layer), the first leaf that waits for an earlier layer.

    That is the first fill with something computed before, or without such a fill (the tensor is
    where it is needed already) the first Compute that reads it.
    """
    found: dict[tuple[str, int], int] = {}
    direct: dict[tuple[str, int], int] = {}
    for number, (leaf, leaf_refs) in enumerate(zip(nest.leaves, refs, strict=True)):
        for context in _contexts_around(leaf, ()):
            layers = contexts[context]
            layer = layer_at(layers, number)
            before = number if is_fill(leaf, leaf_refs) else layers[max(layer, 0)].first_leaf
            if not any(produced.get(r.tensor, number) < before for r in leaf_refs.reads):
                continue
            if is_fill(leaf, leaf_refs):
                found.setdefault((context, layer), number)
            elif isinstance(leaf.node, Compute):
                direct.setdefault((context, layer), number)
    return {**direct, **found}


def is_fill(leaf: Leaf, refs: Refs) -> bool:
    """A Move inwards: from home, or from an outer scope to an inner one."""
    source, target = refs.reads[0].scope if refs.reads else None, refs.write.scope
    return isinstance(leaf.node, Move) and target is not None and (
        source is None or target > source
    )  # fmt: skip


def layer_at(layers: Sequence[Layer], number: int) -> int:
    """Position of the layer that holds leaf `number`; -1 before the first."""
    return bisect_right(layers, number, key=lambda layer: layer.first_leaf) - 1


def _contexts_around(leaf: Leaf, without: Sequence[Frame]) -> tuple[str, ...]:
    """Paths of the contexts around a leaf, outermost first; the root's is empty."""
    return ("", *(
        f.path for f in leaf.frames if f.is_repeating and f.trip > 1 and f not in without
    ))  # fmt: skip


def _layers_of(nest: Walk, refs: Sequence[Refs]) -> dict[str, tuple[Layer, ...]]:
    """The layers of every context, by its path."""
    inwards = [is_fill(leaf, r) for leaf, r in zip(nest.leaves, refs, strict=True)]
    fills = np.concatenate([[0], np.cumsum(np.array(inwards, dtype=np.int64))])
    walker = _Layers()
    walker.visit(nest.schedule.root, "0", "")
    found: dict[str, tuple[Layer, ...]] = {}
    for context, starts in walker.starts.items():
        kept = starts[:1]
        ends = [s.first_leaf for s in starts[1:]] + [walker.ends[context]]
        for start, end in zip(starts, ends, strict=True):
            if start is not starts[0] and fills[end] > fills[start.first_leaf]:
                kept.append(start)
        found[context] = tuple(kept)
    return found


class _Layers:
    """Finds the parts of Seqs that start something new after a Compute."""

    def __init__(self) -> None:
        self.starts: dict[str, list[Layer]] = {"": [Layer("0", 0)]}
        self.ends: dict[str, int] = {}
        self.next_leaf = 0

    def visit(self, node: Node, path: str, context: str) -> bool:
        """True when the node contains a Compute."""
        computes = self._visit(node, path, context)
        if path == "0":
            self.ends[""] = self.next_leaf
        return computes

    def _visit(self, node: Node, path: str, context: str) -> bool:
        match node:
            case Move() | Compute():
                self.next_leaf += 1
                return isinstance(node, Compute)
            case Seq(parts):
                return self._visit_parts(parts, path, context)
            case Place():
                return self._visit(node.body, f"{path}.0", context)
            case Loop():
                if node.kind is LoopKind.CORES or node.trip == 1:
                    return self._visit(node.body, f"{path}.0", context)
                return self._visit_context((node.body,), path)
            case Pipe():
                return self._visit_context(tuple(stage.body for stage in node.stages), path)
            case _:
                assert_never(node)

    def _visit_context(self, bodies: Sequence[Node], path: str) -> bool:
        self.starts[path] = [Layer(f"{path}.0", self.next_leaf)]
        computes = [self._visit(body, f"{path}.{i}", path) for i, body in enumerate(bodies)]
        self.ends[path] = self.next_leaf
        return any(computes)

    def _visit_parts(self, parts: Sequence[Node], path: str, context: str) -> bool:
        computed = False
        for i, part in enumerate(parts):
            starts = self.starts[context]
            at, first = len(starts), self.next_leaf
            computes = self._visit(part, f"{path}.{i}", context)
            if computes and computed:
                # Layers inside the part come after its own start.
                starts.insert(at, Layer(f"{path}.{i}", first))
            computed = computed or computes
        return computed
