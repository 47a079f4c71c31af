"""What is picked from a value is as uncertain as the value."""

from __future__ import annotations

import numpy as np
import onnx_ir
import pytest
from onnx import TensorProto, helper

from worker.verification.carried import carried
from worker.verification.measured import OwnErrors


def nodes_of(*made: tuple[str, list[str], list[str]]) -> list[onnx_ir.Node]:
    graph = helper.make_graph(
        [helper.make_node(kind, given, found) for kind, given, found in made], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info(made[-1][2][0], TensorProto.FLOAT, None)],
    )  # fmt: skip
    return list(onnx_ir.from_proto(helper.make_model(graph)).graph)


def test_a_column_is_no_more_exact_than_the_table() -> None:
    """Right to 1e-6 of 1 in the table, so to 4e-6 of the 0.25 that the column reaches; what lies
    between them is known to nobody."""
    nodes = nodes_of(
        ("Softmax", ["x"], ["s"]), ("Split", ["s"], ["p", "q"]), ("Squeeze", ["p"], ["r"]),
        ("Gather", ["r", "k"], ["y"]),
    )  # fmt: skip
    values = {"s": np.array([1.0, 0.25], np.float32), "y": np.array([0.25], np.float32)}
    found = carried(OwnErrors({"s": 1e-6, "y": 1e-8}, "m"), values, nodes)
    assert found.of["s"] == 1e-6
    assert found.of["y"] == pytest.approx(4e-6)
    assert found.method == "m"


def test_what_computes_carries_nothing_and_nothing_is_taken_away() -> None:
    nodes = nodes_of(("Exp", ["x"], ["s"]), ("Relu", ["s"], ["y"]), ("Identity", ["y"], ["z"]))
    values = {name: np.ones(2, np.float32) for name in ("s", "y", "z")}
    own = OwnErrors({"s": 1e-3, "y": 1e-7, "z": 1e-5}, "m")
    assert carried(own, values, nodes).of == own.of


def test_a_concat_is_as_uncertain_as_its_worst_part_and_integers_have_no_part_in_it() -> None:
    nodes = nodes_of(("Concat", ["a", "x"], ["y"]), ("Gather", ["n", "x"], ["m"]))
    values = {
        "a": np.full(2, 4.0, np.float32), "y": np.full(4, 8.0, np.float32),
        "n": np.ones(2, np.int8), "m": np.ones(2, np.int8),
    }  # fmt: skip
    own = OwnErrors({"a": 1e-4, "y": 1e-9, "n": 0.5, "m": 0.0}, "m")
    found = carried(own, values, nodes).of
    assert found["y"] == pytest.approx(5e-5)
    assert found["m"] == 0.0


def test_values_that_are_no_numbers_have_no_scale() -> None:
    nodes = nodes_of(("Identity", ["a"], ["y"]))
    values = {"a": np.array([np.inf, 2.0], np.float32), "y": np.array([np.nan], np.float32)}
    assert carried(OwnErrors({"a": 1e-4, "y": 0.0}, "m"), values, nodes).of == {"a": 1e-4, "y": 0.0}
