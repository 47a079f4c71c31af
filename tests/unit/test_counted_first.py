"""Nodes, calls, lists, steps and trips are counted before anything writes them out or runs them."""

from __future__ import annotations

import itertools
import resource
import string
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.control.shapes import settle_shapes
from worker.compiler.errors import ModelError
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.propagation import may_propagate
from worker.compiler.frontend.simplify import simplify
from worker.compiler.frontend.sizes import require_sizes

FLOAT, OPSET = TensorProto.FLOAT, helper.make_opsetid("", 18)
MINE = helper.make_opsetid("mine", 1)
node = helper.make_node


def ingest(folder: Path, model: onnx.ModelProto) -> OnnxModel:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    read = simplify(bind(load_model(path, Limits()), {}))
    settle_shapes(read)
    require_sizes(read, Limits())
    return read


def model_of(
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, object],
    shape: Sequence[int] = (2, 3),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[OPSET, MINE], ir_version=9, functions=list(functions)
    )


def calling(levels: int, width: int, last: str = "") -> onnx.ModelProto:
    """Functions that each call the one before `width` times; the first calls `last`, if any."""
    functions = []
    for level in range(levels):
        callee = f"F{level - 1}" if level else last
        names = ["x", *(f"t{k}" for k in range(width - 1)), "y"]
        calls = [
            node(callee, [a], [b], domain="mine") if callee else node("Relu", [a], [b])
            for a, b in itertools.pairwise(names)
        ]
        functions.append(
            helper.make_function("mine", f"F{level}", ["x"], ["y"], calls, [OPSET, MINE])
        )
    top = node(f"F{levels - 1}", ["x"], ["y"], name="top", domain="mine")
    return model_of([top], {}, functions=functions)


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (calling(40, 2), "TW-MODEL-014"),
        (calling(3000, 1), "TW-MODEL-014"),
        (calling(2, 1, last="F1"), "TW-MODEL-008"),
    ],
    ids=["a million million nodes", "three thousand calls deep", "recursion"],
)
def test_functions_are_counted_before_they_are_inlined(
    tmp_path: Path, model: onnx.ModelProto, code: str
) -> None:
    with pytest.raises(ModelError) as found:
        ingest(tmp_path, model)
    assert (found.value.code, found.value.place.node) == (code, "top")


def test_functions_within_the_limits_are_inlined(tmp_path: Path) -> None:
    """Every level doubles the nodes."""
    assert len(ingest(tmp_path, calling(6, 2)).ir.graph) == 64


@pytest.mark.parametrize("source", ["shape", "constant"])
def test_inference_carries_no_list_that_doubles_without_end(tmp_path: Path, source: str) -> None:
    """As many doublings as a dimension bears; one more took 5 GB and 20 s in ONNX's inference."""
    nodes = [node("Shape", ["x"], ["d0"])] if source == "shape" else []
    nodes += [node("Concat", [f"d{k}"] * 2, [f"d{k + 1}"], axis=0) for k in range(29)]
    nodes += [node("ReduceSum", ["d29"], ["r"], keepdims=0), node("Cast", ["r"], ["y"], to=FLOAT)]
    model = model_of(nodes, {"d0": np.ones(2, np.int64)} if source == "constant" else {})
    assert not may_propagate(model)
    started = time.process_time()
    assert ingest(tmp_path, model).ir.graph.outputs
    assert time.process_time() - started < 5


