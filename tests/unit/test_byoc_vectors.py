"""TV-BY-1 as a whole: composites, regions, and the three ways to count what is offloaded.

TV-BY-2, 3, 4 are in test_partition_regions and test_partition_criteria, TV-BY-5 in
test_pattern_matching, TV-BY-6 in test_quantize_parameters.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import saved

from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine, OpSupport
from worker.compiler.machine.pattern import AnyValue, OpMatch, PatternRule
from worker.compiler.partition.partition import partition
from worker.compiler.partition.ratios import offload_ratios


def chain() -> onnx.ModelProto:
    """conv, bias, relu, pool, (NMS's place) TopK, conv, relu."""
    rng = np.random.default_rng(1)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c1", "b1"], ["a1"], name="bias"),
        helper.make_node("Relu", ["a1"], ["r1"], name="relu1"),
        helper.make_node("MaxPool", ["r1"], ["p1"], name="pool", kernel_shape=[2, 2],
                         strides=[2, 2]),
        helper.make_node("TopK", ["p1", "k"], ["t1", "i1"], name="nms"),
        helper.make_node("Conv", ["t1", "w2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["y"], name="relu2"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "tv_by_1",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 4, 4])],
        [
            weights("w1", 4, 3, 3, 3), weights("b1", 1, 4, 1, 1), weights("w2", 4, 4, 3, 3),
            numpy_helper.from_array(np.array([4], dtype=np.int64), "k"),
        ],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def conv_bias_relu() -> PatternRule:
    """The paper's own pattern: conv, optional bias, relu (section 3.1.1)."""
    conv = OpMatch(("Conv",))
    bias = OpMatch(("Add",), (conv, AnyValue()), commutative=True, optional=True)
    return PatternRule("conv2d_pattern", OpMatch(("Relu",), (bias,)))


def machine() -> Machine:
    """A target that lists pooling, and takes convolutions by the pattern alone."""
    preset = load_preset("xavier")
    (target,) = preset.targets
    offered = replace(
        target.capabilities, ops=(OpSupport("MaxPool", ()),), patterns=(conv_bias_relu(),)
    )
    return replace(preset, targets=(replace(target, capabilities=offered),))


def test_composites_regions_and_ratios(tmp_path: Path) -> None:
    model = simplify(bind(load_model(saved(chain(), tmp_path), Limits()), {}))
    nodes = list(model.ir.graph)
    parts = partition(model, machine(), {})

    def names(positions: tuple[int, ...]) -> list[str]:
        return [nodes[k].name or "" for k in positions]

    composites = [names(c.nodes) for part in parts.parts for c in part.composites]
    assert composites == [["conv1", "bias", "relu1"], ["conv2", "relu2"]]
    assert [names(part.nodes) for part in parts.regions] == [
        ["conv1", "bias", "relu1", "pool"], ["conv2", "relu2"],
    ]  # fmt: skip
    assert [names(part.nodes) for part in parts.parts if part.is_host] == [["nms"]]
    ratios = offload_ratios(nodes, parts)
    assert (ratios.offloaded_nodes, ratios.nodes) == (6, 7)
    assert ratios.node_pct == pytest.approx(85.7, abs=0.05)
    assert (ratios.offloaded_units, ratios.units) == (3, 4)
    assert ratios.mac_pct == 100.0
    assert (ratios.offloaded_value_nodes, ratios.value_nodes) == (6, 7)
