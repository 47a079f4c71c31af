"""Small convolutional nets with random weights, for the example's NPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    """Grows node by node; values have channels, rows and columns."""

    def __init__(self, channels: int, side: int) -> None:
        self._rng = np.random.default_rng(0)
        self.given: tuple[int, ...] = (channels, side, side)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self.shape_of: dict[str, tuple[int, ...]] = {"x": self.given}

    def node(
        self, op_type: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any
    ) -> str:
        """The name of its output."""
        name = f"{op_type.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        self.shape_of[name] = shape
        return name

    def constant(self, value: Any) -> str:
        name = f"w{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def whole(self, *shape: int) -> str:
        """A shape as a constant."""
        name = f"w{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.array(shape, np.int64), name))
        return name

    def weight(self, *shape: int) -> str:
        """Of a scale that keeps that of what goes through."""
        draw = self._rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
        return self.constant(draw)

    def conv(
        self, x: str, channels: int, size: int = 3, stride: int = 1, groups: int = 1,
        then: str = "Relu",
    ) -> str:  # fmt: skip
        """A padded convolution with bias, and an activation (empty: none)."""
        given, side, _ = self.shape_of[x]
        pad = size // 2
        out = (side + 2 * pad - size) // stride + 1
        shape = (channels, out, out)
        weights = [self.weight(channels, given // groups, size, size), self.weight(channels)]
        y = self.node(
            "Conv", [x, *weights], shape, pads=[pad] * 4, strides=[stride] * 2, group=groups
        )
        match then:
            case "":
                return y
            case "Clip":
                return self.node("Clip", [y, self.constant(0), self.constant(6)], shape)
            case "Swish":
                return self.node("Mul", [y, self.node("Sigmoid", [y], shape)], shape)
            case _:
                return self.node(then, [y], shape)

    def head(self, x: str) -> str:
        """A mean over the image, and ten classes."""
        channels, _, _ = self.shape_of[x]
        mean = self.node("GlobalAveragePool", [x], (channels, 1, 1))
        flat = self.node("Flatten", [mean], (channels,))
        ends = [self.weight(10, channels), self.weight(10)]
        return self.node("Gemm", [flat, *ends], (10,), transB=1)

    def save(self, path: Path, *outputs: str) -> Path:
        graph = helper.make_graph(
            self._nodes, "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, *self.given])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, *self.shape_of[name]])
             for name in outputs],
            self._constants,
        )  # fmt: skip
        opset = [helper.make_opsetid("", 18)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
        return path


def plain(path: Path) -> Path:
    """Convolutions and a pool, one behind the other."""
    net = Net(3, 32)
    x = net.conv(net.conv("x", 32), 32)
    x = net.node("MaxPool", [x], (32, 16, 16), kernel_shape=[2, 2], strides=[2, 2])
    return net.save(path, net.head(net.conv(net.conv(x, 64), 64, stride=2)))


def residual(path: Path) -> Path:
    """Three blocks with shortcuts, as residual networks have."""
    net = Net(3, 32)
    x = net.conv("x", 16)
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        y = net.conv(net.conv(x, channels, stride=stride), channels, then="")
        short = x if stride == 1 else net.conv(x, channels, 1, stride, then="")
        shape = net.shape_of[y]
        x = net.node("Relu", [net.node("Add", [y, short], shape)], shape)
    return net.save(path, net.head(x))


def mobile(path: Path) -> Path:
    """Inverted bottlenecks with depthwise convolutions."""
    net = Net(3, 32)
    x = net.conv("x", 16, stride=2, then="Clip")
    for channels, stride, factor in ((16, 1, 2), (24, 2, 4), (24, 1, 4), (32, 2, 4)):
        given = net.shape_of[x][0]
        wide = given * factor
        y = net.conv(net.conv(x, wide, 1, then="Clip"), wide, 3, stride, wide, "Clip")
        y = net.conv(y, channels, 1, then="")
        same = stride == 1 and given == channels
        x = net.node("Add", [y, x], net.shape_of[y]) if same else y
    return net.save(path, net.head(x))


def detector(path: Path) -> Path:
    """A backbone with swish, a neck that joins two branches, and two heads."""
    net = Net(3, 64)
    x = net.conv(net.conv("x", 16, stride=2, then="Swish"), 32, stride=2, then="Swish")
    left = net.conv(x, 16, 1, then="Swish")
    right = net.conv(net.conv(x, 16, 1, then="Swish"), 16, then="Swish")
    joined = net.node("Concat", [left, right], (32, 16, 16), axis=1)
    fine = net.conv(joined, 32, 1, then="HardSwish")
    coarse = net.conv(fine, 64, stride=2, then="LeakyRelu")
    return net.save(path, net.conv(fine, 18, 1, then=""), net.conv(coarse, 18, 1, then="Sigmoid"))


def transformer(path: Path) -> Path:
    """A block of 16 tokens of 32 channels in 4 heads: attention, two layers, two sums."""
    net = Net(32, 1)
    net.given = net.shape_of["x"] = (16, 32)
    tokens, heads, apart = (16, 32), (4, 16, 8), (4, 8, 16)

    def linear(x: str, given: int, channels: int) -> str:
        return net.node("MatMul", [x, net.weight(given, channels)], (16, channels))

    def split(x: str, order: list[int], shape: tuple[int, ...]) -> str:
        y = net.node("Reshape", [x, net.whole(1, 16, 4, 8)], (16, 4, 8))
        return net.node("Transpose", [y], shape, perm=order)

    q, k, v = (linear("x", 32, 32) for _ in range(3))
    scores = net.node(
        "MatMul", [split(q, [0, 2, 1, 3], heads), split(k, [0, 2, 3, 1], apart)], (4, 16, 16)
    )
    scaled = net.node("Mul", [scores, net.constant(8**-0.5)], (4, 16, 16))
    seen = net.node("Softmax", [scaled], (4, 16, 16), axis=-1)
    mixed = net.node("MatMul", [seen, split(v, [0, 2, 1, 3], heads)], heads)
    turned = net.node("Transpose", [mixed], (16, 4, 8), perm=[0, 2, 1, 3])
    joined = net.node("Reshape", [turned, net.whole(1, 16, 32)], tokens)
    x = net.node("Add", ["x", linear(joined, 32, 32)], tokens)
    hidden = net.node("Relu", [linear(x, 32, 128)], (16, 128))
    return net.save(path, net.node("Add", [x, linear(hidden, 128, 32)], tokens))


NETS: Mapping[str, Any] = {
    made.__name__: made for made in (plain, residual, mobile, detector, transformer)
}
