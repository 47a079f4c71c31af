"""What a sampled kernel may differ by: its own roundings, and what the oracle gets wrong itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import saved

from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.judge.units import Unit
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.verification.float64_graph import float64_arrays, float64_graph
from worker.verification.sampling import check_unit

Array = npt.NDArray[Any]
LENGTH = 4096


def unit_of(node: onnx.NodeProto, shapes: dict[str, list[int]], folder: Path, kind: int) -> Unit:
    """The one kernel of a one-node model."""
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(n, kind, shapes[n]) for n in node.input],
        [helper.make_tensor_value_info("y", kind, shapes["y"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    machine, options = load_preset("a100"), CompileOptions()
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    compiled = compile_model(saved(model, folder), "m", machine, options, ports, Limits())
    (unit,) = compiled.units
    return unit


def product(folder: Path) -> Unit:
    shapes = {"a": [4, LENGTH], "b": [LENGTH, 8], "y": [4, 8]}
    node = helper.make_node("MatMul", ["a", "b"], ["y"], name="product")
    return unit_of(node, shapes, folder, TensorProto.FLOAT)


def in_order(a: Array, b: Array) -> Array:
    """The product as a plain loop sums it up."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k : k + 1]
    return total


def operands(unit: Unit, *values: Array) -> dict[str, Array]:
    graph = unit.schedule.graph
    return dict(zip((*graph.inputs, *graph.outputs), values, strict=True))


def test_less_than_the_old_fixed_tolerance_is_noticed(tmp_path: Path) -> None:
    """A relu rounds nothing: 4e-6 off (1e-5 was allowed) is no rounding."""
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    unit = unit_of(node, {"x": [16, 32], "y": [16, 32]}, tmp_path, TensorProto.FLOAT)
    x = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    right = np.maximum(x, 0)
    assert not check_unit(unit, operands(unit, x, right), 0, ("relu",)).is_wrong
    row = check_unit(unit, operands(unit, x, right * np.float32(1 + 4e-6)), 0, ("relu",))
    assert row.is_wrong
    assert row.tolerance < 1e-6
    assert row.own_error is not None


def cancelling(rest: float) -> tuple[Array, Array]:
    """Factors whose products, of 500 to 1000, add up to about `rest`."""
    rng = np.random.default_rng(1)
    half = rng.uniform(500, 1000, (4, LENGTH // 2)).astype(np.float32)
    a = np.concatenate([half, -half], axis=1)
    a[:, 0] += np.float32(rest)
    return a, np.ones((LENGTH, 8), np.float32)


def test_a_sum_that_cancels_may_differ_as_the_oracle_does(tmp_path: Path) -> None:
    """Terms of 1e3 cancel to 1e4: a plain loop is 1e-4 off, where pairs lose almost nothing."""
    unit = product(tmp_path)
    a, b = cancelling(1e4)
    row = check_unit(unit, operands(unit, a, b, in_order(a, b)), 0, ("product",))
    assert row.error > 1e-5  # the fixed tolerance called this a fault
    assert not row.is_wrong
    assert not row.is_open
    assert row.own_error is not None
    twice = in_order(a, b)
    twice[:, ::2] *= np.float32(1.01)  # a fault is found all the same
    assert check_unit(unit, operands(unit, a, b, twice), 0, ("product",)).is_wrong


def test_where_rounding_is_all_there_is_a_kernel_is_not_judged(tmp_path: Path) -> None:
    unit = product(tmp_path)
    a, b = cancelling(1.0)
    row = check_unit(unit, operands(unit, a, b, in_order(a, b)), 0, ("product",))
    assert row.is_open
    assert "own error" in row.reason


def test_a_long_sum_of_one_sign_keeps_a_small_tolerance(tmp_path: Path) -> None:
    """The floor follows the length of the sum, not a table: one lost term of 4096 is found."""
    unit = product(tmp_path)
    rng = np.random.default_rng(2)
    a = rng.uniform(0.5, 1, (4, LENGTH)).astype(np.float32)
    b = rng.uniform(0.5, 1, (LENGTH, 8)).astype(np.float32)
    row = check_unit(unit, operands(unit, a, b, in_order(a, b)), 0, ("product",))
    assert not row.is_wrong
    lost = a.copy()
    lost[:, 7] = 0
    row = check_unit(unit, operands(unit, a, b, in_order(lost, b)), 0, ("product",))
    assert row.is_wrong
    assert row.tolerance < 1e-4


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.FLOAT])
def test_the_oracle_in_float64_rounds_nothing(tmp_path: Path, kind: int) -> None:
    node = helper.make_node("Mul", ["a", "b"], ["y"], name="mul")
    unit = unit_of(node, {"a": [64], "b": [64], "y": [64]}, tmp_path, kind)
    rng = np.random.default_rng(3)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    a, b = (rng.standard_normal(64).astype(dtype) for _ in "ab")
    graph = unit.schedule.graph
    arrays = dict(zip(graph.inputs, (a, b), strict=True))
    (out,) = graph.outputs
    exact = evaluate(float64_graph(graph), float64_arrays(graph, arrays))[out]
    assert exact.dtype == np.float64
    assert np.array_equal(exact, a.astype(np.float64) * b.astype(np.float64))
    assert not np.array_equal(evaluate(graph, arrays)[out].astype(np.float64), exact)
