"""The schedule tree that directives say."""

from __future__ import annotations

from dataclasses import dataclass

from worker.compiler.export.derive import dims_of, operand_of
from worker.compiler.export.directives.notation import Directives, refuse
from worker.compiler.export.directives.read import Mapping, mapping_of
from worker.compiler.export.nest import Dim, Hold, NoForm, Operand
from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import (
    Box,
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Node,
    Place,
    Seq,
    Span,
)


def tree_of(directives: Directives, graph: Graph, machine: Machine) -> Node:
    """The tree of a unit of one operator.

    Whether the machine can run it is for `schedule.verify` and lowering to say: room, reach, units.

    Raises:
        InputError: TW-DIRECTIVE-001, as `mapping_of`; or the unit has several operators, or one
            whose indices no directive says.
    """
    if len(graph.ops) != 1:
        names = ", ".join(op.name for op in graph.ops)
        refuse(None, f"layer {directives.op}", f"the kernel runs several operators: {names}")
    (op,) = graph.ops
    if directives.op != op.name:
        refuse(None, f"layer {directives.op}", f"the kernel's operator is {op.name}")
    dims = dims_of(op)
    operands: list[Operand] = []
    for access in (*op.reads, op.write):
        operand = operand_of(access, dims, graph.tensors[access.tensor])
        if isinstance(operand, NoForm):
            refuse(None, f"layer {op.name}", operand.message)
        operands.append(operand)
    mapping = mapping_of(directives, dims, operands, machine)
    return _Writer(mapping, op, dims, tuple(operands), graph).inside(0)


@dataclass(frozen=True, slots=True)
class _Writer:
    mapping: Mapping
    op: TensorOp
    dims: tuple[Dim, ...]
    operands: tuple[Operand, ...]
    graph: Graph

    def inside(self, depth: int) -> Node:
        """What stands inside of the first `depth` loops: buffers, then what is left."""
        mapping = self.mapping
        node: Node
        if depth < len(mapping.loops):
            loop = mapping.loops[depth]
            kind = LoopKind.CORES if loop.is_spatial else LoopKind.TIME
            node = Loop(self._var(depth), loop.trip, kind, self.inside(depth + 1), loop.stride)
        else:
            node = self._compute()
        for hold in reversed([hold for hold in mapping.holds if hold.depth == depth]):
            node = self._placed(hold, node)
        return node

    def _var(self, number: int) -> str:
        loop = self.mapping.loops[number]
        return f"{'c' if loop.is_spatial else 't'}{number}_{self.dims[loop.dim].name}"

    def _starts(self, depth: int) -> list[Affine]:
        starts = [Affine()] * len(self.dims)
        for k in range(depth):
            dim = self.mapping.loops[k].dim
            starts[dim] = starts[dim] + var(self._var(k)) * self.mapping.steps[k]
        return starts

    def _compute(self) -> Compute:
        starts = self._starts(len(self.mapping.loops))
        spans = {
            dim.name: Span(start, size)
            for dim, start, size in zip(self.dims, starts, self.mapping.tile, strict=True)
        }
        box = tuple(spans.get(axis.name, Span(Affine(), 1)) for axis in self.op.domain)
        return Compute(self.op.name, box, self.mapping.engine.name)

    def _placed(self, hold: Hold, inner: Node) -> Place:
        operand = self.operands[hold.operand]
        starts = self._starts(hold.depth)
        box: Box = tuple(
            Span(sum((starts[d] * c for d, c in terms), Affine((), offset)), extent)
            for terms, offset, extent in zip(
                operand.index, operand.offsets, hold.extents, strict=True
            )
        )
        parts: tuple[Node, ...] = inner.parts if isinstance(inner, Seq) else (inner,)
        is_result = hold.operand == len(self.operands) - 1
        init = Init.UNDEFINED
        if not is_result:
            fill = self.op.reads[hold.operand].fill
            parts = (Move(operand.tensor, hold.source, hold.memory, box, fill), *parts)
        else:
            parts = (*parts, Move(operand.tensor, hold.memory, hold.source, box))
            if hold.is_read_back:
                parts = (Move(operand.tensor, hold.source, hold.memory, box), *parts)
            elif self.op.reduce is not None:
                init = Init.IDENTITY
        stored = self.graph.tensors[operand.tensor].dtype
        wide = None if hold.dtype is stored else hold.dtype
        return Place(operand.tensor, hold.memory, box, hold.copies, Seq(parts), wide, init)
