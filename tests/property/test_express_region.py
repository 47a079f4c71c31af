"""Whole regions: names, hand-over of constants, and the meaning of several nodes together."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from express_oracle import model_of, onnxruntime, ours

from worker.compiler.frontend.express import Expressed, express_region
from worker.compiler.ir.evaluate import evaluate

RNG = np.random.default_rng(5)


def attention() -> onnx.ModelProto:
    """Two heads of attention with a residual, LayerNormalization and Gelu."""
    make = onnx.helper.make_node
    nodes = [
        make("MatMul", ["x", "wqkv"], ["qkv"], name="qkv"),
        make("Split", ["qkv"], ["q", "k", "v"], name="split", axis=2, num_outputs=3),
        *(
            node
            for t, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
            for node in (
                make("Reshape", [t, "heads"], [f"{t}r"], name=f"reshape_{t}"),
                make("Transpose", [f"{t}r"], [f"{t}t"], name=f"turn_{t}", perm=perm),
            )
        ),
        make("MatMul", ["qt", "kt"], ["raw"], name="scores"),
        make("Mul", ["raw", "scale"], ["scaled"], name="scale"),
        make("Softmax", ["scaled"], ["p"], name="softmax", axis=-1),
        make("MatMul", ["p", "vt"], ["mixed"], name="mix"),
        make("Transpose", ["mixed"], ["turned"], name="turn_back", perm=[0, 2, 1, 3]),
        make("Reshape", ["turned", "flat"], ["joined"], name="join"),
        make("Add", ["joined", "x"], ["residual"], name="residual"),
        make("LayerNormalization", ["residual", "gamma", "beta"], ["normal"], name="norm"),
        make("Gelu", ["normal"], ["y"], name="gelu"),
    ]
    values: dict[str, npt.NDArray[Any]] = {
        "wqkv": RNG.standard_normal((8, 24)).astype(np.float32),
        "heads": np.asarray([0, 0, 2, 4], np.int64),
        "flat": np.asarray([0, 0, 8], np.int64),
        "scale": np.asarray(0.5, np.float32),
        "gamma": RNG.standard_normal(8).astype(np.float32),
        "beta": RNG.standard_normal(8).astype(np.float32),
    }
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [info("x", onnx.TensorProto.FLOAT, [2, 5, 8])],
        [info("y", onnx.TensorProto.FLOAT, [2, 5, 8])],
        [onnx.numpy_helper.from_array(a, n) for n, a in values.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 20)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def expressed(model: onnx.ModelProto, outputs: list[str]) -> Expressed:
    return express_region(list(ir.serde.deserialize_model(model).graph), outputs, 20)


def run(region: Expressed, **inputs: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    constants = {name: thunk() for name, thunk in region.constants.items()}
    return evaluate(region.graph, {**inputs, **constants})


def test_a_region_means_what_the_model_means() -> None:
    model = attention()
    x = RNG.standard_normal((2, 5, 8)).astype(np.float32)
    expected = onnxruntime(renamed(model), [x])[0]
    got = run(expressed(model, ["y"]), x=x)["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its input called x0, as the oracle expects."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    other.graph.input[0].name = "x0"
    for node in other.graph.node:
        node.input[:] = ["x0" if n == "x" else n for n in node.input]
    return other


def test_only_what_operators_read_is_a_constant() -> None:
    graph = expressed(attention(), ["y"]).graph
    assert graph.inputs == ("x",)
    assert graph.outputs == ("y",)
    assert graph.constants == ("wqkv", "gamma", "beta")


def test_tensors_keep_their_names_and_every_node_is_accounted_for() -> None:
    model = attention()
    graph = expressed(model, ["y"]).graph
    written = {n for node in model.graph.node for n in node.output}
    assert written <= set(graph.tensors)
    origins = {name for op in graph.ops for name in op.origin.nodes}
    assert origins == {node.name for node in model.graph.node}


def test_expressing_twice_gives_the_same_graph() -> None:
    assert expressed(attention(), ["y"]).graph == expressed(attention(), ["y"]).graph


def test_an_intermediate_never_takes_the_name_of_a_model_tensor() -> None:
    make = onnx.helper.make_node
    info = onnx.helper.make_tensor_value_info
    nodes = [make("Softmax", ["x"], ["y"], name="a"), make("Relu", ["y"], ["y.max"], name="b")]
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [info("x", onnx.TensorProto.FLOAT, [2, 3])],
        [info("y.max", onnx.TensorProto.FLOAT, [2, 3])],
    )
    region = expressed(onnx.helper.make_model(graph), ["y.max"])
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    powers = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(
        run(region, x=x)["y.max"], powers / powers.sum(-1, keepdims=True), rtol=1e-5
    )


def test_bfloat16_computes_in_f32_and_rounds_once() -> None:
    a = RNG.standard_normal((3, 40)).astype(ml_dtypes.bfloat16)
    b = RNG.standard_normal((40, 5)).astype(ml_dtypes.bfloat16)
    model = model_of("MatMul", [a, b], constants=(1,), output_type=onnx.TensorProto.BFLOAT16)
    exact = a.astype(np.float32) @ b.astype(np.float32)
    rounded = exact.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_allclose(ours(model, [a, None])[0], rounded, rtol=2**-7)


def test_a_bfloat16_scalar_is_stored() -> None:
    x = np.asarray(1.5, np.float32)
    model = model_of(
        "Cast", [x], {"to": onnx.TensorProto.BFLOAT16}, output_type=onnx.TensorProto.BFLOAT16
    )
    assert ours(model, [x])[0] == np.float32(1.5)
