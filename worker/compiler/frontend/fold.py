"""One forward sweep that knows every shape and constant so far: infer, then fold, node by node.

Exported graphs compute shapes at run time (Shape -> Gather -> Concat -> Reshape).  Once symbols are
bound these chains are constants, but a constant found here gives a shape there, which gives the
next constant.  Walking in topological order settles whole chains in one sweep.
"""

from __future__ import annotations

import numpy as np
import onnx_ir

from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.evaluate_node import Array, FoldBudget, evaluate_node, may_fold
from worker.compiler.frontend.rules.check import Checker
from worker.compiler.frontend.shapes import infer_node, is_static


def fold_constants(model: onnx_ir.Model, opset: int, checker: Checker, budget: FoldBudget) -> int:
    """Check, then fold what is constant and infer what is not; give the number of folded nodes.

    A node whose output is a graph output stays, with constant inputs, so that the output has a
    producer.  Results above the size limits of `evaluate_node`, or past `budget`, stay unfolded.

    Raises:
        ModelError: TW-MODEL-021 at a node that `checker` now knows enough of to refuse.
    """
    graph = model.graph
    folded = 0
    for node in list(graph):
        if not all(is_static(v) for v in node.outputs if v.name):
            infer_node(node, opset)
        checker.check_node(node, opset)
        _fix_cast_like(node)
        if any(v.is_graph_output() for v in node.outputs) or not may_fold(node):
            continue
        if node.op_type in ("Shape", "Size"):
            outputs = _measured(node)
        else:
            inputs = _constants(node)
            outputs = None if inputs is None else evaluate_node(node, inputs, opset, budget)
        if outputs is not None:
            _replace(graph, node, outputs)
            folded += 1
    return folded


def _fix_cast_like(node: onnx_ir.Node) -> None:
    """CastLike needs only the type of its second input: say it, so that constants fold."""
    if node.op_type != "CastLike" or node.domain != "" or node.inputs[1] is None:
        return
    dtype = node.inputs[1].dtype
    if dtype is not None:
        node.op_type = "Cast"
        node.resize_inputs(1)
        node.attributes["to"] = onnx_ir.AttrInt64("to", int(dtype))


def _measured(node: onnx_ir.Node) -> list[Array] | None:
    """Shape or Size of a value with a static shape, whether or not its content is known."""
    value = node.inputs[0]
    if value is None or not is_static(value) or value.shape is None:
        return None
    dims = np.array(value.shape.numpy(), dtype=np.int64)
    if node.op_type == "Size":
        return [np.array(int(np.prod(dims)), dtype=np.int64)]
    start, end = node.attributes.get("start"), node.attributes.get("end")
    low = start.as_int() if start is not None else 0
    return [dims[low : end.as_int() if end is not None else None]]


def _constants(node: onnx_ir.Node) -> list[Array | None] | None:
    """The node's inputs as arrays when all are constant (absent ones as None), else None."""
    tensors = []
    for value in node.inputs:
        tensor = None if value is None else constant_of(value)
        if value is not None and tensor is None:
            return None
        tensors.append(tensor)
    if any(t is not None and t.dtype == onnx_ir.DataType.STRING for t in tensors):
        return None
    return [None if t is None else np.asarray(t.numpy()) for t in tensors]


def _replace(graph: onnx_ir.Graph, node: onnx_ir.Node, outputs: list[Array]) -> None:
    """Put constants under the names of the node's outputs; remove the node."""
    made: list[onnx_ir.Value] = []
    for old, array in zip(node.outputs, outputs, strict=False):
        if not old.name:
            continue
        kind = old.dtype if old.dtype is not None and old.dtype.numpy() == array.dtype else None
        tensor = onnx_ir.tensor(
            np.ascontiguousarray(array).reshape(array.shape), dtype=kind, name=old.name
        )
        new = onnx_ir.Value(
            name=old.name,
            shape=onnx_ir.Shape(array.shape),
            type=onnx_ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        old.replace_all_uses_with(new)
        made.append(new)
    graph.remove(node, safe=True)
    for new in made:
        graph.register_initializer(new)
