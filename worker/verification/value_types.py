"""Types of a model's values, without its weights."""

from __future__ import annotations

import onnx

LOW = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
"""Floats of 16 and 32 bits."""


class Untyped(Exception):
    """ONNX infers no types for a model; the text says why."""


def inferred(model: onnx.ModelProto) -> onnx.GraphProto:
    """The graph of a model without its large weights, with all types that ONNX infers.

    Raises:
        Untyped: its inference fails.
    """
    try:
        return onnx.shape_inference.infer_shapes(without_weights(model)).graph
    except MemoryError:  # says nothing of the model
        raise
    except Exception as error:  # its C++ raises types of its own
        text = " ".join(str(error).split())[:200]
        raise Untyped(f"shape inference fails: {text}") from error


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """What shape inference needs: large weights only by type and shape."""
    bare = onnx.ModelProto(ir_version=model.ir_version)
    bare.opset_import.extend(model.opset_import)
    bare.graph.name = model.graph.name
    bare.graph.node.extend(model.graph.node)
    bare.graph.input.extend(model.graph.input)
    bare.graph.output.extend(model.graph.output)
    bare.graph.value_info.extend(model.graph.value_info)
    given = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.data_type in LOW:
            if tensor.name not in given:
                bare.graph.input.add().CopyFrom(_described(tensor))
        else:
            bare.graph.initializer.append(tensor)
    return bare


def _described(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    described = onnx.ValueInfoProto(name=tensor.name)
    described.type.tensor_type.elem_type = tensor.data_type
    described.type.tensor_type.shape.SetInParent()
    for size in tensor.dims:
        described.type.tensor_type.shape.dim.add(dim_value=size)
    return described


def types_of(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """What a graph, after inference, says of its values and weights."""
    found = {tensor.name: _described(tensor).type for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.HasField("type"):
            found[value.name] = value.type
    return found


def tensor_type(kind: onnx.TypeProto | None) -> int:
    """Element type of a tensor; 0 when it is none, or not known."""
    if kind is None or not kind.HasField("tensor_type"):
        return 0
    return int(kind.tensor_type.elem_type)
