"""Write the example model that `tilewright demo` compiles.

The network is small but real: every weight comes from one seeded numpy generator, batch norms
carry non-trivial running statistics (so that folding bugs show), and it contains the shapes of
layers that people bring: strided and depthwise convolutions, a residual addition, pooling, a dense
head and a softmax.  Running the script twice writes the same bytes.

    python examples/make_tiny_cnn.py [OUTPUT.onnx]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 20260101
DEFAULT_OUTPUT = Path(__file__).resolve().parent.parent / "service/cli/example/tiny_cnn.onnx"


@dataclass(slots=True)
class Builder:
    """Collects nodes and weights; every method returns the name of the tensor it produced."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def weight(self, name: str, values: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(self, op_type: str, name: str, inputs: list[str], **attributes: Any) -> str:
        output = f"{name}_out"
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))
        return output

    def conv(
        self,
        name: str,
        source: str,
        *,
        channels: tuple[int, int],
        kernel: int,
        stride: int = 1,
        group: int = 1,
    ) -> str:
        """Add a convolution without bias, scaled to keep the variance of its input."""
        fan_in = channels[0] // group * kernel * kernel
        shape = (channels[1], channels[0] // group, kernel, kernel)
        values = self.rng.normal(0.0, (2.0 / fan_in) ** 0.5, shape)
        return self.node(
            "Conv",
            name,
            [source, self.weight(f"{name}.weight", values)],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=group,
        )

    def batch_norm(self, name: str, source: str, channels: int) -> str:
        """Add a batch norm with random statistics."""
        return self.node(
            "BatchNormalization",
            name,
            [
                source,
                self.weight(f"{name}.scale", self.rng.uniform(0.7, 1.3, channels)),
                self.weight(f"{name}.bias", self.rng.normal(0.0, 0.1, channels)),
                self.weight(f"{name}.mean", self.rng.normal(0.0, 0.1, channels)),
                self.weight(f"{name}.var", self.rng.uniform(0.6, 1.4, channels)),
            ],
            epsilon=1e-5,
        )

    def relu6(self, name: str, source: str) -> str:
        """Add the clip that mobile networks use as their activation."""
        return self.node("Clip", name, [source, "relu6.min", "relu6.max"])


def build() -> onnx.ModelProto:
    """Build the checked model.

    Shapes: input `image` (1, 3, 32, 32), output `probabilities` (1, 10), both float32.
    """
    net = Builder(np.random.default_rng(SEED))
    net.weight("relu6.min", np.array(0.0))
    net.weight("relu6.max", np.array(6.0))

    x = net.conv("stem/conv", "image", channels=(3, 16), kernel=3)
    x = net.relu6("stem/relu6", net.batch_norm("stem/bn", x, 16))

    x = net.conv("block1/depthwise", x, channels=(16, 16), kernel=3, stride=2, group=16)
    x = net.relu6("block1/relu6", net.batch_norm("block1/dw_bn", x, 16))
    x = net.conv("block1/pointwise", x, channels=(16, 32), kernel=1)
    skip = net.batch_norm("block1/pw_bn", x, 32)

    x = net.conv("block2/conv1", skip, channels=(32, 32), kernel=3)
    x = net.relu6("block2/relu6", net.batch_norm("block2/bn1", x, 32))
    x = net.conv("block2/conv2", x, channels=(32, 32), kernel=3)
    x = net.batch_norm("block2/bn2", x, 32)
    x = net.node("Relu", "block2/relu", [net.node("Add", "block2/add", [x, skip])])

    x = net.node("MaxPool", "pool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = net.node("Flatten", "head/flatten", [net.node("GlobalAveragePool", "head/gap", [x])])
    dense = net.weight("head/fc.weight", net.rng.normal(0.0, (1.0 / 32) ** 0.5, (10, 32)))
    bias = net.weight("head/fc.bias", net.rng.normal(0.0, 0.1, 10))
    x = net.node("Gemm", "head/fc", [x, dense, bias], transB=1)
    net.nodes.append(
        helper.make_node("Softmax", [x], ["probabilities"], name="head/softmax", axis=1)
    )

    graph = helper.make_graph(
        net.nodes,
        "tiny_cnn",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 10])],
        net.weights,
    )
    model = helper.make_model(
        graph,
        producer_name="tilewright-example",
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main(arguments: list[str]) -> None:
    """Write the model to the path given, or to its place in the package."""
    output = Path(arguments[0]) if arguments else DEFAULT_OUTPUT
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(build().SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(sys.argv[1:])
