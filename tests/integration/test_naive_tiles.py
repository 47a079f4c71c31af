"""The option of `naive` that says how tiles are found, and what it proves (decision 0058)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from worker.compiler.errors import OptionError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolutions whose rows grown tiles cut into pieces."""
    rng = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array((rng.standard_normal((128, 128, 3, 3)) * 0.1).astype(np.float32), n)
        for n in ("w0", "w1")
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w1"], ["y"], name="second", pads=[1, 1, 1, 1]),
    ]
    shape = [1, 128, 14, 14]
    graph = helper.make_graph(
        nodes, "convs", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)], weights,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("tiles") / "convs.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def compiled(model: Path, preset: str, tiles: str) -> tw.Result:
    done = tw.compile(
        model, preset, strategy="naive", strategy_options={"naive": {"tiles": tiles}}, verify="full"
    )
    assert done.verification["passed"]
    return done


def cycles(model: Path, preset: str, tiles: str) -> int:
    return int(compiled(model, preset, tiles).report["summary"]["latency_cycles"])


@pytest.mark.parametrize(("preset", "gain"), [("kapla-16x16", 1.4), ("stcp920-inferred", 1.0)])
def test_programs_are_verified_and_faster(model: Path, preset: str, gain: float) -> None:
    assert cycles(model, preset, "bounded") * gain <= cycles(model, preset, "grown")


def test_other_words_are_refused(model: Path) -> None:
    with pytest.raises(OptionError, match="grown"):
        cycles(model, "a100", "climbed")


def test_reports_say_how_far_the_best_may_be(model: Path) -> None:
    """Per kernel, and only of those that were searched for."""
    report = compiled(model, "a100", "bounded").report
    summary = report["summaries"]["naive"]
    assert summary["kernels"]
    assert summary["unproven"] == 0
    for kernel in summary["kernels"]:
        assert 0 < kernel["bound"] <= kernel["best"]
        assert kernel["gap"] == pytest.approx(kernel["best"] / kernel["bound"] - 1)
        assert kernel["spaces"][0].startswith("SMEM")
        assert kernel["boxes"] > 0
    assert summary["worst_gap"] == max(kernel["gap"] for kernel in summary["kernels"])
    assert "naive" not in compiled(model, "a100", "grown").report["summaries"]
