"""Inputs drawn for verification never index outside what they address."""

from __future__ import annotations

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
from worker.verification.inputs import seeded_inputs


def indexed(
    nodes: list[onnx.NodeProto], ids: list[int], out: list[int], *constants: onnx.TensorProto
) -> onnx.ModelProto:
    table = numpy_helper.from_array(np.zeros((9, 3, 5), np.float32), "table")
    graph = helper.make_graph(
        nodes,
        "indexed",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ids)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [table, *constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def drawn(model: onnx.ModelProto, folder: Path, seed: int = 0) -> np.ndarray:
    loaded = load_model(saved(model, folder), Limits(), "m")
    return seeded_inputs(simplify(bind(loaded, {})), seed)["ids"]


def test_every_column_of_an_index_vector_is_bounded(tmp_path: Path) -> None:
    node = helper.make_node("GatherND", ["table", "ids"], ["y"], name="g")
    ids = drawn(indexed([node], [200, 2], [200, 5]), tmp_path)
    assert ids.min() >= 0
    assert ids.max() == 2


def test_batch_dimensions_of_an_index_vector_do_not_bound_it(tmp_path: Path) -> None:
    node = helper.make_node("GatherND", ["table", "ids"], ["y"], name="g", batch_dims=1)
    ids = drawn(indexed([node], [9, 60, 2], [9, 60]), tmp_path)
    assert ids.max() == 2
    node = helper.make_node("GatherND", ["table", "ids"], ["y"], name="g", batch_dims=2)
    ids = drawn(indexed([node], [9, 3, 60, 1], [9, 3, 60]), tmp_path)
    assert ids.max() == 4


@pytest.mark.parametrize("swapped", [False, True])
def test_a_constant_added_to_an_index_lowers_its_limit(tmp_path: Path, swapped: bool) -> None:
    offset = numpy_helper.from_array(np.array(2, np.int64), "two")
    nodes = [
        helper.make_node("Add", ["two", "ids"] if swapped else ["ids", "two"], ["j"], name="a"),
        helper.make_node("Gather", ["table", "j"], ["y"], name="g"),
    ]
    ids = drawn(indexed(nodes, [200], [200, 3, 5], offset), tmp_path)
    assert ids.max() == 6


def test_the_seed_decides_the_bytes(tmp_path: Path) -> None:
    model = indexed([helper.make_node("Gather", ["table", "ids"], ["y"], name="g")],
                    [50], [50, 3, 5])  # fmt: skip
    first, again, other = (drawn(model, tmp_path, seed) for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()
    assert first.max() == 8
