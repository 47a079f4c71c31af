"""Sub-graphs: cutting one out, convexity, and operators that only rename memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from worker.compiler.ir.affine import Affine
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.ir.footprint import full_box
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Tensor, TensorOp
from worker.compiler.ir.scalar import Read


@dataclass(frozen=True, slots=True)
class Cuts:
    """A graph indexed once, so that cutting a piece out costs the size of the piece only."""

    graph: Graph
    position: Mapping[str, int]
    """Of each operator in graph order, by name."""
    readers: Mapping[str, tuple[str, ...]]
    """Names of the operators that read each tensor."""
    constants: frozenset[str]
    outputs: frozenset[str]

    @staticmethod
    def of(graph: Graph) -> Cuts:
        """Index `graph`.  Cost: linear."""
        readers: dict[str, list[str]] = {}
        for op in graph.ops:
            for name in op.input_names():
                readers.setdefault(name, []).append(op.name)
        return Cuts(
            graph,
            {op.name: k for k, op in enumerate(graph.ops)},
            {name: tuple(ops) for name, ops in readers.items()},
            frozenset(graph.constants),
            frozenset(graph.outputs),
        )

    def op(self, name: str) -> TensorOp:
        """The operator called `name`; KeyError if there is none."""
        return self.graph.ops[self.position[name]]

    def piece(self, op_names: Sequence[str]) -> Graph:
        """The graph of the named operators alone, in graph order.

        Inputs: tensors they read that nothing inside writes (constants stay constants), in order
        of first use.  Outputs: tensors they write that are read outside or are graph outputs, in
        order of first write.  Cost: linear in the piece and the readers of what it writes.
        """
        graph = self.graph
        chosen = set(op_names)
        inside = tuple(graph.ops[k] for k in sorted(self.position[name] for name in chosen))
        made = dict.fromkeys(op.write.tensor for op in inside)
        read = dict.fromkeys(name for op in inside for name in op.input_names() if name not in made)

        def leaves(name: str) -> bool:
            return name in self.outputs or not chosen.issuperset(self.readers.get(name, ()))

        return Graph.build(
            inside,
            tuple(graph.tensors[n] for n in (*read, *made)),
            tuple(n for n in read if n not in self.constants),
            tuple(n for n in made if leaves(n)),
            tuple(n for n in read if n in self.constants),
        )


def predecessors(ops: Sequence[TensorOp]) -> list[int]:
    """For each operator, the bitset of operators whose values it reads directly."""
    writers: dict[str, int] = {}
    result: list[int] = []
    for k, op in enumerate(ops):
        bits = 0
        for name in op.input_names():
            bits |= writers.get(name, 0)
        result.append(bits)
        name = op.write.tensor
        writers[name] = writers.get(name, 0) | (1 << k)
    return result


def is_convex(direct: Sequence[int], chosen: int) -> bool:
    """True when no path leaves the chosen set (a bitset) and comes back.

    `direct` is `predecessors`' result in topological order.  Cost: one pass with integer bitsets.
    """
    tainted = 0
    for k, bits in enumerate(direct):
        is_in = chosen >> k & 1
        if is_in and bits & tainted:
            return False
        if not is_in and bits & (chosen | tainted):
            tainted |= 1 << k
    return True


def _flat(index: tuple[Affine, ...], shape: tuple[int, ...]) -> Affine:
    total = Affine()
    for expr, extent in zip(index, shape, strict=True):
        total = total * extent + expr
    return total


def is_view(op: TensorOp, tensors: Mapping[str, Tensor]) -> bool:
    """True when `op` copies a whole tensor without changing type or row-major order.

    Such an operator (reshape, squeeze, identity, ...) needs no kernel: its result can live at its
    operand's address.  Decided from the access maps alone: equal element counts, a plain `Read`
    body, and equal row-major flat indices of read and write.
    """
    if op.reduce is not None or len(op.reads) != 1:
        return False
    if op.body != Read(0) or op.domain != op.parallel_axes:
        return False
    source, target = tensors[op.reads[0].tensor], tensors[op.write.tensor]
    if source.dtype is not target.dtype or source.num_elems != target.num_elems:
        return False
    if op.num_points != target.num_elems or op.reads[0].fill is not None:
        return False
    if any(e.has_lookup for e in op.reads[0].index):
        return False
    box = full_box(op)
    read = _flat(op.reads[0].index, source.shape)
    write = _flat(op.write.index, target.shape)
    if read == write or read.within(box) == write.within(box):
        return True
    return _equal_on_domain(read, write, op)


_MAX_ENUMERATED_POINTS = 1 << 22


def _equal_on_domain(left: Affine, right: Affine, op: TensorOp) -> bool:
    """Compare two expressions at every point (False for domains too large to enumerate).

    A corner check first makes the common refusal (a real transpose) cheap.
    """
    last = {a.name: a.extent - 1 for a in op.domain}
    for axis in op.domain:
        corner = {**dict.fromkeys(last, 0), axis.name: min(1, last[axis.name])}
        if left.evaluate(corner) != right.evaluate(corner):
            return False
    if op.num_points > _MAX_ENUMERATED_POINTS:
        return False
    grid = np.indices(tuple(a.extent for a in op.domain), sparse=True)
    coords = {a.name: grid[k] for k, a in enumerate(op.domain)}
    return bool(np.all(affine_values(left, coords) == affine_values(right, coords)))
