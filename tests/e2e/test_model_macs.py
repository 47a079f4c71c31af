"""Multiply-accumulates of a compiled model are the user's model's, whatever engine runs them."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import saved

from worker.compiler.cache import MemoryCache
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress


def convolutions(seed: int) -> tuple[onnx.ModelProto, int, int]:
    """A chain of four to seven convolutions, some strided, grouped or by channel; a dense layer on
    the maxima of the result; the model, its multiply-accumulates, and those of the dense layer."""
    rng = np.random.default_rng(seed)
    channels, size = int(rng.integers(1, 4)) * 4, int(rng.integers(16, 33))
    batch = int(rng.integers(1, 3))
    nodes, weights, macs, last = [], [], 0, "x"
    shape = [batch, channels, size, size]
    given = list(shape)
    for k in range(int(rng.integers(4, 8))):
        group = int(rng.choice([1, 1, 4, channels]))
        out = channels if group == channels else int(rng.integers(1, 5)) * 4
        # One tap of one channel accumulates nothing: the compiler takes it as a product.
        kernel = 3 if group == channels else int(rng.choice([1, 3]))
        stride = int(rng.choice([1, 1, 2]))
        w = rng.standard_normal((out, channels // group, kernel, kernel)) * 0.2
        weights.append(numpy_helper.from_array(w.astype(np.float32), f"w{k}"))
        nodes.append(helper.make_node(
            "Conv", [last, f"w{k}"], [f"c{k}"], name=f"conv{k}", group=group,
            pads=[kernel // 2] * 4, strides=[stride, stride],
        ))  # fmt: skip
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"], name=f"relu{k}"))
        size = (size + stride - 1) // stride
        shape = [batch, out, size, size]
        macs += prod(shape) * channels // group * kernel * kernel
        channels, last = out, f"r{k}"
    dense = numpy_helper.from_array(rng.standard_normal((channels, 5)).astype(np.float32), "wd")
    nodes += [
        helper.make_node("GlobalMaxPool", [last], ["g"], name="maxima"),
        helper.make_node("Flatten", ["g"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "wd"], ["y"], name="dense"),
    ]
    graph = helper.make_graph(
        nodes, "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 5])],
        [*weights, dense],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    last_layer = batch * channels * 5
    return model, macs + last_layer, last_layer


def reported(model: onnx.ModelProto, folder: Path, preset: str, strategy: str) -> dict[str, Any]:
    folder.mkdir()
    options = CompileOptions.from_json({"strategy": strategy, "verify": "none"})
    request = JobRequest(saved(model, folder), "model", {"preset": preset}, options, folder / "b")
    run_job(request, folder / "out", MemoryCache(), NoProgress())
    found: dict[str, Any] = json.loads((folder / "out" / "report.json").read_bytes())
    return found


@pytest.mark.parametrize("preset", ["stcp920-inferred", "ascend910", "a100", "kapla-16x16"])
@pytest.mark.parametrize("strategy", ["naive", "graphturbo"])
def test_macs_are_those_of_the_model(tmp_path: Path, preset: str, strategy: str) -> None:
    """Counted from its shapes here; depthwise convolutions run on vector engines, and instances
    compute rows of their halo again."""
    for seed in range(3):
        model, macs, _ = convolutions(seed)
        report = reported(model, tmp_path / str(seed), preset, strategy)
        summary, rows = report["summary"], report["layers"]
        assert report["model"]["macs"] == macs
        assert summary["macs"] - summary["repeated_macs"] == macs
        assert sum(row["macs"] for row in rows) == summary["macs"]
        assert sum(row["repeated_macs"] for row in rows) == summary["repeated_macs"]
        assert summary["accelerator_mac_pct"] == 100.0
        if strategy == "naive":
            assert summary["repeated_macs"] == 0
        names = {check["name"]: check["passed"] for check in report["sanity"]}
        assert names["units:macs-conserved"] is True


def test_a_host_part_has_the_macs_of_its_nodes_alone(tmp_path: Path) -> None:
    """dpu-zu leaves dense layers of floats to the host; conversions there multiply nothing."""
    model, macs, dense = convolutions(0)
    report = reported(model, tmp_path / "m", "dpu-zu", "naive")
    summary = report["summary"]
    hosts = [row for row in report["layers"] if row["placement"] == "host"]
    assert sum(row["macs"] for row in hosts) == dense
    assert summary["macs"] - summary["repeated_macs"] == macs - dense
    assert summary["accelerator_mac_pct"] == pytest.approx(100.0 * (macs - dense) / macs)
