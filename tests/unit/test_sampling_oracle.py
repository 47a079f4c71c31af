"""The oracle's integer division, and samples that hold NaN."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_models import repeated_layers, saved
from row_chain_graphs import build, fn, op
from strategy_options import of_variant

from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.scalar import Fn, Read
from worker.compiler.judge.units import Unit
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.compiler.strategies.graphturbo.descriptor import Variant
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.verification.sampling import check_unit

Array = np.ndarray[Any, Any]


def quotients(a: Array, b: Array, dtype: DType) -> Array:
    """What the algebra says a / b is, element by element."""
    axes = [("i", len(a))]
    reads = [("a", ("i",)), ("b", ("i",))]
    body = fn(Fn.DIV, Read(0), Read(1))
    shapes = dict.fromkeys("abq", a.shape)
    graph = build((op("div", axes, reads, ("q", ("i",)), body),), shapes, ("q",), dtype)
    return evaluate(graph, {"a": a, "b": b})["q"]


def test_integer_division_truncates_toward_zero() -> None:
    """All pairs of eight bits, by Python's unbounded integers; what is no number is 0."""
    numbers = range(-128, 128)
    a, b = np.meshgrid(np.array(numbers, np.int8), np.array(numbers, np.int8))
    got = quotients(a.ravel(), b.ravel(), DType.I8)
    assert got.dtype == np.int8
    want = [
        0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        for y in numbers
        for x in numbers
    ]
    wrapped = [-128 if q == 128 else q for q in want]
    assert got.tolist() == wrapped


@pytest.mark.parametrize("dtype", [DType.I16, DType.I32, DType.I64])
def test_the_most_negative_integer_divides_in_every_width(dtype: DType) -> None:
    low = int(np.iinfo(dtype.numpy).min)
    got = quotients(np.full(3, low, dtype.numpy), np.array([7, -7, 2], dtype.numpy), dtype)
    assert got.dtype == dtype.numpy
    assert got.tolist() == [-(-low // 7), -low // 7, low // 2]


def relu_unit(folder: Path) -> Unit:
    machine, options = load_preset("a100"), CompileOptions(strategy="naive")
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    path = saved(repeated_layers(1), folder)
    compiled = compile_model(path, "m", machine, options, ports, Limits())
    (unit,) = [u for u in compiled.units if len(u.schedule.graph.inputs) == 1
               and not u.schedule.graph.constants]  # fmt: skip
    return unit


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1.0])
def test_a_kernel_that_writes_something_else_is_noticed(tmp_path: Path, wrong: float) -> None:
    unit = relu_unit(tmp_path)
    (source,) = unit.schedule.graph.inputs
    out = unit.schedule.graph.ops[-1].write.tensor
    x = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    right = {source: x, out: np.maximum(x, 0)}
    row = check_unit(unit, right, 0, ("layer0/relu",))
    assert row.name.endswith("layer0/relu")
    assert not row.is_wrong
    damaged = {source: x, out: np.full_like(x, wrong)}
    row = check_unit(replace(unit), damaged, 0, ("layer0/relu",))
    assert row.is_wrong


def test_a_fused_kernel_is_checked_through_its_interior(tmp_path: Path) -> None:
    """Grouped convolution and relu in one kernel: two axes write one dimension of the interior."""
    rng = np.random.default_rng(4)
    weights = numpy_helper.from_array(rng.standard_normal((8, 2, 3, 3)).astype(np.float32), "w")
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv", group=2),
            helper.make_node("Relu", ["c"], ["y"], name="relu"),
        ],
        "grouped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 4, 4])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    machine, options = load_preset("xavier"), CompileOptions(strategy="naive")
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    compiled = compile_model(saved(model, tmp_path), "m", machine, options, ports, Limits())
    (unit,) = compiled.units
    assert len(unit.schedule.graph.ops) > 1
    x = rng.standard_normal((1, 4, 6, 6)).astype(np.float32)
    want = ReferenceEvaluator(model).run(None, {"x": x})[0]
    graph_of = unit.schedule.graph
    arrays = {
        graph_of.inputs[0]: x,
        graph_of.constants[0]: compiled.constants["w"](),
        graph_of.outputs[0]: want,
    }
    row = check_unit(unit, arrays, 0, ("conv",))
    assert row.max_abs_err < 1e-4
    arrays[graph_of.outputs[0]] = want + 1.0
    row = check_unit(unit, arrays, 0, ("conv",))
    assert row.max_abs_err > 0.9


def test_an_interior_of_rank_zero_is_checked_through(tmp_path: Path) -> None:
    """A scalar made and read inside one kernel has one element and no index."""
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["x"], ["m"], name="mean", keepdims=0),
            helper.make_node("Sub", ["x", "m"], ["y"], name="sub"),
        ],
        "centred",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 40])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [6, 40])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    machine = load_preset("goya")
    options = CompileOptions(strategy="graphturbo", strategy_options=of_variant(Variant.V1))
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    compiled = compile_model(saved(model, tmp_path), "m", machine, options, ports, Limits())
    (unit,) = compiled.units
    held = unit.schedule.graph
    assert any(tensor.shape == () for tensor in held.tensors.values())
    x = np.random.default_rng(1).standard_normal((6, 40)).astype(np.float32)
    arrays = {held.inputs[0]: x, held.outputs[0]: x - x.mean()}
    row = check_unit(unit, arrays, 0, ("sub",))
    assert not row.is_wrong
    arrays[held.outputs[0]] = x
    row = check_unit(unit, arrays, 0, ("sub",))
    assert row.is_wrong
