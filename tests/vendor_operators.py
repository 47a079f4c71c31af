"""Models with operators of a vendor's domain, and the same models without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx.parser
from onnx import helper, numpy_helper

DOMAIN = "com.acme"
CONV_RELU6 = """<domain: "com.acme", opset_import: ["" : 13]>
ConvRelu6 <strides, cap: float = 6.0> (x, w, b) => (y)
{
  zero = Constant <value_float: float = 0.0> ()
  top = Constant <value_float: float = @cap> ()
  c = Conv <strides: ints = @strides, pads: ints = [1, 1, 1, 1]> (x, w, b)
  y = Clip (c, zero, top)
}"""
GATE = """<domain: "com.acme", opset_import: ["" : 13, "com.acme" : 1]>
Gate <low: float = 0.0> (a, b) => (y)
{
  h = Relu (a)
  d = Sub (b, h)
  y = com.acme.Square <shift: float = @low> (d)
}"""
SQUARE = """<domain: "com.acme", opset_import: ["" : 13]>
Square <shift> (x) => (y)
{
  s = Constant <value_float: float = @shift> ()
  m = Mul (x, x)
  y = Add (m, s)
}"""
DEFINITIONS = {"ConvRelu6": CONV_RELU6, "Gate": GATE, "Square": SQUARE}
NAMES = [f"{DOMAIN}::{name}" for name in DEFINITIONS]


def operators(*names: str) -> list[dict[str, str]]:
    """The field `operators` of a document; all without names."""
    return [
        {"name": f"{DOMAIN}::{name}", "definition": DEFINITIONS[name]}
        for name in names or DEFINITIONS
    ]


def spec(**changes: Any) -> dict[str, Any]:
    """A document on a preset with rows for all three operators."""
    rows = [
        {"name": "conv_relu6", "match": {"op": NAMES[0], "inputs": ["any", "constant"]}},
        {"name": "gate", "match": {"op": NAMES[1]}},
    ]
    own: dict[str, Any] = {
        "patterns": rows, "ops": [{"op_type": NAMES[2]}],
    }  # fmt: skip
    return {
        "inherits": "a100", "name": "acme", "operators": operators(), "capabilities": own, **changes
    }  # fmt: skip


def random_model(seed: int, calls: int = 4) -> onnx.ModelProto:
    """Calls and operators of ONNX in turn; whole numbers, so that sums of floats are exact."""
    rng = np.random.default_rng(seed)
    shape = (1, 3, 6, 6)
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []
    values = ["x"]
    for k in range(calls):
        a, b = rng.choice(values), rng.choice(values)
        kind = ("conv", "gate", "square")[int(rng.integers(3))] if k else "conv"
        out = f"v{k}"
        if kind == "conv":
            weights = rng.integers(-1, 2, (3, 3, 3, 3)).astype(np.float32)
            tensors.append(numpy_helper.from_array(weights, f"w{k}"))
            tensors.append(numpy_helper.from_array(np.float32([1, 0, -1]), f"b{k}"))
            own = {} if rng.integers(2) else {"cap": float(rng.integers(2, 6))}
            nodes.append(_call("ConvRelu6", [a, f"w{k}", f"b{k}"], out, strides=[1, 1], **own))
        elif kind == "gate":
            own = {} if rng.integers(2) else {"low": 2.0}
            nodes.append(_call("Gate", [a, b], out, **own))
        else:
            nodes.append(_call("Square", [a], out, shift=1.0))
        if kind != "conv":  # numbers stay small
            nodes.append(helper.make_node("Clip", [out, "lo", "hi"], [f"c{k}"], name=f"clip{k}"))
            out = f"c{k}"
        if rng.integers(2):
            nodes.append(helper.make_node("Sub", [out, b], [f"s{k}"], name=f"sub{k}"))
            out = f"s{k}"
        values.append(out)
    tensors += [helper.make_tensor("lo", 1, [], [-3.0]), helper.make_tensor("hi", 1, [], [5.0])]
    read = {name for node in nodes for name in node.input}
    ends = [name for node in nodes for name in node.output if name not in read]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info(name, 1, shape) for name in ends],
        [t for t in tensors if t.name in read],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def _call(op_type: str, inputs: list[str], out: str, **own: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, [out], name=f"call_{out}", domain=DOMAIN, **own)


def with_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model that brings the definitions itself."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.functions.extend(onnx.parser.parse_function(text) for text in DEFINITIONS.values())
    return made


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in operators of ONNX alone, by ONNX's own inliner."""
    made = with_functions(model)
    for node in made.graph.node:
        given = {attribute.name for attribute in node.attribute}
        default = {"ConvRelu6": ("cap", 6.0), "Gate": ("low", 0.0)}.get(node.op_type)
        if default is not None and default[0] not in given:  # the inliner drops defaults
            node.attribute.append(helper.make_attribute(*default))
    for function in made.functions:
        next(o for o in function.opset_import if not o.domain).version = 17
    found = onnx.inliner.inline_local_functions(made)
    assert all(not node.domain for node in found.graph.node)
    return found


def num_calls(model: onnx.ModelProto) -> int:
    return sum(node.domain == DOMAIN for node in model.graph.node)
