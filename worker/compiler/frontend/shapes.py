"""Static shapes: inference over the whole model, and node by node where that gave up."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.defs
import onnx.shape_inference
import onnx_ir

from worker.compiler.frontend.contrib import MICROSOFT, infer_contrib
from worker.compiler.frontend.edit import constant_of, is_graph
from worker.compiler.frontend.inference_guard import complaints
from worker.compiler.frontend.propagation import may_propagate_in

_INFERENCE_ERRORS = (
    onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError, IndexError,
    KeyError, onnx.defs.SchemaError, onnx.checker.ValidationError,
)  # fmt: skip
_CONTAINERS = (onnx_ir.SequenceType, onnx_ir.OptionalType)
_CONTAINER_MAKERS = frozenset(
    {"SequenceEmpty", "SequenceConstruct", "SplitToSequence", "Optional", "SequenceMap"}
)
_SMALL_ELEMENTS = 1024
"""Constants up to this size may steer shapes, so inference is shown their values."""


def is_static(value: onnx_ir.Value) -> bool:
    """Whether every dimension of `value` is known."""
    return value.shape is not None and all(isinstance(d, int) for d in value.shape)


def infer_model(model: onnx_ir.Model) -> None:
    """Infer what can be inferred in one sweep, sub-graphs included, with data propagation.

    Cost: linear; big weights are not serialised.
    """
    import logging

    from onnx_ir.passes.common import ShapeInferencePass

    if any(node.op_type in _CONTAINER_MAKERS for node in model.graph.all_nodes()):
        _type_containers(model.graph, model.opset_imports.get("", 0))
    logging.getLogger("onnx_ir.passes.common.shape_inference").setLevel(logging.ERROR)
    graph = model.graph
    inputs = tuple(graph.inputs)
    constants = [(value, value.const_value) for value in graph.initializers.values()]
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=False)(model)
    if may_propagate_in(graph):
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    if tuple(graph.inputs) == inputs:
        return
    # Where a model cannot be serialised, the pass keeps the inputs that it made of initializers.
    graph.inputs.clear()
    graph.inputs.extend(inputs)
    for value, tensor in constants:
        value.const_value = tensor
        if tensor is not None:
            graph.register_initializer(value)


def _type_containers(graph: onnx_ir.Graph, opset: int) -> None:
    """Give values without a type theirs when it is a sequence or an optional.

    The pass above records element types only, and would make tensors of them.
    """
    for node in graph:
        inner = [a.as_graph() for a in node.attributes.values() if is_graph(a)]
        for each in inner:
            _type_containers(each, opset)
        if all(value.type is not None for value in node.outputs):
            continue
        if not inner:
            infer_node(node, opset)
            continue
        # a Loop hands on what it was given; an If what its branches give
        given = node.inputs[2:] if node.op_type == "Loop" else inner[0].outputs
        for value, source in zip(node.outputs, given, strict=False):
            kind = None if source is None else source.type
            if value.type is None and isinstance(kind, _CONTAINERS):
                value.type = kind


def inferred(node: onnx_ir.Node, opset: int) -> dict[str, Any]:
    """Types of one node's outputs by name, from what is known about its inputs now.

    Raises:
        InferenceError: what is known contradicts the operator's definition.
    """
    if node.domain != "" or any(
        a.type in (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS)
        for a in node.attributes.values()
    ):
        return {}
    types: dict[str, Any] = {}
    data: dict[str, Any] = {}
    for value in node.inputs:
        if value is None or not value.name:
            continue
        if value.type is None:
            return {}
        types[value.name] = onnx_ir.serde.serialize_value(value).type
        tensor = constant_of(value)
        is_number = tensor is not None and tensor.dtype != onnx_ir.DataType.STRING
        if is_number and tensor.size <= _SMALL_ELEMENTS:
            data[value.name] = onnx_ir.serde.serialize_tensor(tensor)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        with complaints() as of_slices:
            found: dict[str, Any] = onnx.shape_inference.infer_node_outputs(
                schema, onnx_ir.serde.serialize_node(node), types, data,
                opset_imports=[onnx.helper.make_opsetid("", opset)],
            )  # fmt: skip
        if of_slices:
            raise onnx.shape_inference.InferenceError(of_slices[0][1])
    except onnx.shape_inference.InferenceError:
        raise
    except _INFERENCE_ERRORS:
        return {}
    return found


def infer_node(node: onnx_ir.Node, opset: int) -> None:
    """Infer one node's outputs; where that fails they stay as they are.

    Raises:
        ModelError: TW-UNSUP-002, an operator of ONNX Runtime's domain without a kernel.
    """
    if node.domain == MICROSOFT:
        infer_contrib(node, opset)
        return
    try:
        found = inferred(node, opset)
    except onnx.shape_inference.InferenceError:
        return
    for value in node.outputs:
        proto = found.get(value.name or "")
        if proto is None:
            continue
        shape = onnx_ir.serde.deserialize_type_proto_for_shape(proto)
        kind = onnx_ir.serde.deserialize_type_proto_for_type(proto)
        if kind is not None and value.type is None:
            value.type = kind
        if shape is not None and (value.shape is None or not is_static(value)):
            value.shape = shape
