"""Operators of ONNX Runtime's own domain: known by its schemas, typed by its inference.

They stay on the host, which has their kernels, unless `expand_qlinear` can say them otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import onnx
import onnx_ir

from worker.compiler.errors import ModelError
from worker.compiler.frontend.edit import constant_of

MICROSOFT = "com.microsoft"
_SMALL_ELEMENTS = 1024
"""Constants up to this size may decide shapes, so the inference is shown their values."""
_NO_KERNEL = re.compile("NOT_IMPLEMENTED|Could not find an implementation")
_ELEMENT = re.compile(r"tensor\((.+)\)")
_TYPES: Mapping[str, onnx_ir.DataType] = {
    "float": onnx_ir.DataType.FLOAT, "double": onnx_ir.DataType.DOUBLE,
    "float16": onnx_ir.DataType.FLOAT16, "bfloat16": onnx_ir.DataType.BFLOAT16,
    "int64": onnx_ir.DataType.INT64, "int32": onnx_ir.DataType.INT32,
    "int16": onnx_ir.DataType.INT16, "int8": onnx_ir.DataType.INT8,
    "uint64": onnx_ir.DataType.UINT64, "uint32": onnx_ir.DataType.UINT32,
    "uint16": onnx_ir.DataType.UINT16, "uint8": onnx_ir.DataType.UINT8,
    "bool": onnx_ir.DataType.BOOL,
}  # fmt: skip
"""ONNX Runtime's names of element types."""


@cache
def known_contrib_ops() -> frozenset[str]:
    """Operators that the installed ONNX Runtime defines in its own domain."""
    from onnxruntime.capi import onnxruntime_pybind11_state as binding

    schemas: Any = binding.get_all_operator_schema()
    return frozenset(s.name for s in schemas if s.domain == MICROSOFT)


def infer_contrib(node: onnx_ir.Node, opset: int) -> None:
    """Type and shape the outputs of one node, once its inputs are known.

    Raises:
        ModelError: TW-UNSUP-002, no kernel of the operator runs on a CPU.

    Cost: a session of one node (about a millisecond).
    """
    graph = onnx.GraphProto(name="one")
    for value in {v.name: v for v in node.inputs if v is not None and v.name}.values():
        if value.type is None or value.shape is None:
            return
        tensor = constant_of(value)
        if tensor is not None and tensor.size <= _SMALL_ELEMENTS:
            onnx_ir.serde.serialize_tensor_into(graph.initializer.add(), tensor)
            graph.initializer[-1].name = value.name or ""
        else:
            graph.input.add().CopyFrom(onnx_ir.serde.serialize_value(value))
    graph.node.add().CopyFrom(onnx_ir.serde.serialize_node(node))
    graph.output.extend(onnx.ValueInfoProto(name=v.name) for v in node.outputs if v.name)
    imports = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid(MICROSOFT, 1)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    found = _inferred(model, node)
    for value in node.outputs:
        kind, dims = found.get(value.name or "", (None, None))
        if value.type is None and kind is not None:
            value.type = onnx_ir.TensorType(kind)
        if value.shape is None and dims is not None:
            value.shape = onnx_ir.Shape(dims)


def _inferred(
    model: onnx.ModelProto, node: onnx_ir.Node
) -> dict[str, tuple[onnx_ir.DataType | None, list[int | str | None] | None]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime raises its own types from C++
        text = " ".join(str(error).split())
        if _NO_KERNEL.search(text):
            raise ModelError(
                "TW-UNSUP-002",
                f"{node.op_type} of {MICROSOFT} has no kernel for a CPU: {text[:300]}",
                node=node.name,
            ) from None
        return {}  # the run-time says what is wrong with it, at this node
    found: dict[str, tuple[onnx_ir.DataType | None, list[int | str | None] | None]] = {}
    for output in session.get_outputs():
        element = _ELEMENT.fullmatch(output.type)
        kind = None if element is None else _TYPES.get(element[1])
        found[output.name] = (kind, list(output.shape))
    return found
