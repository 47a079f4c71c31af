"""A run of layers cut over the cores of a cluster: what each core computes and holds.

A *binding* shares out dimensions of the run's first result: over cores, and over turns of each core
where a core's share is taken piece by piece.  Walking backwards (`propagate`) gives every operator
its slice.  Where the slices of neighbouring cores overlap (halo) the points are computed again, as
in sections that are cut into rows.
Source: GraphTurbo, section 3.4 (binding).  Deviation: the paper asks for equal bindings of producer
and consumer and never computes a halo again; here the walk decides, and turns are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.schedule.nodes import Box, Span
from worker.compiler.tiling.slices.footprint import piece_outputs
from worker.compiler.tiling.slices.propagate import Slices, is_off_grid, propagate

MAX_EXTRA = 0.2
"""Points computed again, at most, as a part of the run's own."""


@dataclass(frozen=True, slots=True)
class Share:
    """One dimension of the run's first result in ways x trips equal pieces."""

    dim: int
    ways: int
    """Cores."""
    trips: int
    """Pieces that each core takes one after the other."""

    @property
    def pieces(self) -> int:
        return self.ways * self.trips


Binding: TypeAlias = tuple[Share, ...]


def piece_var(number: int) -> str:
    """Variable that counts the pieces of share `number` of a binding."""
    return f"h{number}"


@dataclass(frozen=True, slots=True)
class EnclosingInstance:
    """The instance that a run stands in."""

    slices: Slices | None
    """None: it computes everything."""
    variable: str
    """Counts the instances."""
    count: int


@dataclass(frozen=True, slots=True)
class RunCut:
    """One piece of a run; starts of boxes are affine in the instance's and the pieces' numbers."""

    binding: Binding
    domains: Mapping[str, Box]
    """By operator."""
    boxes: Mapping[str, Box]
    """By tensor that the run writes."""
    recompute: frozenset[str]
    """Operators some of whose points several pieces compute."""

    @property
    def cores(self) -> int:
        return prod(share.ways for share in self.binding)

    @property
    def trips(self) -> int:
        return prod(share.trips for share in self.binding)


@dataclass(frozen=True, slots=True)
class LayerRun:
    """Layers first .. last - 1 of a section, each core's slices of them one after the other."""

    first: int
    last: int
    cut: RunCut


def cut_run(
    graph: Graph, ops: Sequence[TensorOp], around: EnclosingInstance, binding: Binding
) -> RunCut | None:
    """Cut the operators of a run as `binding` says, inside of an instance.

    None where that is no cut: a dimension does not divide, a result that leaves the run would be
    computed twice or read by other pieces, or more than MAX_EXTRA of the points would be computed
    again.
    Cost: one propagation per share.
    """
    exits = piece_outputs(graph, ops)
    if not exits or (around.slices is not None and around.slices.recompute):
        return None
    outer = _moving(around.slices.boxes[exits[0]]) if around.slices is not None else ()
    found: list[Slices] = []
    again: set[str] = set()
    extra = 0
    for number, share in enumerate(binding):
        extent = graph.tensors[exits[0]].shape[share.dim]
        inside = share.dim in outer
        total = share.pieces * (around.count if inside else 1)
        if extent % total:
            return None
        slices = propagate(graph, ops, exits, share.dim, total, piece_var(number))
        if slices is None:
            return None
        if any(slices.boxes[t] != slices.shares[t] for t in exits):
            return None
        if any(not _moving(slices.domains[name]) for name in slices.recompute):
            return None  # bound differently: every piece would compute all of it
        if inside:
            piece = var(around.variable) * share.pieces + var(piece_var(number))
            slices = _substituted(slices, {piece_var(number): piece})
        found.append(slices)
        again |= slices.recompute
        extra += sum(slices.extra_points.values())
    by_name = {op.name: op for op in ops}
    if any(op.write.tensor in exits for op in ops if op.name in again):
        return None
    if extra > MAX_EXTRA * sum(op.num_points for op in ops):
        return None
    domains: dict[str, Box] = {}
    for op in ops:
        whole = tuple(axis.extent for axis in op.domain)
        own = None if around.slices is None else around.slices.domains[op.name]
        box = _joined(whole, own, [s.domains[op.name] for s in found], around.variable)
        if box is None or any(s.extent > e for s, e in zip(box, whole, strict=True)):
            return None
        if is_off_grid(op, box):
            return None
        if _joins(op, box, graph.tensors[op.write.tensor].shape):
            return None  # the pieces are of the whole tensor, others write the rest of it
        domains[op.name] = box
    boxes: dict[str, Box] = {}
    for tensor in dict.fromkeys(op.write.tensor for op in by_name.values()):
        shape = graph.tensors[tensor].shape
        own = None if around.slices is None else around.slices.boxes[tensor]
        box = _joined(shape, own, [s.boxes[tensor] for s in found], around.variable)
        if box is None:
            return None
        # Tiles may hang over what is read, in every dimension that is not shared out.
        boxes[tensor] = tuple(
            span if span.start.variables() else Span(Affine(), size)
            for span, size in zip(box, shape, strict=True)
        )
    return RunCut(binding, domains, boxes, frozenset(again))


def _joins(op: TensorOp, box: Box, shape: Sequence[int]) -> bool:
    """Whether `op` writes only a piece of a dimension that `box` shares out (a concatenation).

    Interleaved pieces are none: each share has its part of them.
    """
    extents = {axis.name: axis.extent for axis in op.domain}
    moving = {a.name for a, s in zip(op.domain, box, strict=True) if s.start.variables()}
    for expr, size in zip(op.write.index, shape, strict=True):
        names = expr.variables()
        if moving.isdisjoint(names):
            continue
        step = max(abs(expr.coeff(name)) for name in names)
        last = expr.const + sum(expr.coeff(name) * (extents[name] - 1) for name in names)
        if expr.const >= step or size - 1 - last >= step:
            return True
    return False


def _moving(box: Box) -> tuple[int, ...]:
    return tuple(dim for dim, span in enumerate(box) if span.start.variables())


def _substituted(slices: Slices, values: Mapping[str, Affine]) -> Slices:
    def boxed(boxes: Mapping[str, Box]) -> dict[str, Box]:
        return {
            name: tuple(Span(s.start.substitute(dict(values)), s.extent) for s in box)
            for name, box in boxes.items()
        }

    return Slices(
        boxed(slices.boxes), boxed(slices.domains), slices.recompute, slices.extra_points,
        boxed(slices.shares),
    )  # fmt: skip


def _joined(
    whole: Sequence[int], outer: Box | None, pieces: Sequence[Box], instance: str
) -> Box | None:
    """The part of a box that both the instance and every share leave; None if they mix."""
    spans: list[Span] = []
    for dim, extent in enumerate(whole):
        full = Span(Affine(), extent)
        around = full if outer is None else outer[dim]
        inner = [box[dim] for box in pieces if box[dim] != full]
        moving = [s for s in inner if s.start.variables()]
        if not moving:
            fixed = dict.fromkeys(s for s in (around, *inner) if s != full)
            if len(fixed) > 1:
                return None
            spans.append(next(iter(fixed), full))
            continue
        names = moving[0].start.variables()
        if len(moving) > 1 or (instance not in names and around != full):
            return None
        spans.append(moving[0])
    return tuple(spans)
