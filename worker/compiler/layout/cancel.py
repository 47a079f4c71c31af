"""Remove copies that layouts have made pointless.

Two kinds: a copy whose source and result now lie in memory alike (a Transpose of the model against
the layout chosen behind it), and a conversion that undoes the conversion before it (two regions
laid out apart and joined).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from worker.compiler.ir.affine import Affine, Var
from worker.compiler.ir.footprint import full_box, write_is_injective
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.ir.scalar import Read
from worker.compiler.layout.rewrite import TRANSFORM


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A region without the pointless copies."""

    graph: Graph
    removed: tuple[str, ...]
    """Names of the operators that are gone."""


def is_whole_copy(op: TensorOp, tensors: Mapping[str, Tensor]) -> bool:
    """Whether an operator copies one tensor into another of the same shape, place by place."""
    if not _is_copy(op, tensors):
        return False
    source, target = tensors[op.reads[0].tensor], tensors[op.write.tensor]
    return (
        source.shape == target.shape
        and op.reads[0].index == op.write.index
        and op.num_points == target.num_elems
        and write_is_injective(op)
    )


def cancel_transforms(graph: Graph, copies: Collection[str]) -> Cancelled:
    """Drop whole copies among the operators named in `copies`, and inverse pairs of conversions.

    Results keep their names: a copy into a region output passes the name on to its source.
    Cost: linear in the region.
    """
    return _Canceller(graph, frozenset(copies)).run()


def _is_copy(op: TensorOp, tensors: Mapping[str, Tensor]) -> bool:
    if len(op.reads) != 1 or op.body != Read(0) or op.reduce is not None:
        return False
    if op.domain != op.parallel_axes or op.reads[0].fill is not None or op.has_lookup:
        return False
    return tensors[op.reads[0].tensor].dtype is tensors[op.write.tensor].dtype


class _Canceller:
    def __init__(self, graph: Graph, copies: frozenset[str]) -> None:
        self._graph = graph
        self._copies = copies
        self._now: dict[str, str] = {}
        """Tensors that are gone, and what holds their value instead."""
        self._writers: dict[str, list[TensorOp]] = {}
        for op in graph.ops:
            name = op.write.tensor
            self._writers.setdefault(name, []).append(op)

    def run(self) -> Cancelled:
        graph = self._graph
        removed: list[str] = []
        kept: list[TensorOp] = []
        for op in graph.ops:
            source = self._source(op)
            if source is not None and self._pass_on(source, op.write.tensor):
                removed.append(op.name)
            else:
                kept.append(op)
        kept = [self._renamed(op) for op in kept]
        # A conversion that only its removed inverse read is of no use any more.
        gone = frozenset(removed)
        read = {name for op in kept for name in op.input_names()} | set(graph.outputs)
        inverted = {name for op in graph.ops if op.name in gone for name in op.input_names()}
        unread = [
            op.name
            for op in kept
            if _is_transform(op) and op.write.tensor in inverted and op.write.tensor not in read
        ]
        removed += unread
        kept = [op for op in kept if op.name not in unread]
        if not removed:
            return Cancelled(graph, ())
        return Cancelled(self._rebuilt(tuple(kept)), tuple(removed))

    def _source(self, op: TensorOp) -> str | None:
        """The tensor that already holds what a copy writes, if there is one."""
        if len(self._writers[op.write.tensor]) > 1:
            return None
        tensors = self._graph.tensors
        if op.name in self._copies and is_whole_copy(op, tensors):
            return op.reads[0].tensor
        if not _is_transform(op) or not _is_copy(op, tensors):
            return None
        (before, *more) = self._writers.get(op.reads[0].tensor, [None])
        if more or before is None or not _is_transform(before):
            return None
        source = before.reads[0].tensor
        if tensors[source].shape != tensors[op.write.tensor].shape or not _undoes(
            before, op, tensors
        ):
            return None
        return source

    def _pass_on(self, source: str, target: str) -> bool:
        """Let one tensor stand for both; False when both names must stay."""
        graph = self._graph
        source = self._resolved(source)
        pinned = {*graph.inputs, *graph.outputs, *graph.constants}
        if target not in pinned:
            self._now[target] = source
            return True
        if source in pinned:
            return False
        self._now[source] = target
        return True

    def _resolved(self, name: str) -> str:
        while name in self._now:
            name = self._now[name]
        return name

    def _renamed(self, op: TensorOp) -> TensorOp:
        def access(old: Access) -> Access:
            return Access(self._resolved(old.tensor), old.index, old.fill)

        return replace(op, reads=tuple(map(access, op.reads)), write=access(op.write))

    def _rebuilt(self, ops: tuple[TensorOp, ...]) -> Graph:
        graph = self._graph
        used = {n for op in ops for n in (*op.input_names(), op.write.tensor)}
        used.update(graph.inputs, graph.outputs)
        return Graph.build(
            ops,
            tuple(t for t in graph.tensors.values() if t.name in used),
            graph.inputs,
            graph.outputs,
            tuple(n for n in graph.constants if n in used),
        )


def _is_transform(op: TensorOp) -> bool:
    return op.origin.op_type == TRANSFORM


def _undoes(first: TensorOp, second: TensorOp, tensors: Mapping[str, Tensor]) -> bool:
    """Whether `second` writes back exactly what `first` read, at the same places.

    Inverts the first one's write (each axis is a digit of one index), then follows an element of
    the tensor between them from the second one's read to the first one's read.
    """
    whole = tensors[second.write.tensor].num_elems
    if first.num_points != whole or second.num_points != whole:
        return False
    box = full_box(second)
    values: dict[str, Affine] = {}
    for written, at in zip(first.write.index, second.reads[0].index, strict=True):
        if written.const:
            return False
        below = 1
        for atom, coeff in sorted(written.terms, key=lambda term: term[1]):
            if not isinstance(atom, Var) or coeff != below or atom.name in values:
                return False
            extent = first.axis(atom.name).extent
            below *= extent
            values[atom.name] = at.floordiv(coeff).within(box).mod(extent).within(box)
    if any(a.name not in values for a in first.domain):
        return False
    back = tuple(e.substitute(values).within(box) for e in first.reads[0].index)
    return back == second.write.index