LONG = 1 << 26
LISTS = {
    "vectors": ([node("Add", ["x", "x"], ["y"])], [LONG]),
    "doubled": (
        [node("Concat", ["x", "x"], ["c0"], axis=0)]
        + [node("Concat", [f"c{k}"] * 2, [f"c{k + 1}"], axis=0) for k in range(22)]
        + [node("Neg", ["c22"], ["y"])],
        [16],
    ),
    "stretched": (
        [node("Expand", ["x", "long"], ["e"]), node("Concat", ["e", "e"], ["y"], axis=0)],
        [1],
    ),
    "computed": (
        [node("Shape", ["x"], ["s"]), node("Mul", ["s", "long"], ["t"]),
         node("ConstantOfShape", ["t"], ["e"]), node("Add", ["e", "e"], ["y"])],
        [1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_inference_makes_no_list_of_a_long_vector(tmp_path: Path, name: str) -> None:
    """An Add of two vectors of four million floats took 700 MB: an unknown entry per element."""
    nodes, shape = LISTS[name]
    used = any("long" in each.input for each in nodes)
    model = model_of(nodes, {"long": np.array([LONG])} if used else {}, shape)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert ingest(tmp_path, model).ir.graph.outputs
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


def test_an_ordinary_shape_is_carried(tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Concat", ["s", "one"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["y"]),
    ]
    model = model_of(nodes, {"one": np.ones(1, np.int64)})
    assert may_propagate(model)
    assert list(ingest(tmp_path, model).ir.graph.outputs[0].shape or ()) == [2, 3, 1]


@pytest.mark.parametrize("is_constant", [True, False])
def test_steps_of_an_einsum_are_counted(tmp_path: Path, is_constant: bool) -> None:
    """Twenty-four letters of eight values make one number in 8**24 steps."""
    letters = string.ascii_letters[:24]
    names = [f"a{k}" for k in range(24)]
    ein = node("Einsum", names, ["e"], name="ein", equation=",".join(letters) + "->")
    model = model_of(
        [ein, node("Add", ["e", "x"], ["y"])],
        {name: np.ones(8, np.float32) for name in names} if is_constant else {},
    )
    if not is_constant:
        inputs = [helper.make_tensor_value_info(name, FLOAT, [8]) for name in names]
        model.graph.input.extend(inputs)
    with pytest.raises(ModelError) as found:
        ingest(tmp_path, model)
    assert (found.value.code, found.value.place.node) == ("TW-MODEL-014", "ein")
    assert found.value.actual == str(8**24)


def looping(trips: int, inner: int = 0, *, may_end: bool = False) -> onnx.ModelProto:
    """A Loop, and one inside it of `inner` trips; with `may_end` its data may stop it."""

    def body(depth: int) -> onnx.GraphProto:
        work = node("Relu", [f"v{depth}"], [f"w{depth}"])
        if inner and depth == 0:
            work = node("Loop", ["inner", "", "v0"], ["w0"], name="inside", body=body(1))
        going = node("Identity", [f"go{depth}"], [f"on{depth}"])
        if may_end and depth == 0:
            going = node("Equal", ["k0", "stop"], ["on0"])
        return helper.make_graph(
            [work, going], f"body{depth}",
            [helper.make_tensor_value_info(f"k{depth}", TensorProto.INT64, []),
             helper.make_tensor_value_info(f"go{depth}", TensorProto.BOOL, []),
             helper.make_tensor_value_info(f"v{depth}", FLOAT, [2, 3])],
            [helper.make_tensor_value_info(f"on{depth}", TensorProto.BOOL, []),
             helper.make_tensor_value_info(f"w{depth}", FLOAT, [2, 3])],
        )  # fmt: skip

    loop = node("Loop", ["trips", "", "x"], ["y"], name="outside", body=body(0))
    numbers = {"trips": trips, "inner": inner, "stop": 0}
    return model_of([loop], {k: np.array(v, np.int64) for k, v in numbers.items()})


@pytest.mark.parametrize(
    ("trips", "inner", "where"), [(2**60, 0, "outside"), (2**11, 2**11, "inside")]
)
def test_certain_trips_are_counted(tmp_path: Path, trips: int, inner: int, where: str) -> None:
    with pytest.raises(ModelError) as found:
        ingest(tmp_path, looping(trips, inner))
    assert (found.value.code, found.value.place.node) == ("TW-MODEL-014", where)


def test_the_largest_integer_means_while(tmp_path: Path) -> None:
    assert ingest(tmp_path, looping(2**63 - 1, may_end=True)).ir.graph.outputs
    assert ingest(tmp_path, looping(100, 100)).ir.graph.outputs


@pytest.mark.parametrize("kind", ["elements", "steps"])
def test_what_folding_makes_of_all_nodes_is_counted(tmp_path: Path, kind: str) -> None:
    """Forty nodes of 16 MB each are small one by one."""
    size = [1 << 22] if kind == "elements" else [1024, 1024]
    nodes, names = [], [f"c{k}" for k in range(40)]
    for name in names:
        shape = numpy_helper.from_array(np.array(size))
        nodes.append(node("ConstantOfShape", [f"s_{name}"], [f"o_{name}"]))
        kinds = ["Add", "MatMul"]
        nodes.append(node(kinds[kind == "steps"], [f"o_{name}"] * 2, [name], name=name))
        nodes.insert(0, node("Constant", [], [f"s_{name}"], value=shape))
    nodes += [node("Sum", names, ["t"]), node("ReduceMax", ["t"], ["r"], keepdims=0)]
    model = model_of([*nodes, node("Add", ["x", "r"], ["y"])], {})
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    left = ingest(tmp_path, model).ir.graph
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 * 1024
    assert time.process_time() - started < 10
    assert any(each.op_type in ("Add", "MatMul") and each.name in names for each in left)
