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


def computed(kind: str, dtype: int, folder: Path, slot: int = 0, **attributes: int) -> np.ndarray:
    """What is drawn for an input that one operator of two operands (or one) reads at `slot`."""
    names = ["x", "c"] if slot == 0 else ["c", "x"]
    operands = names[: 1 if kind in ("Cast", "Neg") else 2]
    to = attributes.get("to", TensorProto.BOOL if kind == "Greater" else dtype)
    constant = np.ones(400, helper.tensor_dtype_to_np_dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node(kind, operands, ["y"], name="n", **attributes)],
        "computed",
        [helper.make_tensor_value_info("x", dtype, [400])],
        [helper.make_tensor_value_info("y", to, [400])],
        [numpy_helper.from_array(constant, "c")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    loaded = load_model(saved(model, folder), Limits(), "m")
    return seeded_inputs(simplify(bind(loaded, {})), 0)["x"]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("Mul", TensorProto.INT64), ("Add", TensorProto.INT32), ("Greater", TensorProto.INT32),
     ("Neg", TensorProto.INT8), ("Mul", TensorProto.UINT64)],
)  # fmt: skip
def test_integers_that_are_computed_with_have_their_whole_range(
    kind: str, dtype: int, tmp_path: Path
) -> None:
    drawn = computed(kind, dtype, tmp_path)
    limits = np.iinfo(drawn.dtype)
    span = int(limits.max) - int(limits.min)
    assert int(drawn.max()) > limits.max - span // 16
    assert int(drawn.min()) < limits.min + span // 16


def test_images_are_whole_and_masks_stay_masks(tmp_path: Path) -> None:
    image = computed("Cast", TensorProto.UINT8, tmp_path, to=TensorProto.FLOAT)
    assert image.max() > 240
    mask = computed("Cast", TensorProto.INT64, tmp_path, to=TensorProto.FLOAT)
    assert set(np.unique(mask)) == {0, 1}


def test_divisors_are_small_and_dividends_spare_the_least(tmp_path: Path) -> None:
    assert set(np.unique(computed("Div", TensorProto.INT32, tmp_path, slot=1))) == set(range(1, 8))
    assert np.ptp(computed("Div", TensorProto.INT8, tmp_path).astype(int)) > 200
    assert computed("Div", TensorProto.INT8, tmp_path).min() >= -127
