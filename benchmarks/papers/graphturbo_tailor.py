"""ResNet18-Tailor of GraphTurbo's GPU case study (section 5.6), built from its description.

Printed: eight layers of a convolution and a ReLU each (Fig. 18a), nothing before and after them;
CUTLASS fuses two layers at a time, which leaves four sub-graphs (Fig. 18b).  Inferred: the eight
are one basic block of each of ResNet-18's four stages, without its shortcut (two layers per stage:
3x3, 64 to 512 channels, 56 to 7 pixels, stride 2 at the start of stages 2 to 4), since the case
study wants the down-sampling of Fig. 2 and draws a straight pipeline.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PAIRS = 4
_WIDTHS = (64, 128, 256, 512)
_SIDES = (56, 28, 14, 7)


def tailor_model(batch: int, pair: int | None = None) -> onnx.ModelProto:
    """The eight layers for `batch` images, or only the two of stage `pair` (from 0)."""
    stages = range(PAIRS) if pair is None else (pair,)
    rng = np.random.default_rng(18)
    nodes, weights, last = [], [], "x"
    for stage in stages:
        for half in range(2):
            inward = _WIDTHS[max(0, stage - 1)] if half == 0 else _WIDTHS[stage]
            stride = 2 if half == 0 and stage > 0 else 1
            name = f"layer{2 * stage + half + 1}"
            shape = (_WIDTHS[stage], inward, 3, 3)
            values = rng.standard_normal(shape) * (2 / (9 * inward)) ** 0.5
            weights.append(numpy_helper.from_array(values.astype(np.float32), f"{name}.weight"))
            nodes += [
                helper.make_node("Conv", [last, f"{name}.weight"], [f"{name}.sum"],
                                 name=f"{name}/conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1],
                                 strides=[stride, stride]),
                helper.make_node("Relu", [f"{name}.sum"], [f"{name}.out"], name=f"{name}/relu"),
            ]  # fmt: skip
            last = f"{name}.out"
    first, final = min(stages), max(stages)
    before = max(0, first - 1)
    graph = helper.make_graph(
        nodes, "resnet18_tailor",
        [_image("x", batch, _WIDTHS[before], _SIDES[before])],
        [_image(last, batch, _WIDTHS[final], _SIDES[final])],
        weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _image(name: str, batch: int, channels: int, side: int) -> onnx.ValueInfoProto:
    shape = [batch, channels, side, side]
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
