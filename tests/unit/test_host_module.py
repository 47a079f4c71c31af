"""Host parts in ONNX Runtime: quantised graphs load and round as they are written."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.errors import CompilerError
from worker.compiler.package.host_module import HostModule


def test_a_dequantised_value_may_be_rearranged_before_it_is_read() -> None:
    """The runtime's own optimisation of this graph gives the i8 value a u8 zero point."""
    scale, zero = np.array(0.1, np.float32), np.array(3, np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["f"], name="dequantise"),
        helper.make_node("Transpose", ["f"], ["t"], name="turn", perm=[1, 0]),
        helper.make_node("Sin", ["t"], ["y"], name="sin"),
    ]
    graph = helper.make_graph(
        nodes,
        "host",
        [helper.make_tensor_value_info("q", TensorProto.INT8, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 2])],
        [numpy_helper.from_array(scale, "s"), numpy_helper.from_array(zero, "z")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    values = np.array([[-128, -7, 0], [3, 50, 127]], np.int8)
    module = HostModule([model.SerializeToString()], threads=1)
    (found,) = module.run(0, ["y"], {"q": values})
    expected = np.sin((values.astype(np.float32).T - 3) * scale)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_quantised_parts_round_like_the_model_unoptimised() -> None:
    """A factor folded into weights rounds otherwise: some element is a quantisation step away."""
    rng = np.random.default_rng(5)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Mul", ["c", "m"], ["f"], name="mul"),
        helper.make_node("QuantizeLinear", ["f", "s", "z"], ["y"], name="quantise"),
    ]
    shape = [1, 64, 40, 40]
    graph = helper.make_graph(
        nodes,
        "host",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT8, shape)],
        [
            numpy_helper.from_array(normal(64, 64, 1, 1) / np.float32(8), "w"),
            numpy_helper.from_array(normal(64, 1, 1), "m"),
            numpy_helper.from_array(np.array(0.02, np.float32), "s"),
            numpy_helper.from_array(np.array(0, np.int8), "z"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    data = model.SerializeToString()
    plain = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    module = HostModule([data], threads=1)
    for _ in range(24):
        x = normal(*shape)
        (found,) = module.run(0, ["y"], {"x": x})
        (expected,) = plain.run(None, {"x": x})
        np.testing.assert_array_equal(found, expected)


def squeeze() -> bytes:
    """Squeeze of an axis whose extent the model does not say."""
    graph = helper.make_graph(
        [helper.make_node("Squeeze", ["x", "axes"], ["y"], name="squeeze")], "host",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [numpy_helper.from_array(np.array([0], np.int64), "axes")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return made.SerializeToString()


def test_what_the_runtime_raises_names_the_users_node() -> None:
    module = HostModule([squeeze()], threads=1)
    with pytest.raises(CompilerError) as caught:
        module.run(0, ["y"], {"x": np.zeros((2, 3), np.float32)})
    assert (caught.value.code, caught.value.place.node) == ("TW-RUN-003", "squeeze")
    with pytest.raises(CompilerError) as caught:
        module.run(0, ["y"], {"other": np.zeros((1, 3), np.float32)})  # ValueError of its Python
    assert caught.value.code == "TW-RUN-003"
    with pytest.raises(CompilerError) as caught:
        HostModule([b"no model"], threads=1)
    assert caught.value.code == "TW-RUN-003"


def test_a_fault_of_ours_is_not_blamed_on_the_runtime() -> None:
    class Unreadable(UserDict[str, np.ndarray]):
        def __iter__(self) -> Iterator[str]:
            raise LookupError("a fault of ours")

    module = HostModule([squeeze()], threads=1)
    with pytest.raises(LookupError, match="a fault of ours"):
        module.run(0, ["y"], Unreadable(x=np.zeros((1, 3), np.float32)))
