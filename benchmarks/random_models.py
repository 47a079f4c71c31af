"""Random ONNX models of the blocks that real networks are made of, at sizes that hardly divide."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]


class Model:
    """A model under construction: nodes, weights, and the shape of every tensor."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.shapes: dict[str, Shape] = {}

    def node(self, kind: str, reads: list[str], *shapes: Shape, **attributes: object) -> str:
        """Add a node; the name of its first result, of these shapes."""
        number = len(self.nodes)
        names = [f"t{number}_{k}" for k in range(len(shapes))]
        self.shapes.update(zip(names, shapes, strict=True))
        self.nodes.append(
            helper.make_node(kind, reads, names, name=f"{kind}_{number}", **attributes)
        )
        return names[0]

    def weight(self, *shape: int, fan: int = 1) -> str:
        """Values of about 1 / sqrt(fan)."""
        values = self.numbers.standard_normal(shape) / np.sqrt(fan)
        return self.constant(values.astype(np.float32))

    def numbers_of(self, *values: int) -> str:
        """A constant of integers: a shape, an axis."""
        return self.constant(np.array(values, np.int64))

    def like(self, kind: str, *reads: str, **attributes: object) -> str:
        """An operator whose result has the shape of its first operand."""
        return self.node(kind, list(reads), self.shapes[reads[0]], **attributes)

    def finished(self, given: str, outputs: list[str]) -> onnx.ModelProto:
        """The model with one input."""
        infos = [
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, self.shapes[n]) for n in names]
            for names in ([given], outputs)
        ]
        graph = helper.make_graph(self.nodes, "random", infos[0], infos[1], self.weights)
        opsets = [helper.make_opsetid("", 18)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        return model

    def constant(self, values: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        self.shapes[name] = values.shape
        return name

    # -- pieces over [n, c, h, w] ------------------------------------------------------------------

    def conv(self, x: str, cout: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> str:
        """Padded by kernel // 2, with a bias."""
        n, cin, h, w = self.shapes[x]
        pad, depth = kernel // 2, cin // groups
        weights = self.weight(cout, depth, kernel, kernel, fan=depth * kernel * kernel)
        size = [(e + 2 * pad - kernel) // stride + 1 for e in (h, w)]
        return self.node(
            "Conv", [x, weights, self.weight(cout, fan=4)], (n, cout, *size), group=groups,
            pads=[pad] * 4, strides=[stride] * 2, kernel_shape=[kernel] * 2,
        )  # fmt: skip

    def activation(self, x: str) -> str:
        kind = self.random.choice(("Relu", "Sigmoid", "silu", "HardSwish", "LeakyRelu", "Tanh"))
        return (
            self.like("Mul", x, self.like("Sigmoid", x)) if kind == "silu" else self.like(kind, x)
        )

    def reshape(self, x: str, *shape: int) -> str:
        return self.node("Reshape", [x, self.numbers_of(*shape)], shape)

    def transpose(self, x: str, *perm: int) -> str:
        shape = tuple(self.shapes[x][k] for k in perm)
        return self.node("Transpose", [x], shape, perm=list(perm))

    def matmul(self, x: str, columns: int, *, bias: bool = True) -> str:
        """The last dimension times a constant."""
        *rest, depth = self.shapes[x]
        y = self.node("MatMul", [x, self.weight(depth, columns, fan=depth)], (*rest, columns))
        return self.like("Add", y, self.weight(columns, fan=4)) if bias else y

    def normalized(self, x: str) -> str:
        """Over the last dimension."""
        last = self.shapes[x][-1]
        return self.like("LayerNormalization", x, self.weight(last), self.weight(last), axis=-1)

    def attended(self, x: str, heads: int) -> str:
        """Self-attention over [groups, rows, channels] with a residual."""
        groups, rows, channels = self.shapes[x]
        y, split = self.normalized(x), (groups, rows, heads, channels // heads)
        query, key, value = (
            self.transpose(self.reshape(self.matmul(y, channels), *split), 0, 2, *order)
            for order in ((1, 3), (3, 1), (1, 3))
        )
        scores = self.node("MatMul", [query, key], (groups, heads, rows, rows))
        scores = self.like("Mul", scores, self.weight(1))
        scores = self.like("Softmax", scores, axis=-1)
        y = self.node("MatMul", [scores, value], (groups, heads, rows, channels // heads))
        y = self.reshape(self.transpose(y, 0, 2, 1, 3), groups, rows, channels)
        return self.like("Add", self.matmul(y, channels), x)

    def mixed(self, x: str) -> str:
        """Two products with an activation between and a residual, over the last dimension."""
        channels = self.shapes[x][-1]
        y = self.matmul(self.normalized(x), channels * self.random.choice((2, 3)))
        return self.like("Add", self.matmul(self.activation(y), channels), x)


# -- blocks: [n, c, h, w] -> [n, c', h', w'] -------------------------------------------------------


def plain(m: Model, x: str) -> str:
    cout = m.random.choice((8, 12, 24, 40))
    return m.activation(m.conv(x, cout, m.random.choice((1, 3, 5)), m.random.choice((1, 1, 2))))


def residual(m: Model, x: str) -> str:
    channels = m.shapes[x][1]
    y = m.activation(m.conv(x, m.random.choice((8, 16, 20))))
    return m.activation(m.like("Add", m.conv(y, channels), x))


def inverted(m: Model, x: str) -> str:
    """Expand, depthwise, squeeze and excite, project."""
    channels = m.shapes[x][1]
    wide, stride = channels * m.random.choice((2, 3)), m.random.choice((1, 2))
    y = m.activation(m.conv(x, wide, 1))
    y = m.activation(m.conv(y, wide, m.random.choice((3, 5)), stride, wide))
    if m.random.random() < 0.5:
        y = excited(m, y)
    y = m.conv(y, channels, 1)
    return m.like("Add", y, x) if stride == 1 else y


def excited(m: Model, x: str) -> str:
    n, channels, _, _ = m.shapes[x]
    few = m.node("GlobalAveragePool", [x], (n, channels, 1, 1))
    few = m.conv(m.like("Relu", m.conv(few, max(channels // 4, 1), 1)), channels, 1)
    return m.like("Mul", x, m.like("Sigmoid", few))


def grouped(m: Model, x: str) -> str:
    """A convolution in groups, squeezed and excited; a residual unless it is strided.

    Few groups of many widths: their channels are hardly multiples of an array's lanes or cores.
    """
    n, channels, h, w = m.shapes[x]
    most = MOST_VALUES // (n * h * w)
    found = [(k, width) for k in (2, 3, 5, 7) for width in GROUP_WIDTHS if k * width <= most]
    groups, width = m.random.choice(found or [(2, GROUP_WIDTHS[0])])
    stride = m.random.choice((1, 1, 2))
    y = m.like("Relu", m.conv(x, groups * width, 1))
    y = m.like("Relu", m.conv(y, groups * width, 3, stride, groups))
    y = m.conv(excited(m, y) if m.random.random() < 0.5 else y, channels, 1)
    return m.like("Relu", m.like("Add", y, x) if stride == 1 else y)


def shared(m: Model, x: str) -> str:
    """One head with the same weights on two resolutions; the lower one scales the upper."""
    n, channels, _, _ = m.shapes[x]
    weights, bias = m.weight(channels, channels, 3, 3, fan=channels * 9), m.weight(channels)
    small, levels = pooled(m, x), []
    for level in (x, small):
        y = m.like("Conv", level, weights, bias, kernel_shape=[3, 3], pads=[1] * 4)
        levels.append(m.like("Conv", m.like("Relu", y), weights, bias, kernel_shape=[3, 3],
                             pads=[1] * 4))  # fmt: skip
    mean = m.node("GlobalAveragePool", [levels[1]], (n, channels, 1, 1))
    return m.like("Mul", levels[0], mean)


def dense(m: Model, x: str) -> str:
    """Each layer reads everything before it."""
    for _ in range(m.random.choice((2, 3))):
        y = m.conv(m.activation(x), 8, m.random.choice((1, 3)))
        n, channels, h, w = m.shapes[x]
        x = m.node("Concat", [x, y], (n, channels + 8, h, w), axis=1)
    return x


def branches(m: Model, x: str) -> str:
    n, _, h, w = m.shapes[x]
    parts = [m.conv(x, 8, 1), m.conv(m.conv(x, 12, 1), 8, 3), m.conv(pooled_same(m, x), 8, 1)]
    parts = m.random.sample(parts, m.random.choice((2, 3)))
    return m.activation(m.node("Concat", parts, (n, 8 * len(parts), h, w), axis=1))


def pooled_same(m: Model, x: str) -> str:
    kind = m.random.choice(("MaxPool", "AveragePool"))
    return m.like(kind, x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)


def pooled(m: Model, x: str) -> str:
    n, channels, h, w = m.shapes[x]
    if min(h, w) < 4:
        return x
    kind = m.random.choice(("MaxPool", "AveragePool"))
    return m.node(kind, [x], (n, channels, h // 2, w // 2), kernel_shape=[2, 2], strides=[2, 2])


def gated(m: Model, x: str) -> str:
    """Two halves of the channels, one times the other."""
    n, channels, h, w = m.shapes[x]
    y = m.conv(m.conv(x, 2 * channels, 1), 2 * channels, 3, 1, 2 * channels)
    half = (n, channels, h, w)
    first = m.node("Split", [y], half, half, axis=1, num_outputs=2)
    second = first.removesuffix("_0") + "_1"
    return m.like("Add", m.conv(m.like("Mul", first, second), channels, 1), x)


def channel_norm(m: Model, x: str) -> str:
    """Normalisation over channels, through a transposed layout."""
    y = m.transpose(m.normalized(m.transpose(x, 0, 2, 3, 1)), 0, 3, 1, 2)
    return m.conv(y, m.shapes[x][1], 3)


def instance_norm(m: Model, x: str) -> str:
    channels = m.shapes[x][1]
    return m.like("InstanceNormalization", x, m.weight(channels), m.weight(channels))


def shuffled(m: Model, x: str) -> str:
    """Up by two: channels become pixels."""
    n, channels, h, w = m.shapes[x]
    kind = m.random.choice(("DepthToSpace", "Resize", "ConvTranspose"))
    if kind == "DepthToSpace":
        y = m.conv(x, 4 * 8)
        return m.node(kind, [y], (n, 8, 2 * h, 2 * w), blocksize=2,
                      mode=m.random.choice(("DCR", "CRD")))  # fmt: skip
    if kind == "Resize":
        scales = m.constant(np.array([1, 1, 2, 2], np.float32))
        y = m.node(kind, [x, "", scales], (n, channels, 2 * h, 2 * w), mode="nearest",
                   coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
        return m.conv(y, channels)
    weights = m.weight(channels, 8, 2, 2, fan=channels)
    return m.node(kind, [x, weights], (n, 8, 2 * h, 2 * w), strides=[2, 2], kernel_shape=[2, 2])


def tokens(m: Model, x: str) -> str:
    """Attention over all positions."""
    n, channels, h, w = m.shapes[x]
    heads = m.random.choice([k for k in (1, 2, 4) if channels % k == 0])
    y = m.transpose(m.reshape(x, n, channels, h * w), 0, 2, 1)
    y = m.mixed(m.attended(y, heads))
    return m.reshape(m.transpose(y, 0, 2, 1), n, channels, h, w)


def patches(m: Model, x: str) -> str:
    """Attention among the same pixels of all patches, then the pixels back and a convolution."""
    n, channels, h, w = m.shapes[x]
    if n != 1 or h % 2 or w % 2:
        return plain(m, x)
    y = m.transpose(m.reshape(x, channels * h // 2, 2, w // 2, 2), 0, 2, 1, 3)
    y = m.transpose(m.reshape(y, channels, h * w // 4, 4), 2, 1, 0)
    y = m.mixed(m.attended(y, 1)) if m.random.random() < 0.7 else m.mixed(y)
    y = m.reshape(m.transpose(y, 2, 1, 0), channels * h // 2, w // 2, 2, 2)
    y = m.reshape(m.transpose(y, 0, 2, 1, 3), 1, channels, h, w)
    return m.conv(y, m.random.choice((channels, 16)), m.random.choice((1, 3)))


def windows(m: Model, x: str) -> str:
    """Attention inside of windows of 4 x 4, sometimes shifted by two."""
    n, channels, h, w = m.shapes[x]
    if h % 4 or w % 4:
        return plain(m, x)
    y = m.transpose(x, 0, 2, 3, 1)
    shift = m.random.choice((0, 2))
    y = rolled(m, rolled(m, y, 1, shift), 2, shift)
    y = m.reshape(y, n, h // 4, 4, w // 4, 4, channels)
    y = m.reshape(m.transpose(y, 0, 1, 3, 2, 4, 5), n * h * w // 16, 16, channels)
    y = m.attended(y, 1)
    y = m.transpose(m.reshape(y, n, h // 4, w // 4, 4, 4, channels), 0, 1, 3, 2, 4, 5)
    y = m.reshape(y, n, h, w, channels)
    y = m.mixed(rolled(m, rolled(m, y, 1, h - shift), 2, w - shift))
    return m.transpose(y, 0, 3, 1, 2)


def rolled(m: Model, x: str, axis: int, by: int) -> str:
    """Rotated along one dimension, as exporters write it: two slices, joined."""
    size = m.shapes[x][axis]
    if by % size == 0:
        return x
    parts = []
    for first, last in ((by, size), (0, by)):
        shape = list(m.shapes[x])
        shape[axis] = last - first
        bounds = [m.numbers_of(first), m.numbers_of(last), m.numbers_of(axis)]
        parts.append(m.node("Slice", [x, *bounds], tuple(shape)))
    return m.node("Concat", parts, m.shapes[x], axis=axis)


BLOCKS: tuple[Callable[[Model, str], str], ...] = (
    plain, residual, inverted, dense, branches, pooled, gated, channel_norm, instance_norm,
    shuffled, tokens, patches, windows, excited, grouped, shared,
)  # fmt: skip
MOST_VALUES = 1 << 16
"""Of one tensor between blocks; beyond it a strided convolution follows."""
MOST_TOKENS = 1 << 11
"""Of an attention, whose scores are their square: more than a verification may hold otherwise."""
GROUP_WIDTHS = (8, 11, 16, 24, 40, 56)
"""Channels per group of a convolution."""


def random_model(seed: int) -> onnx.ModelProto:
    """Two to five blocks over images, sometimes a head; the last tensor and maybe a middle one."""
    m = Model(seed)
    batch = m.random.choice((1, 1, 1, 2, 4))
    size = m.random.choice(((16, 16), (12, 20), (14, 14), (32, 32), (23, 17), (40, 24)))
    given = "x"
    m.shapes[given] = (batch, m.random.choice((3, 8, 16)), *size)
    x, ends = m.conv(given, m.random.choice((8, 16, 24, 48))), []
    for _ in range(m.random.randint(2, 5)):
        block = m.random.choice(BLOCKS)
        while block is tokens and np.prod(m.shapes[x][2:]) > MOST_TOKENS:
            x = m.conv(x, m.shapes[x][1], 3, 2)
        x = block(m, x)
        if np.prod(m.shapes[x]) > MOST_VALUES:
            x = m.conv(x, 16, 3, 2)
        if m.random.random() < 0.15:
            ends.append(x)
    if m.random.random() < 0.4:
        n, channels, _, _ = m.shapes[x]
        x = m.node("GlobalAveragePool", [x], (n, channels, 1, 1))
        x = m.matmul(m.node("Flatten", [x], (n, channels)), 10)
    return m.finished(given, [*(end for end in dict.fromkeys(ends) if end != x), x])
