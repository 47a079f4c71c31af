"""Take a body graph out of its model: a stand-alone model of its own.

Inputs become the body's formal inputs and the outer values it reads; outer initializers become its
initializers (the same tensors: weights are not copied); every other name stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from worker.compiler.control.flow import Literal
from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.evaluate_node import FoldBudget, evaluate_node, may_fold
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.simplify import simplify

_LITERAL_LIMIT_BYTES = 1 << 16
"""Larger constant results are computed by the body's model, from its weights."""
INTERPRETED_TYPES = frozenset(
    {
        onnx_ir.DataType.FLOAT, onnx_ir.DataType.DOUBLE, onnx_ir.DataType.FLOAT16,
        onnx_ir.DataType.INT64, onnx_ir.DataType.INT32, onnx_ir.DataType.INT16,
        onnx_ir.DataType.INT8, onnx_ir.DataType.UINT64, onnx_ir.DataType.UINT32,
        onnx_ir.DataType.UINT16, onnx_ir.DataType.UINT8, onnx_ir.DataType.BOOL,
    }
)  # fmt: skip
"""Types whose numpy arrays pass between host and kernels unchanged."""

Dims: TypeAlias = "tuple[int | None, ...]"
"""A shape; None for a dimension that is not known."""
Given: TypeAlias = "tuple[onnx_ir.DataType | None, Dims | None]"
"""What is known of a formal input."""


@dataclass(frozen=True, slots=True)
class BodyModel:
    """A body as a model of its own."""

    model: OnnxModel
    formal: tuple[str, ...]
    captured: tuple[str, ...]
    """Outer values it reads, in order of first use; initializers excluded."""
    outputs: tuple[str, ...]
    """Per output of the body: a value the model computes, an input, or a literal."""
    result_types: tuple[onnx_ir.DataType | None, ...]
    """Parallel to `outputs`."""
    result_dims: tuple[Dims | None, ...]
    """Parallel to `outputs`; None when not even the rank is known."""
    literals: tuple[Literal, ...]
    declared_dims: tuple[Dims | None, ...]
    """Parallel to `outputs`: what the user's body says of them, which nobody has checked."""


def known_dims(value: onnx_ir.Value | None) -> Dims | None:
    """Dimensions of a value as far as they are known."""
    if value is None or value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else None for d in value.shape)


def literal(name: str, tensor: onnx_ir.TensorProtocol) -> Literal:
    """A constant as a literal; its type must be one of INTERPRETED_TYPES."""
    array = np.asarray(tensor.numpy())
    return Literal(name, array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes())


def extract_body(
    model: OnnxModel, graph: onnx_ir.Graph, given: Sequence[Given], is_simplified: bool = True
) -> BodyModel:
    """Copy `graph`, a body inside `model`, and simplify the copy for inputs of the given types.

    Shapes recorded inside the body are forgotten: they follow from the given ones.

    Raises:
        ModelError: as `simplify`; not when `is_simplified` is False.
    Cost: linear in the body.
    """
    copy = graph.clone(allow_outer_scope_values=True)
    declared = tuple(map(known_dims, copy.outputs))
    captured = _cut_loose(copy)
    for node in copy.all_nodes():
        for value in node.outputs:
            value.shape = None
    for value, (dtype, dims) in zip(copy.inputs, given, strict=True):
        if dtype is not None:
            value.type = onnx_ir.TensorType(dtype)
        value.shape = None if dims is None else onnx_ir.Shape(dims)
    formal = tuple(v.name or "" for v in copy.inputs)
    copy.inputs.extend(captured)
    copy.opset_imports.clear()
    copy.opset_imports.update(model.ir.opset_imports)
    body = OnnxModel(
        onnx_ir.Model(copy, ir_version=model.ir.ir_version), model.name, model.sha256, model.opset,
        model.mapped,
    )  # fmt: skip
    if is_simplified:
        body = simplify(body, is_certain=False)
    return _finished(body, formal, declared)


def _cut_loose(graph: onnx_ir.Graph) -> list[onnx_ir.Value]:
    """Replace every outer value by one of the graph's own; give those that must be fed."""
    graphs = [graph, *graph.subgraphs()]
    nodes = list(graph.all_nodes())
    own: set[onnx_ir.Value] = {v for node in nodes for v in node.outputs}
    for each in graphs:
        own.update(each.inputs)
        own.update(each.initializers.values())
    used = {v.name for v in own}
    mine: dict[onnx_ir.Value, onnx_ir.Value] = {}

    def local(outer: onnx_ir.Value) -> onnx_ir.Value:
        if outer not in mine:
            value = onnx_ir.Value(
                name=outer.name,
                type=outer.type,
                shape=outer.shape.copy() if outer.shape is not None else None,
                const_value=constant_of(outer),
            )
            mine[outer] = value
            if value.const_value is not None:
                if value.name in used:  # an outer name that an inner graph uses again
                    value.name = _fresh(f"{value.name}_outer", used)
                graph.register_initializer(value)
        return mine[outer]

    for node in nodes:
        for k, value in enumerate(node.inputs):
            if value is not None and value not in own:
                node.replace_input_with(k, local(value))
    for each in graphs:
        for k, value in enumerate(each.outputs):
            if value not in own:
                each.outputs[k] = local(value)
    return [v for v in mine.values() if v.const_value is None]


