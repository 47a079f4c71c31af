"""Annotating integer clusters: work grows with the clusters, not with their square."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine import load_preset
from worker.compiler.partition import annotate as annotate_module

SHAPE = [1, 4, 2, 2]


def quantised_chain(clusters: int) -> OnnxModel:
    """Dequantise, Relu, quantise, again and again."""
    nodes: list[onnx.NodeProto] = []
    source = "x"
    for k in range(clusters):
        nodes += [
            helper.make_node("DequantizeLinear", [source, "s", "z"], [f"f{k}"], name=f"d{k}"),
            helper.make_node("Relu", [f"f{k}"], [f"r{k}"], name=f"r{k}"),
            helper.make_node("QuantizeLinear", [f"r{k}", "s", "z"], [f"q{k}"], name=f"q{k}"),
        ]
        source = f"q{k}"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.INT8, SHAPE)],
        [helper.make_tensor_value_info(source, TensorProto.INT8, SHAPE)],
        [
            numpy_helper.from_array(np.array(0.1, np.float32), "s"),
            numpy_helper.from_array(np.array(0, np.int8), "z"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    return OnnxModel(onnx_ir.serde.deserialize_model(inferred), "chain", "0" * 64, 18)


def test_identities_compared_grow_linearly(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]

    def counting(value: object) -> int:
        calls[0] += 1
        return id(value)

    monkeypatch.setattr(annotate_module, "id", counting, raising=False)
    machine = load_preset("ethos-u65")
    counts = []
    for clusters in (20, 80):
        calls[0] = 0
        found = annotate_module.annotate(quantised_chain(clusters), machine, {})
        assert len(found.composites) == clusters
        counts.append(calls[0])
    assert 0 < counts[1] <= 4 * counts[0] + 20
