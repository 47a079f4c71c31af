"""graph.json: the simplified model's nodes, edges and tensors, for what must not load ONNX.

Two models are compared by it, so it tells everything that a node is but the values of weights, of
which it has digests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from hashlib import sha256

import onnx_ir

from worker.compiler.errors import Detail
from worker.compiler.frontend.model_summary import model_summary, node_macs
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.package.executable import HomeTensor
from worker.compiler.package.weights import stored_bytes

GRAPH_VERSION = 2
"""1 had neither `attributes` nor `tensors`."""


def graph_document(compiled: CompiledModel) -> dict[str, Detail]:
    """Give the model's summary, one row per node in topological order, and every tensor by name.

    Cost: one pass over the bytes of the weights.
    """
    targets = {row.node: str(row.target) for row in compiled.placement}
    rows: list[Detail] = []
    tensors: dict[str, Detail] = {}
    constants = compiled.model.ir.graph.initializers
    for node in compiled.model.ir.graph:
        name = node.name or ""
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.name and value.name not in tensors:
                held = constants[value.name].const_value if value.name in constants else None
                tensors[value.name] = _typed(value) if held is None else _stored(held)
        rows.append(
            {
                "name": name,
                "op_type": node.op_type,
                "inputs": [value.name if value is not None else "" for value in node.inputs],
                "outputs": [value.name for value in node.outputs],
                "attributes": {
                    attribute.name: _attribute(attribute) for attribute in node.attributes.values()
                },
                "macs": node_macs(node),
                "target": targets.get(name),
            }
        )
    compiled.model.release_pages()
    return {
        "schema_version": GRAPH_VERSION,
        "summary": model_summary(compiled.model),
        "nodes": rows,
        "tensors": tensors,
    }


def _typed(value: onnx_ir.Value) -> dict[str, Detail]:
    """A value that is computed; what is not known before it runs is null."""
    dims: list[Detail] | None = None
    if value.shape is not None:
        dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    return {"dtype": None if value.dtype is None else _dtype(value.dtype), "shape": dims}


def _stored(tensor: onnx_ir.TensorProtocol) -> dict[str, Detail]:
    """A constant: also the digest of its bytes, row-major and little-endian."""
    shape = tuple(int(dim) for dim in tensor.shape.numpy())
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:  # text
        data = memoryview(repr(tensor.numpy().tolist()).encode())
    else:
        home = HomeTensor("", str(dtype), shape, 0, math.prod(shape) * dtype.size_bytes)
        data = stored_bytes(home, tensor.numpy())
    return {
        "dtype": _dtype(tensor.dtype),
        "shape": list[Detail](shape),
        "sha256": sha256(data).hexdigest(),
    }


def _dtype(kind: onnx_ir.DataType) -> str:
    known = DTYPES.get(kind)
    return kind.name.lower() if known is None else str(known)


def _attribute(attribute: onnx_ir.Attr) -> Detail:
    """Its value; floats that JSON has no number for as text, graphs by their digest."""
    kind = onnx_ir.AttributeType(attribute.type)
    match kind:
        case onnx_ir.AttributeType.INT:
            return attribute.as_int()
        case onnx_ir.AttributeType.FLOAT:
            return _number(attribute.as_float())
        case onnx_ir.AttributeType.STRING:
            return attribute.as_string()
        case onnx_ir.AttributeType.INTS:
            return list[Detail](attribute.as_ints())
        case onnx_ir.AttributeType.FLOATS:
            return [_number(value) for value in attribute.as_floats()]
        case onnx_ir.AttributeType.STRINGS:
            return list[Detail](attribute.as_strings())
        case onnx_ir.AttributeType.TENSOR:
            return _stored(attribute.as_tensor())
        case onnx_ir.AttributeType.GRAPH:
            return _digest(_body(attribute.as_graph()))
        case onnx_ir.AttributeType.GRAPHS:
            return _digest([_body(graph) for graph in attribute.as_graphs()])
        case _:  # types and sparse tensors: what they print has no names
            return _digest(str(attribute.value))


def _digest(told: Detail) -> Detail:
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return {"sha256": sha256(text.encode()).hexdigest()}


def _body(graph: onnx_ir.Graph) -> Detail:
    """A nested graph without its names: values are numbered as they are met."""
    numbers: dict[str, int] = {}

    def numbered(values: Iterable[onnx_ir.Value | None]) -> list[Detail]:
        return [
            numbers.setdefault(value.name, len(numbers)) if value is not None and value.name else -1
            for value in values
        ]

    inputs = [[number, _typed(value)] for number, value in
              zip(numbered(graph.inputs), graph.inputs, strict=True)]  # fmt: skip
    nodes: list[Detail] = [
        [
            node.op_type, numbered(node.inputs), numbered(node.outputs),
            {each.name: _attribute(each) for each in node.attributes.values()},
        ]
        for node in graph
    ]  # fmt: skip
    constants: list[Detail] = [
        [numbers[name], _stored(value.const_value)]
        for name, value in graph.initializers.items()
        if value.const_value is not None and name in numbers
    ]
    return {
        "inputs": list[Detail](inputs),
        "nodes": nodes,
        "constants": sorted(constants, key=str),
        "outputs": numbered(graph.outputs),
    }


def _number(value: float) -> Detail:
    return float(value) if math.isfinite(value) else str(float(value))