def _fresh(base: str, used: set[str | None]) -> str:
    name, count = base, 0
    while name in used:
        count += 1
        name = f"{base}_{count}"
    used.add(name)
    return name


def _finished(
    body: OnnxModel, formal: tuple[str, ...], declared: tuple[Dims | None, ...]
) -> BodyModel:
    """Make outputs that no node needs to compute literals or inputs; drop unread captures."""
    graph = body.ir.graph
    outputs: list[str] = []
    types: list[onnx_ir.DataType | None] = []
    dims: list[Dims | None] = []
    literals: dict[str, Literal] = {}
    kept: list[onnx_ir.Value] = []
    for value in list(graph.outputs):
        value = _behind_identities(value)
        tensor = _constant_result(value, body.opset)
        name = value.name or ""
        if tensor is not None and tensor.nbytes <= _LITERAL_LIMIT_BYTES:
            literals[name] = literal(name, tensor)
            types.append(tensor.dtype)
            dims.append(tuple(tensor.shape.numpy()))
        else:
            if value.producer() is None and not value.is_graph_input():
                value = _copied(graph, value)
                name = value.name or ""
            if value.producer() is not None and value not in kept:
                kept.append(value)
            types.append(value.dtype)
            dims.append(known_dims(value))
        outputs.append(name)
    graph.outputs.clear()
    graph.outputs.extend(kept)
    RemoveUnusedNodesPass()(body.ir)
    returned = set(outputs)
    for value in list(graph.inputs):
        if value.name not in formal and not _is_read(value) and value.name not in returned:
            graph.inputs.remove(value)
    captured = tuple(v.name or "" for v in graph.inputs if v.name not in formal)
    for value in list(graph.inputs):
        if not _is_read(value):
            graph.inputs.remove(value)
    return BodyModel(
        body, formal, captured, tuple(outputs), tuple(types), tuple(dims),
        tuple(literals.values()), declared,
    )  # fmt: skip


def _is_read(value: onnx_ir.Value) -> bool:
    return bool(value.uses())


def _behind_identities(value: onnx_ir.Value) -> onnx_ir.Value:
    """The value that a chain of Identity nodes hands on, if it is an input; else `value`."""
    source = value
    while True:
        node = source.producer()
        if node is None:
            return source
        if node.op_type != "Identity" or node.domain != "" or node.inputs[0] is None:
            return value
        source = node.inputs[0]


def _constant_result(value: onnx_ir.Value, opset: int) -> onnx_ir.TensorProtocol | None:
    """The tensor of an output that does not depend on the inputs, or None."""
    if value.dtype is not None and value.dtype not in INTERPRETED_TYPES:
        return None
    found: onnx_ir.TensorProtocol | None = constant_of(value)
    node = value.producer()
    if found is not None or node is None:
        return found
    if node.op_type == "Constant" and "value" in node.attributes:
        return node.attributes["value"].as_tensor()
    tensors = [constant_of(v) for v in node.inputs if v is not None]
    if not tensors or not may_fold(node) or any(t is None for t in tensors):
        return None
    inputs = [None if v is None else np.asarray(constant_of(v).numpy()) for v in node.inputs]
    arrays = evaluate_node(node, inputs, opset, FoldBudget.of_one_node())
    if arrays is None:
        return None
    array = np.asarray(arrays[value.index() or 0])
    if np.dtype(array.dtype).kind not in "biuf":
        return None
    return onnx_ir.tensor(array, name=value.name)


def _copied(graph: onnx_ir.Graph, value: onnx_ir.Value) -> onnx_ir.Value:
    """A large constant result, given by a node so that the body's model has it as an output."""
    names = {v.name for node in graph.all_nodes() for v in node.outputs}
    names.update(graph.initializers)
    node = onnx_ir.node("Identity", [value], name=f"{value.name}/result")
    (out,) = node.outputs
    out.name = _fresh(f"{value.name}_result", names)
    out.type, out.shape = value.type, value.shape
    graph.append(node)
    return out
