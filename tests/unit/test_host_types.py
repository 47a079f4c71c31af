"""Element types that only the host has: a model that uses them compiles and runs there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from region_bundles import compiled_from

from worker.compiler.assembly.packing import kernel_texts, program_contents
from worker.compiler.package.build import build_library
from worker.compiler.package.runtime import load_program
from worker.compiler.partition.plan import HOST


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (TensorProto.STRING, np.array([["a", "bc"]], dtype=object)),
        (TensorProto.DOUBLE, np.array([[0.1, 1e300]])),
    ],
)
def test_values_pass_through_the_host(kind: int, array: np.ndarray, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Concat", ["x", "x"], ["y"], name="twice", axis=0)], "g",
        [helper.make_tensor_value_info("x", kind, [1, 2])],
        [helper.make_tensor_value_info("y", kind, [2, 2])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = compiled_from(model, "a100", tmp_path)
    assert [row.target for row in compiled.placement] == [HOST]
    library = build_library(kernel_texts(compiled), tmp_path)
    found = load_program(program_contents(compiled), library).run({"x": array})
    assert found["y"].tolist() == [*array.tolist(), *array.tolist()]
