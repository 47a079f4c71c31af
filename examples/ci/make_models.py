"""Write the two models of this example; running it twice writes the same bytes.

    python make_models.py [FOLDER]

`detector` is a small convolutional net, `ranker` three dense layers.  Weights come from one seeded
generator.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 20260601


def _conv(rng: np.random.Generator, name: str, source: str, channels: tuple[int, int],
          stride: int, weights: list[onnx.TensorProto]) -> list[onnx.NodeProto]:  # fmt: skip
    """A 3x3 convolution and its activation."""
    shape = (channels[1], channels[0], 3, 3)
    values = rng.normal(0.0, (2.0 / (channels[0] * 9)) ** 0.5, shape).astype(np.float32)
    weights.append(numpy_helper.from_array(values, f"{name}.weight"))
    return [
        helper.make_node("Conv", [source, f"{name}.weight"], [f"{name}.sum"], name=f"{name}/conv",
                         kernel_shape=[3, 3], strides=[stride, stride], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", [f"{name}.sum"], [f"{name}.out"], name=f"{name}/relu"),
    ]  # fmt: skip


def _dense(rng: np.random.Generator, name: str, source: str, sizes: tuple[int, int],
           weights: list[onnx.TensorProto]) -> onnx.NodeProto:  # fmt: skip
    """A matrix product with its bias."""
    values = rng.normal(0.0, (1.0 / sizes[0]) ** 0.5, sizes).astype(np.float32)
    weights.append(numpy_helper.from_array(values, f"{name}.weight"))
    weights.append(numpy_helper.from_array(np.zeros(sizes[1], np.float32), f"{name}.bias"))
    inputs = [source, f"{name}.weight", f"{name}.bias"]
    return helper.make_node("Gemm", inputs, [f"{name}.out"], name=f"{name}/gemm")


def detector() -> onnx.ModelProto:
    """Shapes: image (1, 3, 32, 32) to scores (1, 8)."""
    rng = np.random.default_rng(SEED)
    weights: list[onnx.TensorProto] = []
    nodes = _conv(rng, "stem", "image", (3, 16), 2, weights)
    nodes += _conv(rng, "layer1", "stem.out", (16, 24), 2, weights)
    nodes += _conv(rng, "layer2", "layer1.out", (24, 32), 2, weights)
    nodes.append(helper.make_node("GlobalAveragePool", ["layer2.out"], ["pooled"], name="pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"))
    nodes.append(_dense(rng, "head", "flat", (32, 8), weights))
    return _model("detector", nodes, ("image", [1, 3, 32, 32]), ("head.out", [1, 8]), weights)


def ranker() -> onnx.ModelProto:
    """Shapes: features (8, 64) to scores (8, 1)."""
    rng = np.random.default_rng(SEED + 1)
    weights: list[onnx.TensorProto] = []
    nodes = [_dense(rng, "expand", "features", (64, 96), weights)]
    nodes.append(helper.make_node("Relu", ["expand.out"], ["expand.act"], name="expand/relu"))
    nodes.append(_dense(rng, "mix", "expand.act", (96, 48), weights))
    nodes.append(helper.make_node("Relu", ["mix.out"], ["mix.act"], name="mix/relu"))
    nodes.append(_dense(rng, "score", "mix.act", (48, 1), weights))
    return _model("ranker", nodes, ("features", [8, 64]), ("score.out", [8, 1]), weights)


def _model(name: str, nodes: list[onnx.NodeProto], given: tuple[str, list[int]],
           made: tuple[str, list[int]], weights: list[onnx.TensorProto],
           ) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes, name,
        [helper.make_tensor_value_info(given[0], TensorProto.FLOAT, given[1])],
        [helper.make_tensor_value_info(made[0], TensorProto.FLOAT, made[1])],
        weights,
    )  # fmt: skip
    model = helper.make_model(
        graph, producer_name="tilewright-example",
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    onnx.checker.check_model(model, full_check=True)
    return model


def main(arguments: list[str]) -> None:
    """Write the models into a folder; default `models` beside this file."""
    folder = Path(arguments[0]) if arguments else Path(__file__).resolve().parent / "models"
    folder.mkdir(parents=True, exist_ok=True)
    for made in (detector(), ranker()):
        path = folder / f"{made.graph.name}.onnx"
        path.write_bytes(made.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(sys.argv[1:])
