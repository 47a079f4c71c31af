"""One model per rule that keeps a control-flow node whole in ONNX Runtime."""

from __future__ import annotations

import re

import onnx
import onnx_ir
import pytest
from control_models import (
    BOOL,
    INT64,
    branches,
    constant,
    counted_loop,
    loop_in_if,
    model_of,
    optional_loop,
    scan,
    sequence_loop,
    value,
)
from onnx import helper

from worker.compiler.control.refusal import refusal


def the_node(model: onnx.ModelProto) -> onnx_ir.Node:
    """The only node with graphs, read without any check of the model."""
    graph = onnx_ir.serde.deserialize_model(model).graph
    kinds = (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS)
    (found,) = (n for n in graph if any(a.type in kinds for a in n.attributes.values()))
    return found


def scan_with(**attributes: list[int]) -> onnx.ModelProto:
    model = scan()
    node = model.graph.node[0]
    for attribute in [a for a in node.attribute if a.name in attributes]:
        node.attribute.remove(attribute)
    node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    return model


def batched_scan() -> onnx.ModelProto:
    """As before opset 9: a first operand with sequence lengths, and a batch dimension."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "p"], ["s2"], name="add")], "body",
        [value("s", [3]), value("p", [3])], [value("s2", [3])],
    )  # fmt: skip
    node = helper.make_node(
        "Scan", ["", "a0", "ps"], ["end"], name="scan", body=body, num_scan_inputs=1
    )
    return model_of(
        helper.make_graph(
            [node], "batched", [value("a0", [2, 3]), value("ps", [2, 5, 3])], [value("end", [2, 3])]
        )
    )


def uneven_branches() -> onnx.ModelProto:
    model = branches()
    (node,) = (n for n in model.graph.node if n.op_type == "If")
    (other,) = (a.g for a in node.attribute if a.name == "else_branch")
    other.output.append(value("e1", None))
    return model


def forgetful_loop() -> onnx.ModelProto:
    """Its body gives back one value less than it carries."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"], name="go")], "body",
        [value("i", [], INT64), value("go", [], BOOL), value("s", [3])],
        [value("go_on", [], BOOL)],
    )  # fmt: skip
    node = helper.make_node("Loop", ["m", "", "x"], [], name="loop", body=body)
    return model_of(
        helper.make_graph(
            [node], "forgetful", [value("x", [3])], [value("x", [3])], [constant("m", 1)]
        )
    )


def mapped() -> onnx.ModelProto:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [2]))
    body = helper.make_graph(
        [helper.make_node("Exp", ["e"], ["o"], name="exp")], "body", [value("e", [2])],
        [value("o", [2])],
    )  # fmt: skip
    node = helper.make_node("SequenceMap", ["q"], ["r"], name="map", body=body)
    ports = [helper.make_value_info("q", kind)], [helper.make_value_info("r", kind)]
    return model_of(helper.make_graph([node], "mapped", *ports))


def capturing_a_half_type() -> onnx.ModelProto:
    model = counted_loop(2)
    for port in model.graph.input:
        port.type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    return model


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (mapped(), "SequenceMap is not interpreted"),
        (sequence_loop(), "q0 is a sequence|q is a sequence"),
        (optional_loop(), "is optional-typed"),
        (capturing_a_half_type(), "x is bfloat16"),
        (batched_scan(), "its body takes 2 inputs, the node gives 3"),
        (uneven_branches(), r"its bodies give \[1, 2\] results"),
        (forgetful_loop(), "gives 0 results for 1 carried"),
        (scan_with(scan_input_axes=[0]), "do not fit 2 sequences"),
        (scan_with(scan_output_directions=[0]), "do not fit 2 sequences"),
        (scan_with(scan_input_axes=[1, 3]), "it scans axis 3 of a value with 3 dimensions"),
    ],
    ids=["operator", "sequence", "optional", "type", "batched", "branches", "carried", "axes",
         "directions", "rank"],
)  # fmt: skip
def test_refusals_say_what_and_where(model: onnx.ModelProto, sentence: str) -> None:
    assert re.search(sentence, refusal(the_node(model)))


@pytest.mark.parametrize(
    "model", [counted_loop(2), branches(), scan(), loop_in_if()], ids=["loop", "if", "scan", "deep"]
)
def test_sound_nodes_are_not_refused(model: onnx.ModelProto) -> None:
    assert refusal(the_node(model)) == ""
