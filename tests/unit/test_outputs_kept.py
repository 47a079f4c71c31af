"""No output is lost: nets whose outputs are copies, equal, given or constant; passes that lose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from region_bundles import compiled_from

from worker.compiler.assembly.packing import bundle_contents, kernel_texts, program_contents
from worker.compiler.errors import PassContractError
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.passes import run_pass
from worker.compiler.frontend.simplify import simplify
from worker.compiler.package.build import build_library
from worker.compiler.package.runtime import load_program

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
Spec = tuple[list[onnx.NodeProto], str, str]
node = helper.make_node
WEIGHTS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3) - 2,
    "two": np.array([2.0], np.float32),
}
CONSTANT = numpy_helper.from_array(WEIGHTS["w"], "value")
SPECIAL = {"m": (BOOL, [2, 3]), "s": (INT64, [2]), "i": (INT64, [2, 2]), "p": (FLOAT, [2, 2]),
           "q": (FLOAT, [2, 2])}  # fmt: skip
"""Types of values that are not 2 x 3 floats."""

MODELS: dict[str, Spec] = {
    "copy": ([node("Relu", ["x"], ["y"]), node("Identity", ["y"], ["z"])], "x", "yz"),
    "copy_first": ([node("Relu", ["x"], ["y"]), node("Identity", ["y"], ["z"])], "x", "zy"),
    "copies": (
        [node("Relu", ["x"], ["r"]), node("Identity", ["r"], ["y"]),
         node("Identity", ["r"], ["z"])], "x", "zy"),
    "chain": (
        [node("Relu", ["x"], ["y"]), node("Identity", ["y"], ["a"]),
         node("Identity", ["a"], ["b"]), node("Exp", ["b"], ["c"])], "x", "bcay"),
    "copy_inside": (
        [node("Relu", ["x"], ["y"]), node("Identity", ["y"], ["r"]), node("Exp", ["r"], ["z"])],
        "x", "yz"),
    "equal": ([node("Relu", ["x"], ["y"]), node("Relu", ["x"], ["z"])], "x", "zy"),
    "equal_read": (
        [node("Relu", ["x"], ["y"]), node("Relu", ["x"], ["z"]), node("Exp", ["z"], ["a"]),
         node("Exp", ["y"], ["b"])], "x", "yzab"),
    "equal_partly": (
        [node("MaxPool", ["n"], ["p3", ""], kernel_shape=[2]),
         node("MaxPool", ["n"], ["q3", "i3"], kernel_shape=[2]),
         node("Unsqueeze", ["x", "axis"], ["n"]),
         *(node("Squeeze", [f"{k}3", "axis"], [k]) for k in "pqi")], "x", "qpi"),
    "dropout": ([node("Relu", ["x"], ["y"]), node("Dropout", ["y"], ["z"])], "x", "yz"),
    "mask": ([node("Relu", ["x"], ["y"]), node("Dropout", ["y"], ["z", "m"])], "x", "mzy"),
    "input": ([node("Relu", ["x"], ["y"]), node("Exp", ["y"], ["z"])], "xu", "uxz"),
    "input_copy": ([node("Identity", ["x"], ["z"]), node("Relu", ["x"], ["y"])], "x", "zy"),
    "weight": ([node("Add", ["x", "w"], ["y"])], "x", "wy"),
    "weight_unread": ([node("Relu", ["x"], ["y"])], "x", "yw"),
    "weight_copy": ([node("Identity", ["w"], ["z"]), node("Relu", ["x"], ["y"])], "x", "zyw"),
    "constant": (
        [node("Constant", [], ["z"], value=CONSTANT), node("Add", ["x", "z"], ["y"])], "x", "zy"),
    "folded": ([node("Add", ["w", "two"], ["z"]), node("Add", ["x", "z"], ["y"])], "x", "zy"),
    "shape": ([node("Shape", ["x"], ["s"]), node("Relu", ["x"], ["y"])], "x", "sy"),
    "nothing": ([node("Identity", ["x"], ["y"])], "x", "y"),
}  # fmt: skip


def built(name: str) -> onnx.ModelProto:
    nodes, inputs, outputs = MODELS[name]
    values = {n: SPECIAL.get(n, (FLOAT, [2, 3])) for n in (*inputs, *outputs)}
    graph = helper.make_graph(
        sorted(nodes, key=lambda n: n.op_type not in ("Unsqueeze", "Relu")), name,
        [helper.make_tensor_value_info(n, *values[n]) for n in inputs],
        [helper.make_tensor_value_info(n, *values[n]) for n in outputs],
        [*(numpy_helper.from_array(a, n) for n, a in WEIGHTS.items()),
         numpy_helper.from_array(np.array([0]), "axis")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("name", MODELS)
def test_every_output_is_there_and_right(name: str, tmp_path: Path) -> None:
    model = built(name)
    compiled = compiled_from(model, "a100", tmp_path)
    contents = bundle_contents(compiled, {}, b"{}", b"{}", b"")
    assert [port.name for port in contents.model.outputs] == [v.name for v in model.graph.output]
    feeds = {
        v.name: np.random.default_rng(k).standard_normal((2, 3)).astype(np.float32)
        for k, v in enumerate(model.graph.input)
    }
    library = build_library(kernel_texts(compiled), tmp_path)
    found = load_program(program_contents(compiled), library).run(feeds)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [v.name for v in session.get_outputs()]
    wanted = dict(zip(names, session.run(None, feeds), strict=True))
    assert list(found) == list(wanted)
    for output, expected in wanted.items():
        assert found[output].dtype == expected.dtype, output
        np.testing.assert_allclose(found[output], expected, rtol=1e-6, err_msg=output)


@pytest.mark.parametrize("name", MODELS)
def test_simplified_models_compute_the_same(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(built(name).SerializeToString())
    simple = simplify(bind(load_model(path, Limits()), {})).ir
    feeds = {v.name: np.ones((2, 3), np.float32) for v in built(name).graph.input}
    results = [
        onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)
        for data in (path.read_bytes(), onnx_ir.to_proto(simple).SerializeToString())
    ]
    for before, after in zip(*results, strict=True):
        np.testing.assert_allclose(before, after, rtol=1e-6)


def _lose(model: onnx_ir.Model) -> None:
    model.graph.outputs.pop()


def _swap(model: onnx_ir.Model) -> None:
    model.graph.outputs[:] = list(reversed(model.graph.outputs))


def _twice(model: onnx_ir.Model) -> None:
    model.graph.outputs[1] = model.graph.outputs[0]


def _retype(model: onnx_ir.Model) -> None:
    model.graph.outputs[0].dtype = onnx_ir.DataType.FLOAT16


def _undefine(model: onnx_ir.Model) -> None:
    maker = model.graph.outputs[0].producer()
    assert maker is not None
    model.graph.remove(maker)


def _lose_input(model: onnx_ir.Model) -> None:
    model.graph.inputs.pop()


@pytest.mark.parametrize("broken", [_lose, _swap, _twice, _retype, _undefine, _lose_input])
def test_a_pass_that_breaks_the_interface_is_named(broken: Callable[[Any], None]) -> None:
    model = onnx_ir.from_proto(built("equal_read"))
    with pytest.raises(PassContractError, match="pass a bad one: ") as caught:
        run_pass("a bad one", model, broken)
    assert caught.value.code == "TW-INT-003"
    assert caught.value.pass_name == "a bad one"


def test_a_bundle_without_one_of_the_outputs_is_not_packed(tmp_path: Path) -> None:
    compiled = compiled_from(built("equal_read"), "a100", tmp_path)
    compiled.model.ir.graph.outputs.pop()
    with pytest.raises(PassContractError, match="pass package: the model's outputs were"):
        bundle_contents(compiled, {}, b"{}", b"{}", b"")


def test_a_program_that_does_not_make_an_output_is_not_packed(tmp_path: Path) -> None:
    compiled = compiled_from(built("equal_read"), "a100", tmp_path)
    calls = compiled.linked.program.calls[:-1]
    program = replace(compiled.linked.program, calls=calls)
    cut = replace(compiled, linked=replace(compiled.linked, program=program))
    with pytest.raises(PassContractError, match="no call of the program makes output"):
        bundle_contents(cut, {}, b"{}", b"{}", b"")


@pytest.mark.parametrize("how", ["no element type", "a symbolic constant"])
def test_what_a_file_declares_badly_is_no_fault_of_a_pass(tmp_path: Path, how: str) -> None:
    """Exporters leave an output's type out, or list a constant among the inputs without sizes."""
    w = helper.make_tensor_value_info("w", FLOAT, ["N", "M"])
    kind = FLOAT if how == "a symbolic constant" else TensorProto.UNDEFINED
    graph = helper.make_graph(
        [node("Relu", ["x"], ["r"]), node("Add", ["r", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", FLOAT, [2, 3]), w],
        [helper.make_tensor_value_info("y", kind, [2, 3])],
        [numpy_helper.from_array(WEIGHTS["w"], "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    compiled = compiled_from(model, "a100", tmp_path)
    contents = bundle_contents(compiled, {}, b"{}", b"{}", b"")
    assert [port.name for port in contents.model.outputs] == ["y"]
