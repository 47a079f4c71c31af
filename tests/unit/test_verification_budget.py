"""What verifying would cost is counted; beyond the budget the report says why it was not done."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from service.cli.demo import EXAMPLE
from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.simplify import simplify
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress
from worker.verification.budget import (
    HELD,
    NODE_STEPS,
    RUNS,
    TRIP_STEPS,
    cost_of,
    over_budget,
)

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
value = helper.make_tensor_value_info
node = helper.make_node


def model_of(
    nodes: list[onnx.NodeProto], shape: list[int], constants: dict[str, object]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [value("x", FLOAT, shape)], [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def looped(trips: int) -> onnx.ModelProto:
    body = helper.make_graph(
        [node("Add", ["v", "v"], ["w"]), node("Identity", ["c"], ["more"])], "b",
        [value("i", INT64, []), value("c", BOOL, []), value("v", FLOAT, [4])],
        [value("more", BOOL, []), value("w", FLOAT, [4])],
    )  # fmt: skip
    return model_of([node("Loop", ["n", "", "x"], ["y"], body=body)], [4], {"n": trips})


def doubled(times: int) -> onnx.ModelProto:
    nodes = [node("Concat", [f"c{k}"] * 2, [f"c{k + 1}"], axis=0) for k in range(1, times)]
    nodes = [node("Concat", ["x", "x"], ["c1"], axis=0), *nodes]
    return model_of([*nodes, node("ReduceMax", [f"c{times}"], ["y"], keepdims=0)], [16], {})


def ranged(count: int) -> onnx.ModelProto:
    nodes = [
        node("Range", ["from", "to", "by"], ["r"]),
        node("Cast", ["r"], ["f"], to=FLOAT),
        node("Add", ["f", "x"], ["y"]),
    ]
    return model_of(nodes, [1], {"from": 0, "to": count, "by": 1})


def squared(size: int) -> onnx.ModelProto:
    nodes = [node("Expand", ["x", "to"], ["a"]), node("MatMul", ["a", "a"], ["y"])]
    return model_of(nodes, [1, 1], {"to": [size, size]})


def read(folder: Path, model: onnx.ModelProto) -> tuple[OnnxModel, Path]:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return simplify(bind(load_model(path, Limits()), {})), path


VAST = {
    "trips": (looped(10**6), "steps"),
    "doubled": (doubled(24), "bytes"),
    "range": (ranged(1 << 28), "bytes"),
    "products": (squared(4096), "steps"),
}


@pytest.mark.parametrize("name", VAST)
def test_what_would_take_too_much_is_told_before_anything_runs(tmp_path: Path, name: str) -> None:
    """Verified, each hung for minutes or died for lack of memory."""
    asked, unit = VAST[name]
    model, path = read(tmp_path, asked)
    why = over_budget(model, path.stat().st_size)
    assert why is not None
    assert why.startswith("it would take ")
    assert unit in why


@pytest.mark.parametrize("verify", ["sample", "full"])
def test_a_compile_stands_without_its_verification(tmp_path: Path, verify: str) -> None:
    _, path = read(tmp_path, looped(10**6))
    options = CompileOptions.from_json({"verify": verify})
    request = JobRequest(path, "m.onnx", {"preset": "a100"}, options, tmp_path / "build")
    started = time.process_time()
    run_job(request, tmp_path / "out", MemoryCache(), NoProgress())
    found = json.loads((tmp_path / "out" / "report.json").read_bytes())["verification"]
    assert found["passed"] is None
    assert found["detail"].startswith("not verified, because it would take "), found
    assert time.process_time() - started < 5


def test_a_model_with_text_is_verified(tmp_path: Path) -> None:
    """A text has no width: counting what it takes ended the job."""
    graph = helper.make_graph(
        [node("StringConcat", ["s", "t"], ["u"]), node("Relu", ["x"], ["y"])], "g",
        [value("s", TensorProto.STRING, [3]), value("t", TensorProto.STRING, [3]),
         value("x", FLOAT, [4])],
        [value("u", TensorProto.STRING, [3]), value("y", FLOAT, [4])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    found, path = read(tmp_path, model)
    s, x = 3 * 32, 4 * 4
    assert cost_of(found).num_bytes == HELD * (3 * s + x) + RUNS * (3 * s + 2 * x)
    assert over_budget(found, path.stat().st_size) is None


def test_a_cost_is_counted_exactly(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])]
    model, _ = read(tmp_path, model_of(nodes, [4, 8], {"w": np.ones((8, 2), np.float32)}))
    cost = cost_of(model)
    assert cost.steps == RUNS * (2 * NODE_STEPS + 4 * 8 * 2 + 4 * 2)
    x, m, y = 4 * 8 * 4, 4 * 2 * 4, 4 * 2 * 4
    assert cost.num_bytes == HELD * max(x + m, m + y) + RUNS * (x + y)


def test_trips_multiply_what_is_inside(tmp_path: Path) -> None:
    few, many = (cost_of(read(tmp_path, looped(k))[0]).steps for k in (10, 1010))
    inside = 2 * NODE_STEPS + TRIP_STEPS
    assert 1000 * inside <= (many - few) / RUNS <= 1000 * (inside + 16)


def test_ordinary_models_are_within_the_budget(tmp_path: Path) -> None:
    model = simplify(bind(load_model(EXAMPLE, Limits()), {}))
    assert over_budget(model, EXAMPLE.stat().st_size) is None
    for small in (looped(1000), doubled(16), ranged(1 << 20), squared(512)):
        found, path = read(tmp_path, small)
        assert over_budget(found, path.stat().st_size) is None


@pytest.mark.parametrize(
    "made",
    [
        node("AveragePool", ["x"], ["y"], kernel_shape=[1 << 40, 3], auto_pad="SAME_UPPER"),
        node("LRN", ["x"], ["y"], size=(1 << 31) - 1),
        node(
            "TfIdfVectorizer", ["x"], ["y"], max_skip_count=1 << 40, min_gram_length=2,
            max_gram_length=2, mode="TF", ngram_counts=[0, 0], ngram_indexes=[0],
            pool_int64s=[1, 2],
        ),
    ],
    ids=lambda made: made.op_type,
)  # fmt: skip
def test_what_attributes_ask_for_is_counted(made: onnx.NodeProto, tmp_path: Path) -> None:
    """Windows and gaps of 2**31 and more places: ONNX Runtime steps over each."""
    is_text = made.op_type == "TfIdfVectorizer"
    graph = helper.make_graph(
        [made], "g", [value("x", INT64, [6]) if is_text else value("x", FLOAT, [1, 1, 5, 5])],
        [onnx.ValueInfoProto(name="y")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    why = over_budget(simplify(bind(load_model(tmp_path / "m.onnx", Limits()), {})), 1000)
    assert why is not None and "steps" in why
