"""What kind of reduction an operator is."""

from __future__ import annotations

from worker.compiler.ir.affine import var
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.scalar import Read


def is_second_stage(op: TensorOp, graph: Graph) -> bool:
    """Whether an operator only reduces further what another has reduced per row."""
    if op.reduce is None or op.body != Read(0):
        return False
    rows = op.reduce_axes
    if len(op.reads) != 1 or len(rows) != 1:
        return False
    source, index = op.reads[0].tensor, op.reads[0].index
    if index != (var(rows[0].name), *op.write.index):
        return False
    makers = [other for other in graph.ops if source == other.write.tensor]
    return len(makers) == 1 and makers[0].reduce is op.reduce
