"""Defects that the conformance suite found in the compiler stay mended."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
from partition_models import refusal

from worker.compiler.machine import load_machine, preset_document
from worker.compiler.machine.machine import AcceleratorTarget, Machine
from worker.compiler.rejection import ReasonCode
from worker.conformance.cases import Selection
from worker.conformance.claims import node_named
from worker.conformance.conform import check_machine
from worker.conformance.report import conformance_table


def machine(preset: str, ops: list[dict[str, Any]]) -> Machine:
    spec = deepcopy(preset_document(preset))
    spec["capabilities"] = {**spec["capabilities"], "groups": [], "exclude": [], "ops": ops}
    return load_machine(spec)


@pytest.mark.parametrize("op_type", ["Shrink", "QuantizeLinear"])
def test_integers_of_float_operators(op_type: str, tmp_path: Path) -> None:
    """Shrink of integers was refused; QuantizeLinear of i32 failed the compile."""
    target = machine("a100", [{"op_type": op_type}])
    found = check_machine(target, tmp_path, Selection((op_type,)))
    assert found.passed, conformance_table(found)
    assert "i32" in {row.dtype for row in found.rows}


@pytest.mark.parametrize(
    "op_type", ["QLinearConv", "QLinearMatMul", "Resize", "BatchNormalization"]
)
def test_float_parameters_on_an_integer_chip(op_type: str, tmp_path: Path) -> None:
    """Scales are constants of the operator, not numbers of a format that the chip lacks."""
    rule: dict[str, Any] = {"op_type": op_type}
    if op_type == "Resize":
        rule["attributes"] = {"mode": {"allowed": ["nearest"]}}
    found = check_machine(machine("nvdla-large", [rule]), tmp_path, Selection((op_type,)))
    assert found.passed, conformance_table(found)
    assert {"i8", "u8"} <= {row.dtype for row in found.rows}


def weighted(is_computed: bool) -> tuple[AcceleratorTarget, onnx_ir.Node]:
    """A target that wants constant weights, and a convolution with dequantised ones."""
    (target,) = machine("nvdla-large", [{"op_type": "Conv", "constant_inputs": [1]}]).targets
    import onnx
    from onnx import helper, numpy_helper

    weights = np.ones((2, 3, 1, 1), np.int8)
    tensors = [
        numpy_helper.from_array(np.array(0.5, np.float32), "s"),
        numpy_helper.from_array(np.array(0, np.int8), "z"),
    ]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.INT8, [1, 3, 4, 4])]
    if is_computed:
        inputs.append(helper.make_tensor_value_info("w", onnx.TensorProto.INT8, [2, 3, 1, 1]))
    else:
        tensors.append(numpy_helper.from_array(weights, "w"))
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["xf"], name="dx"),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wf"], name="dw"),
        helper.make_node("Conv", ["xf", "wf"], ["y"], name="conv"),
    ]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [result], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return target, node_named(model.SerializeToString(), "conv")


def test_dequantised_weights_are_constant() -> None:
    from worker.compiler.ir.dtype import DType

    as_i8 = {onnx_ir.DataType.FLOAT: DType.I8}
    target, node = weighted(is_computed=False)
    assert refusal(node, target, as_i8, opset=21) is None
    target, node = weighted(is_computed=True)
    found = refusal(node, target, as_i8, opset=21)
    assert found is not None and found.code is ReasonCode.CONSTANT_INPUT
