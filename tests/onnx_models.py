"""Small ONNX models made on the spot, for tests that must not need any file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def _weights(rng: np.random.Generator, name: str, *shape: int) -> onnx.TensorProto:
    scale = 1.0 / np.sqrt(max(1, int(np.prod(shape[1:]))))
    return numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name)


def conv_net(batch: int | str = 1) -> onnx.ModelProto:
    """conv -> batchnorm -> relu -> residual -> maxpool -> flatten -> gemm -> softmax."""
    rng = np.random.default_rng(3)
    positive = numpy_helper.from_array(rng.uniform(0.5, 1.5, 8).astype(np.float32), "var")
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], name="stem/conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c1", "s", "b", "m", "var"], ["n1"], name="bn"),
        helper.make_node("Relu", ["n1"], ["r1"], name="relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="block/conv", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["a1"], name="block/add"),
        helper.make_node("MaxPool", ["a1"], ["p1"], name="pool", kernel_shape=[2, 2],
                         strides=[2, 2]),
        helper.make_node("Flatten", ["p1"], ["f1"], name="flatten"),
        helper.make_node("Gemm", ["f1", "w3", "b3"], ["g1"], name="head", transB=1),
        helper.make_node("Softmax", ["g1"], ["y"], name="prob"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "conv_net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 10])],
        [
            _weights(rng, "w1", 8, 3, 3, 3), _weights(rng, "w2", 8, 8, 3, 3),
            _weights(rng, "w3", 10, 288), _weights(rng, "b3", 10), _weights(rng, "s", 8),
            _weights(rng, "b", 8), _weights(rng, "m", 8), positive,
        ],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def one_conv(size: int, channels: int, filters: int, kernel: int, stride: int) -> onnx.ModelProto:
    """A convolution of a square image, not padded."""
    rng = np.random.default_rng(4)
    out = (size - kernel) // stride + 1
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", strides=[stride, stride])],
        "one_conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, filters, out, out])],
        [_weights(rng, "w", filters, channels, kernel, kernel)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def repeated_layers(count: int = 4, width: int = 32) -> onnx.ModelProto:
    """`count` equal MatMul + Relu layers with different weights."""
    rng = np.random.default_rng(5)
    nodes, weights, last = [], [], "x"
    for k in range(count):
        weights.append(_weights(rng, f"w{k}", width, width))
        nodes += [
            helper.make_node("MatMul", [last, f"w{k}"], [f"m{k}"], name=f"layer{k}/matmul"),
            helper.make_node("Relu", [f"m{k}"], [f"r{k}"], name=f"layer{k}/relu"),
        ]
        last = f"r{k}"
    graph = helper.make_graph(
        nodes,
        "repeated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, width])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [16, width])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def with_host_part() -> onnx.ModelProto:
    """MatMul -> NonZero-free host op (TopK) -> MatMul: the middle cannot be accelerated."""
    rng = np.random.default_rng(7)
    k = numpy_helper.from_array(np.array([8], dtype=np.int64), "k")
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["m0"], name="first"),
        helper.make_node("TopK", ["m0", "k"], ["v", "i"], name="top"),
        helper.make_node("MatMul", ["v", "w1"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "with_host_part",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 6])],
        [_weights(rng, "w0", 16, 16), _weights(rng, "w1", 8, 6), k],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def saved(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    """Write a model and give its path."""
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path
