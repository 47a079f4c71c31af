"""The reference gives one result: ONNX Runtime's ScatterND loses updates on several threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from worker.verification.reference import reference_outputs

ROWS, WIDTH, UPDATES, RUNS = 16, 64, 40_000, 4


def test_scattered_sums_are_the_same_every_time_and_right(tmp_path: Path) -> None:
    """Whole numbers, so every order of adding gives the same sum: a lost update shows."""
    rng = np.random.default_rng(0)
    indices = rng.integers(0, ROWS, (UPDATES, 1))
    graph = helper.make_graph(
        [helper.make_node("ScatterND", ["x", "i", "u"], ["y"], reduction="add")],
        "scatter",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH]),
         helper.make_tensor_value_info("u", TensorProto.FLOAT, [UPDATES, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, WIDTH])],
        [numpy_helper.from_array(indices, "i")],
    )  # fmt: skip
    path = tmp_path / "scatter.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path
    )
    feeds = {
        "x": np.zeros((ROWS, WIDTH), np.float32),
        "u": rng.integers(0, 4, (UPDATES, WIDTH)).astype(np.float32),
    }
    expected = feeds["x"].copy()
    np.add.at(expected, indices[:, 0], feeds["u"])
    for _ in range(RUNS):
        outputs, _ = reference_outputs(path, feeds)
        np.testing.assert_array_equal(outputs["y"], expected)
