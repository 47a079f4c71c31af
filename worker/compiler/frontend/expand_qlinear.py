"""The QLinear operators of ONNX Runtime's domain, as what they compute: DQ, an operator, Q.

In this form they are clusters that accelerators take, and hosts run them as before.
Source: ONNX Runtime, contributed operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir

_BINARY = {"QLinearAdd": "Add", "QLinearMul": "Mul"}
_UNARY = {
    "QLinearSigmoid": ("Sigmoid", ()),
    "QLinearLeakyRelu": ("LeakyRelu", ("alpha",)),
    "QLinearSoftmax": ("Softmax", ("axis",)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", ()),
    "QLinearAveragePool": (
        "AveragePool",
        ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"),
    ),
}
"""Operator -> (ONNX's, attributes that both have)."""
QLINEAR = frozenset({*_BINARY, *_UNARY, "QLinearWhere", "QLinearConcat"})
_SOFTMAX_PER_AXIS = 13
"""Opset from which Softmax works along one axis."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """Which inputs are what: every quantised operand is three in a row."""

    plain: tuple[int, ...]
    operands: tuple[int, ...]
    result: int
    """Position of the result's scale; its zero point follows."""


def _parts(node: onnx_ir.Node) -> _Parts:
    if node.op_type in _BINARY:
        return _Parts((), (0, 3), 6)
    if node.op_type == "QLinearWhere":
        return _Parts((0,), (1, 4), 7)
    if node.op_type == "QLinearConcat":
        return _Parts((), tuple(range(2, len(node.inputs), 3)), 0)
    return _Parts((), (0,), 3)


def qlinear_body(node: onnx_ir.Node, opset: int) -> onnx_ir.Model | None:
    """The body of one call, whose inputs are the node's; None where it has another meaning.

    Expanded are calls with all zero points, in ONNX's layout.
    """
    present = all(v is not None and v.name for v in node.inputs)
    if not present or len(node.inputs) % 3 != (0 if node.op_type == "QLinearWhere" else 2):
        return None
    attributes = {a.name: a for a in onnx_ir.serde.serialize_node(node).attribute}
    if "channels_last" in attributes and attributes["channels_last"].i:
        return None
    if node.op_type == "QLinearSoftmax" and attributes["opset"].i < _SOFTMAX_PER_AXIS:
        return None
    parts = _parts(node)
    names = [f"in{k}" for k in range(len(node.inputs))]
    graph = onnx.GraphProto(name=node.op_type)
    for name, value in zip(names, node.inputs, strict=True):
        if value is None or value.type is None or value.shape is None:
            return None
        graph.input.add(name=name).type.CopyFrom(onnx_ir.serde.serialize_value(value).type)
    floats = []
    for k in parts.operands:
        graph.node.add().CopyFrom(
            onnx.helper.make_node("DequantizeLinear", names[k : k + 3], [f"float{k}"])
        )
        floats.append(f"float{k}")
    core = _core(node, [*(names[k] for k in parts.plain), *floats], attributes)
    graph.node.add().CopyFrom(core)
    scales = names[parts.result : parts.result + 2]
    graph.node.add().CopyFrom(onnx.helper.make_node("QuantizeLinear", ["result", *scales], ["out"]))
    graph.output.add(name="out")
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    return onnx_ir.serde.deserialize_model(model)


def _core(
    node: onnx_ir.Node, inputs: Sequence[str], given: dict[str, onnx.AttributeProto]
) -> onnx.NodeProto:
    """The operator in floats."""
    if node.op_type in _UNARY:
        op_type, kept = _UNARY[node.op_type]
    elif node.op_type == "QLinearConcat":
        op_type, kept = "Concat", ("axis",)
    else:
        op_type, kept = _BINARY.get(node.op_type, "Where"), ()
    made = onnx.helper.make_node(op_type, list(inputs), ["result"])
    made.attribute.extend(given[name] for name in kept if name in given)
    return made
