"""What is picked from a value is as uncertain as the value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir
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
from worker.verification.carried import carried, sources
from worker.verification.measured import OwnErrors
from worker.verification.references import own_errors, reference_values


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


def test_sources_are_what_computes_before_the_moves_and_is_not_compared_itself() -> None:
    nodes = nodes_of(
        ("Exp", ["x"], ["a"]), ("Softmax", ["a"], ["s"]), ("Split", ["s"], ["p", "q"]),
        ("Relu", ["x"], ["b"]), ("Concat", ["q", "b", "x"], ["c"]), ("Gather", ["c", "p"], ["y"]),
    )  # fmt: skip
    assert set(sources(["y"], nodes)) == {"s", "b"}, "not x, which is given, nor a, nor p for y"
    assert sources(["y", "s", "b"], nodes) == ()
    assert sources(["p", "b"], nodes) == ("s",)
    assert sources(["x"], nodes) == ()


def test_a_column_is_measured_by_the_table_even_when_nobody_compares_the_table(
    tmp_path: Path,
) -> None:
    """A softmax whose kernel hands over one small column of it: what the whole is wrong by."""
    rng = np.random.default_rng(7)
    logits = rng.uniform(0, 40, (64, 24)).astype(np.float32)
    logits[:, 0] = 0
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "b"], ["a"]),
            helper.make_node("Softmax", ["a"], ["s"], axis=1),
            helper.make_node("Slice", ["s", "low", "high", "axis"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 1])],
        [
            numpy_helper.from_array(logits, "b"),
            *(numpy_helper.from_array(np.array([k], np.int64), name)
              for name, k in (("low", 0), ("high", 1), ("axis", 1))),
        ],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = saved(model, tmp_path)
    machine, options = load_preset("kapla-edge"), CompileOptions(strategy="naive")
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    compiled = compile_model(path, "m", machine, options, ports, Limits())
    given = {"x": rng.standard_normal((64, 24)).astype(np.float32)}
    outputs, inner = reference_values(path, compiled, given, ("s",))
    wide = given["x"].astype(np.float64) + logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    exact = powers / powers.sum(axis=1, keepdims=True)
    apart = float(np.max(np.abs(inner["s"] - exact)))
    scale = float(np.max(outputs["y"]))
    assert float(np.max(np.abs(outputs["y"] - exact[:, :1]))) < apart / 10
    found = own_errors(path, compiled, given, outputs, 0, is_odd=False)
    assert found.of["y"] * scale >= 0.9 * apart
