"""What an operator's definition forbids is refused at ingest, by the user's node, whatever runs.

Each case is legal but for one thing; `test_the_same_node_without_the_fault` compiles it without.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.illegal_nodes.__main__ import judged
from benchmarks.onnx_coverage import Case
from worker.compiler.control.shapes import settle_shapes
from worker.compiler.errors import ModelError
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.simplify import simplify

X = (1, 4, 8, 8)


def _i(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def _w(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


def _one(value: float) -> np.ndarray[Any, Any]:
    return np.array(value, np.float32)


GOOD: dict[str, tuple[str, Mapping[str, Any], tuple[Any, ...]]] = {
    "conv": ("Conv", {"group": 2, "pads": [1, 1, 1, 1]}, (_w(6, 2, 3, 3),)),
    "pool": ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, ()),
    "gather": ("Gather", {"axis": 1}, (_i(0, 3),)),
    "gather_elements": ("GatherElements", {"axis": 1}, (np.zeros(X, np.int64),)),
    "scatter": ("ScatterElements", {"axis": 1},
                (np.zeros((1, 1, 1, 1), np.int64), _w(1, 1, 1, 1))),
    "gather_nd": ("GatherND", {}, (_i(0, 3).reshape(1, 2),)),
    "reshape": ("Reshape", {}, (_i(0, -1, 4),)),
    "slice": ("Slice", {}, (_i(0), _i(4), _i(1), _i(2))),
    "transpose": ("Transpose", {"perm": [0, 2, 3, 1]}, ()),
    "reduce": ("ReduceSum", {}, (_i(1, -1),)),
    "softmax": ("Softmax", {"axis": -4}, ()),
    "concat": ("Concat", {"axis": 3}, (_w(1, 4, 8, 2),)),
    "expand": ("Expand", {}, (_i(2, 4, 8, 8),)),
    "tile": ("Tile", {}, (_i(1, 1, 1, 2),)),
    "pad": ("Pad", {"mode": "reflect"}, (_i(0, 0, 1, 1, 0, 0, 1, 1),)),
    "resize": ("Resize", {}, (_w(0), np.array([1, 1, 2, 2], np.float32))),
    "quantize": ("QuantizeLinear", {}, (_one(0.5), np.array(0, np.uint8))),
    "top_k": ("TopK", {"axis": 1}, (_i(4),)),
    "einsum": ("Einsum", {"equation": "abcd,de->abce"}, (_w(8, 3),)),
    "depth": ("DepthToSpace", {"blocksize": 2}, ()),
    "split": ("Split", {"axis": 1}, (_i(4),)),
}  # fmt: skip
FAULTS: list[tuple[str, Mapping[str, Any], Mapping[int, Any]]] = [
    ("conv", {"group": 3}, {}),
    ("conv", {"group": 1}, {}),
    ("conv", {"kernel_shape": [5, 5]}, {}),
    ("conv", {"strides": [0, 1]}, {}),
    ("conv", {"dilations": [1]}, {}),
    ("conv", {"pads": [1, 1]}, {}),
    ("conv", {"pads": [-1, 0, 0, 0]}, {}),
    ("conv", {"auto_pad": "SOME"}, {}),
    ("conv", {"dilations": [9, 9]}, {}),
    ("pool", {"kernel_shape": [2]}, {}),
    ("pool", {"ceil_mode": 2**31 - 1}, {}),
    ("reduce", {"keepdims": -(2**31)}, {}),
    ("top_k", {"largest": 2}, {}),
    ("gather", {"axis": 2**63 - 1}, {}),
    ("gather", {"axis": -(2**63)}, {}),
    ("pool", {"pads": [2, 2, 2, 2]}, {}),
    ("gather", {}, {0: _i(0, 4)}),
    ("gather", {"axis": 4}, {}),
    ("gather_elements", {}, {0: np.full(X, -5)}),
    ("scatter", {"reduction": "xor"}, {}),
    ("gather_nd", {}, {0: _i(0, 4).reshape(1, 2)}),
    ("reshape", {}, {0: _i(3, -1)}),
    ("reshape", {}, {0: _i(-1, -1)}),
    ("reshape", {}, {0: _i(-2, 4)}),
    ("reshape", {}, {0: _i(1, 4, 8, 8, 0)}),
    ("slice", {}, {3: _i(0)}),
    ("slice", {}, {2: _i(4)}),
    ("transpose", {"perm": [0, 2, 2, 1]}, {}),
    ("reduce", {}, {0: _i(1, 1)}),
    ("reduce", {}, {0: _i(4)}),
    ("softmax", {"axis": 4}, {}),
    ("concat", {"axis": 1}, {}),
    ("expand", {}, {0: _i(2, 3, 8, 8)}),
    ("tile", {}, {0: _i(1, 1, -1, 1)}),
    ("pad", {"mode": "round"}, {}),
    ("pad", {}, {0: _i(0, 0, 8, 1, 0, 0, 1, 1)}),
    ("resize", {}, {1: np.array([1, 1, 0, 2], np.float32)}),
    ("resize", {}, {1: np.array([1, 1, np.nan, 2], np.float32)}),
    ("resize", {}, {1: np.array([1, 2, 2], np.float32)}),
    ("quantize", {}, {0: _one(0.0)}),
    ("quantize", {}, {0: _one(-0.5)}),
    ("top_k", {}, {0: _i(5)}),
    ("einsum", {"equation": "abcd,de->abcf"}, {}),
    ("einsum", {"equation": "abcd->abc"}, {}),
    ("depth", {"mode": "ABC"}, {}),
    ("depth", {"blocksize": 3}, {}),
    ("split", {}, {0: _i(3)}),
    ("softmax", {"axes": [1]}, {}),
    ("softmax", {"axis": "last"}, {}),
]
NAME = "the user's node"


def _model(
    name: str, attributes: Mapping[str, Any], constants: Mapping[int, Any], batch: int | str = 1
) -> onnx.ModelProto:
    op_type, given, values = GOOD[name]
    arrays = [np.asarray(constants.get(k, v)) for k, v in enumerate(values)]
    names = [f"c{k}" for k in range(len(arrays))]
    count = 2 if op_type == "TopK" else 1
    outputs = [f"y{k}" for k in range(count)]
    first = TensorProto.UINT8 if op_type == "QuantizeLinear" else TensorProto.FLOAT
    kinds = (first, TensorProto.INT64)
    node = helper.make_node(op_type, ["x", *names], outputs, name=NAME, **{**given, **attributes})
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, *X[1:]])],
        [
            helper.make_tensor_value_info(n, kind, None)
            for n, kind in zip(outputs, kinds, strict=False)
        ],
        [numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _ingest(model: onnx.ModelProto, folder: Path, **symbols: int) -> OnnxModel:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return simplify(bind(load_model(path, Limits()), symbols))


@pytest.mark.parametrize("name", GOOD)
def test_the_same_node_without_the_fault(name: str, tmp_path: Path) -> None:
    assert _ingest(_model(name, {}, {}), tmp_path).ir.graph.outputs


@pytest.mark.parametrize(
    ("name", "attributes", "constants"),
    FAULTS,
    ids=[f"{n}-{a or c}"[:60].replace("\n", " ") for n, a, c in FAULTS],
)
def test_an_illegal_node_is_refused_by_its_name(
    name: str, attributes: Mapping[str, Any], constants: Mapping[int, Any], tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as found:
        _ingest(_model(name, attributes, constants), tmp_path)
    assert found.value.place.node == NAME
    assert found.value.code in ("TW-MODEL-006", "TW-MODEL-018", "TW-MODEL-021")
    assert found.value.remedy


def test_a_fault_that_a_symbol_makes_is_found_when_it_is_bound(tmp_path: Path) -> None:
    model = _model("reshape", {}, {0: _i(6, -1)}, batch="n")
    assert _ingest(model, tmp_path, n=3).ir.graph.outputs
    with pytest.raises(ModelError) as found:
        _ingest(model, tmp_path, n=2)
    assert (found.value.code, found.value.place.node) == ("TW-MODEL-021", NAME)
    assert (found.value.limit, found.value.actual) == (512, 6)


def test_a_branch_for_another_shape_is_no_fault(tmp_path: Path) -> None:
    """Exporters write Squeeze under an If that asks whether the dimension is 1."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    cond = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    bodies = {
        "then_branch": helper.make_graph(
            [helper.make_node("Squeeze", ["x", "zero"], ["t"])], "t", [],
            [onnx.ValueInfoProto(name="t")],
        ),
        "else_branch": helper.make_graph(
            [helper.make_node("Identity", ["x"], ["e"])], "e", [], [onnx.ValueInfoProto(name="e")]
        ),
    }  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], name=NAME, **bodies)], "g", [cond, x],
        [onnx.ValueInfoProto(name="y")], [numpy_helper.from_array(_i(0), "zero")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    assert _ingest(model, tmp_path, n=3).ir.graph.outputs


def test_a_fault_behind_a_loop_is_found_when_its_shape_settles(tmp_path: Path) -> None:
    """Only interpreting the body tells the result's shape."""
    for target, is_legal in ((_i(-1, 4), True), (_i(5, -1), False)):
        path = tmp_path / "m.onnx"
        path.write_bytes(_behind_a_loop(target).SerializeToString())
        model = simplify(bind(load_model(path, Limits()), {}))
        if is_legal:
            assert settle_shapes(model)
            continue
        with pytest.raises(ModelError) as found:
            settle_shapes(model)
        assert (found.value.code, found.value.place.node) == ("TW-MODEL-021", NAME)


def _behind_a_loop(target: np.ndarray[Any, Any]) -> onnx.ModelProto:
    body = helper.make_graph(
        [helper.make_node("Relu", ["v"], ["w"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info("k", TensorProto.INT64, []),
         helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         onnx.ValueInfoProto(name="v")],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), onnx.ValueInfoProto(name="w")],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "x"], ["z"], name="loop", body=body),
         helper.make_node("Reshape", ["z", "target"], ["y"], name=NAME)],
        "behind", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.array(3, np.int64), "trips"),
         numpy_helper.from_array(target, "target")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_the_benchmark_knows_a_miss_and_an_alarm() -> None:
    """It judges a case by oracles of its own; of these three all that is illegal is refused."""
    cases = []
    for name in ("conv", "gather", "reshape"):
        model = onnx.shape_inference.infer_shapes(_model(name, {}, {}), data_prop=True)
        feeds = [numpy_helper.to_array(t) for t in model.graph.initializer]
        for tensor in list(model.graph.initializer):
            model.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
        del model.graph.initializer[:]
        cases.append(Case(name, GOOD[name][0], model, (_w(*X), *feeds), (), 0.0, 0.0))
    rows = list(judged(cases, 1))
    assert sum(bool(row.oracle) for row in rows) > 30
    assert [row for row in rows if row.is_miss] == []


def test_a_function_that_its_types_contradict_is_no_internal_error(tmp_path: Path) -> None:
    """Attention may have values of another type than its keys; its definition multiplies them."""
    shape = [1, 2, 3, 4]
    kinds = {"q": TensorProto.FLOAT, "k": TensorProto.FLOAT, "v": TensorProto.FLOAT16}
    graph = helper.make_graph(
        [helper.make_node("Attention", list(kinds), ["y"], name=NAME, is_causal=1)], "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind in kinds.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    assert _ingest(model, tmp_path).ir.graph.outputs
