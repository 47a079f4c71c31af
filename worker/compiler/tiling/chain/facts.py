"""A row chain as its cuts see it: operators, slices, what leaves, and which axes run alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Tensor, TensorOp
from worker.compiler.schedule.nodes import Box, Span


@dataclass(frozen=True, slots=True)
class Chain:
    """The operators of a chain with what surrounds them."""

    ops: tuple[TensorOp, ...]
    tensors: Mapping[str, Tensor]
    slices: Mapping[str, Box]
    """Per operator the slice of its domain that this instance computes."""
    leaving: tuple[str, ...]
    """Results that are used outside, in order of writing."""
    aligned: Mapping[tuple[str, str], str]
    """(operator, axis) -> axis of the anchor that it runs along."""

    @property
    def anchor(self) -> TensorOp:
        return self.ops[-1]

    @property
    def made(self) -> frozenset[str]:
        return frozenset(op.write.tensor for op in self.ops)

    def slice_of(self, op: TensorOp, axis: str) -> Span:
        """The part of one axis that this instance computes."""
        names = [a.name for a in op.domain]
        return self.slices[op.name][names.index(axis)]

    def overlaps(self, op: TensorOp) -> bool:
        """True when neighbouring instances of the caller's loops compute some points twice."""
        return any(
            coeff and abs(coeff) < span.extent
            for span in self.slices[op.name]
            for coeff in (span.start.coeff(name) for name in span.start.variables())
        )

    def is_whole(self, op: TensorOp, axis: str) -> bool:
        """True when the slice is the whole axis, so that boxes may overhang its end."""
        span = self.slice_of(op, axis)
        return span.start == Affine() and span.extent == op.axis(axis).extent


def chain_of(graph: Graph, ops: Sequence[TensorOp], slices: Mapping[str, Box] | None) -> Chain:
    """Collect a chain; without `slices` every operator computes its whole domain."""
    inside = {op.name for op in ops}
    used = {name for op in graph.ops if op.name not in inside for name in op.input_names()}
    made = dict.fromkeys(op.write.tensor for op in ops)
    leaving = tuple(name for name in made if name in used or name in graph.outputs)
    boxes = {
        op.name: (slices or {}).get(op.name)
        or tuple(Span(Affine(), axis.extent) for axis in op.domain)
        for op in ops
    }
    return Chain(tuple(ops), graph.tensors, boxes, leaving, _alignment(tuple(ops), graph.tensors))


def _alignment(
    ops: tuple[TensorOp, ...], tensors: Mapping[str, Tensor]
) -> Mapping[tuple[str, str], str]:
    """Axes that run along the same dimension of a result, starting from the anchor's axes.

    They have to start at the same place of it.
    """
    made = {op.write.tensor for op in ops}
    ports: list[tuple[tuple[str, str], tuple[str, int, int]]] = []
    for op in ops:
        for access in (op.write, *op.reads):
            if access.tensor not in made:
                continue
            for dim, expr in enumerate(access.index):
                names = expr.variables()
                if len(names) == 1 and expr.terms == var(names[0]).terms:
                    ports.append(((op.name, names[0]), (access.tensor, dim, expr.const)))
    anchor = ops[-1]
    axes = {(anchor.name, a.name): a.name for a in anchor.domain}
    dims: dict[tuple[str, int, int], str] = {}
    while True:
        before = len(axes) + len(dims)
        for axis, place in ports:
            if axis in axes:
                dims.setdefault(place, axes[axis])
            elif place in dims:
                axes[axis] = dims[place]
        if len(axes) + len(dims) == before:
            return axes
