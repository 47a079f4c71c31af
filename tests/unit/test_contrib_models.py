"""Operators of ONNX Runtime's domain: the QLinear family is expressed, others stay on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from region_bundles import compiled_from

from worker.compiler.assembly.packing import kernel_texts, program_contents
from worker.compiler.errors import ModelError
from worker.compiler.package.build import build_library
from worker.compiler.package.runtime import load_program
from worker.compiler.partition.plan import HOST

FLOAT, UINT8, INT8, BOOL = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8, TensorProto.BOOL
DOMAIN = "com.microsoft"
SHAPE = (2, 4, 6, 6)
RNG = np.random.default_rng(5)


def contrib(op_type: str, inputs: list[str], output: str, **own: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, [output], name=output, domain=DOMAIN, **own)


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, Any]],
             outputs: list[str], kind: int = UINT8) -> onnx.ModelProto:  # fmt: skip
    constants = [
        helper.make_tensor("s", FLOAT, [], [0.04]), helper.make_tensor("t", FLOAT, [], [0.07]),
        helper.make_tensor("z", kind, [], [5]), helper.make_tensor("w", kind, [], [9]),
    ]  # fmt: skip
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, k, d) for n, (k, d) in inputs.items()],
        [onnx.ValueInfoProto(name=o) for o in outputs], [c for c in constants if c.name in read],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


A, B, C = ["a", "s", "z"], ["b", "t", "w"], ["t", "z"]
CALLS: dict[str, onnx.NodeProto] = {
    "add": contrib("QLinearAdd", [*A, *B, *C], "add"),
    "mul": contrib("QLinearMul", [*A, *B, *C], "mul"),
    "sigmoid": contrib("QLinearSigmoid", [*A, "s", "z"], "sigmoid"),
    "leaky": contrib("QLinearLeakyRelu", [*A, *C], "leaky", alpha=0.2),
    "softmax": contrib("QLinearSoftmax", [*A, "s", "z"], "softmax", axis=1, opset=13),
    "whole": contrib("QLinearGlobalAveragePool", [*A, *C], "whole", channels_last=0),
    "pool": contrib("QLinearAveragePool", [*A, *C], "pool", kernel_shape=[3, 2], strides=[2, 1],
                    pads=[1, 0, 1, 0]),
    "join": contrib("QLinearConcat", [*C, *A, *B], "join", axis=1),
    "where": contrib("QLinearWhere", ["c", *A, *B, *C], "where"),
}  # fmt: skip
INPUTS = {"a": (UINT8, SHAPE), "b": (UINT8, SHAPE), "c": (BOOL, SHAPE)}


def results(
    model: onnx.ModelProto, inputs: dict[str, Any], folder: Path
) -> tuple[Any, Any, set[str]]:
    """Ours, ONNX Runtime's, and the nodes that are left to the host."""
    made = compiled_from(model, "kapla-16x16", folder)
    library = build_library(kernel_texts(made), folder)
    ours = load_program(program_contents(made), library).run(inputs)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    theirs = dict(
        zip((o.name for o in session.get_outputs()), session.run(None, inputs), strict=True)
    )
    return ours, theirs, {row.node for row in made.placement if row.target == HOST}


def test_the_qlinear_family_is_expressed(tmp_path: Path) -> None:
    a, b = (RNG.integers(0, 256, SHAPE).astype(np.uint8) for _ in range(2))
    inputs = {"a": a, "b": b, "c": RNG.integers(0, 2, SHAPE).astype(bool)}
    model = model_of(list(CALLS.values()), INPUTS, [*CALLS])
    ours, theirs, on_host = results(model, inputs, tmp_path)
    # where an operator has no integer form, its operands' dequantisation may be left behind
    assert {name for name in on_host if "/DequantizeLinear" not in name} == set()
    for name, want in theirs.items():
        have = ours[name]
        assert (have.shape, have.dtype) == (want.shape, want.dtype), name
        # a value on the edge of a rounding may be one step away
        assert np.abs(have.astype(int) - want.astype(int)).max() <= 1, name
        assert (have != want).mean() < 0.02, name


def test_signed_ones_too(tmp_path: Path) -> None:
    a, b = (RNG.integers(-128, 128, (3, 5)).astype(np.int8) for _ in range(2))
    given = {"a": (INT8, [3, 5]), "b": (INT8, [3, 5])}
    model = model_of([CALLS["add"], CALLS["sigmoid"]], given, ["add", "sigmoid"], INT8)
    ours, theirs, on_host = results(model, {"a": a, "b": b}, tmp_path)
    assert on_host == set()
    for name, want in theirs.items():
        assert np.abs(ours[name].astype(int) - want.astype(int)).max() <= 1


@pytest.mark.parametrize("what", ["channels last", "old softmax"])
def test_what_means_something_else_stays_on_the_host(what: str, tmp_path: Path) -> None:
    node = {
        "channels last": contrib("QLinearGlobalAveragePool", [*A, *C], "y", channels_last=1),
        "old softmax": contrib("QLinearSoftmax", [*A, "s", "z"], "y", axis=1, opset=11),
    }[what]
    a = RNG.integers(0, 256, SHAPE).astype(np.uint8)
    model = model_of([node], {"a": (UINT8, SHAPE)}, ["y"])
    ours, theirs, on_host = results(model, {"a": a}, tmp_path)
    assert on_host == {"y"}
    np.testing.assert_array_equal(ours["y"], theirs["y"])


def test_others_run_on_the_host_between_regions(tmp_path: Path) -> None:
    """No shape is recorded: ONNX Runtime's inference gives them."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="r"),
        contrib("FusedMatMul", ["r", "r"], "m", alpha=2.0, transB=1),
        contrib("QuickGelu", ["m"], "g", alpha=1.5),
        helper.make_node("Exp", ["g"], ["y"], name="y"),
    ]
    x = RNG.standard_normal((4, 6)).astype(np.float32)
    ours, theirs, on_host = results(
        model_of(nodes, {"x": (FLOAT, [4, 6])}, ["y"]), {"x": x}, tmp_path
    )
    assert on_host == {"m", "g"}
    np.testing.assert_allclose(ours["y"], theirs["y"], rtol=1e-5)


@pytest.mark.parametrize(
    ("op_type", "code"), [("Nonsense", "TW-MODEL-008"), ("NhwcConv", "TW-UNSUP-002")]
)
def test_what_no_host_has_is_refused_at_its_node(op_type: str, code: str, tmp_path: Path) -> None:
    w = helper.make_tensor("k", FLOAT, [4, 3, 3, 4], np.zeros(144))
    model = model_of([contrib(op_type, ["x", "k"], "y")], {"x": (FLOAT, [1, 6, 6, 4])}, ["y"])
    model.graph.initializer.append(w)
    with pytest.raises(ModelError) as refusal:
        compiled_from(model, "kapla-16x16", tmp_path)
    assert (refusal.value.code, refusal.value.place.node) == (code, "y")
