"""From a nest to a schedule tree."""

from __future__ import annotations

from worker.compiler.ir.op import Tensor, TensorOp
from worker.compiler.machine.machine import Engine
from worker.compiler.schedule.nodes import Compute, Init, Loop, Move, Node, Place, Seq, Span
from worker.compiler.strategies.naive.nest import Nest, Operand


def build_tree(
    op: TensorOp, out: Tensor, nest: Nest, engine: Engine, home: str, level: str
) -> Node:
    """Compute innermost; Places and Moves at their depths; the drain after the reduction."""
    box = tuple(Span(nest.start[a.name], nest.tile[a.name]) for a in op.domain)
    node: Node = Compute(op.name, box, engine.name)
    for depth in range(len(nest.loops), -1, -1):
        here = [o for o in nest.operands if o.depth == depth]
        if depth > nest.out_depth:
            node = _loaded(node, here, home, level)
        elif depth == nest.out_depth:
            node = _loaded(_drained(node, op, out, nest, home, level), here, home, level)
        else:
            node = _loaded(node, here, home, level)
        if depth:
            loop = nest.loops[depth - 1]
            node = Loop(loop.var, loop.trip, loop.kind, node, loop.core_stride)
    return node


def _drained(
    node: Node, op: TensorOp, out: Tensor, nest: Nest, home: str, level: str
) -> Node:
    store = Move(out.name, level, home, nest.out_box)
    dtype = None if nest.out_dtype is out.dtype else nest.out_dtype
    init = Init.IDENTITY if op.reduce is not None else Init.UNDEFINED
    return Place(out.name, level, nest.out_box, 1, Seq((node, store)), dtype, init)


def _loaded(node: Node, operands: list[Operand], home: str, level: str) -> Node:
    if not operands:
        return node
    moves = tuple(Move(o.tensor, home, level, o.box, o.fill) for o in operands)
    rest = node.parts if isinstance(node, Seq) else (node,)
    wrapped: Node = Seq((*moves, *rest))
    for operand in reversed(operands):
        wrapped = Place(operand.tensor, level, operand.box, operand.copies, wrapped)
    return wrapped
