"""What is compared and fixed before a host part selects: floats, and what stands for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.verification.selection import selection_inputs


def scores_then_top(path: Path) -> Path:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Flatten", ["r"], ["f"], name="flat"),
        helper.make_node("TopK", ["f", "k"], ["best", "where"], name="top"),
    ]
    weight = rng.standard_normal((8, 4, 1, 1)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [
            helper.make_tensor_value_info("best", TensorProto.FLOAT, [1, 5]),
            helper.make_tensor_value_info("where", TensorProto.INT64, [1, 5]),
        ],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.array([5], np.int64), "k"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return path


def test_a_quantised_region_is_compared_before_the_host_selects(tmp_path: Path) -> None:
    """The host dequantises what the region leaves, so that no float crosses the edge."""
    machine = load_preset("dpu-zu")
    options = CompileOptions()
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    path = scores_then_top(tmp_path / "m.onnx")
    compiled = compile_model(path, "m", machine, options, ports, Limits())
    (host,) = [h for h in compiled.linked.hosts if "TopK" in h.op_types]
    (entering,) = selection_inputs(compiled)
    assert entering in host.inputs
    made = {v.name: v for node in compiled.model.ir.graph for v in node.outputs}
    assert str(made[entering].dtype) == "INT8"
