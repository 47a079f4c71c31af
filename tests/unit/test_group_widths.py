"""Convolutions in groups whose width divides no core's share of the channels.

Instances cut channels evenly, the convolution computes whole groups: neither may its tiles be
stored with holes, nor its epilogue write more of the result than its instance holds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import saved

from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.verification.drive import verify_model

ON = load_preset("stcp920")


def grouped_net(wide: int, width: int, size: int, before: int = 0) -> onnx.ModelProto:
    """Relu of a convolution of stride 2 in groups of `width`, maybe behind one to `wide`."""
    rng = np.random.default_rng(1)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def layer(x: str, shape: tuple[int, ...], **attributes: object) -> str:
        k = len(weights)
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        weights.append(numpy_helper.from_array(values.astype(np.float32), f"w{k}"))
        weights.append(numpy_helper.from_array(np.float32(rng.standard_normal(shape[0])), f"b{k}"))
        nodes.append(helper.make_node("Conv", [x, f"w{k}", f"b{k}"], [f"c{k}"], **attributes))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"]))
        return f"r{k}"

    x = layer("x", (wide, before, 1, 1)) if before else "x"
    y = layer(x, (wide, width, 3, 3), group=wide // width, pads=[1] * 4, strides=[2, 2])
    info = helper.make_tensor_value_info
    given = [info("x", TensorProto.FLOAT, [1, before or wide, size, size])]
    half = (size + 1) // 2
    found = [info(y, TensorProto.FLOAT, [1, wide, half, half])]
    graph = helper.make_graph(nodes, "groups", given, found, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize(
    ("net", "variant"),
    [
        (grouped_net(448, 56, 28), "v1"),
        (grouped_net(888, 24, 14, before=336), "full"),
    ],
    ids=["tiles beside cut groups", "an epilogue beyond its slice"],
)
def test_groups_that_no_share_divides(net: onnx.ModelProto, variant: str, tmp_path: Path) -> None:
    options = CompileOptions.from_json(
        {
            "strategy": "graphturbo",
            "strategy_options": {"graphturbo": {"variant": variant}},
            "verify": "full",
        }
    )
    ports = open_ports(ON, options, MemoryCache(), NoProgress())
    model = compile_model(saved(net, tmp_path), "m", ON, options, ports, Limits())
    assert not [text for code, text in model.warnings if code == "STRATEGY_FALLBACK"]
    found = verify_model(tmp_path / "model.onnx", model, options, tmp_path / "build")
    assert found.passed is True, found.detail
