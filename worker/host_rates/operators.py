"""What a host is measured by: single operators of real nets, as ONNX models of one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import onnx
import onnx_ir
from numpy.typing import NDArray
from onnx import TensorProto, helper

from worker.compiler.partition.host_work import host_flops

OPSET = 17
IR_VERSION = 8
SEED = 920
"""Of the numbers that operators work on; no rate depends on them."""

Shape = tuple[int, ...]


class Role(Enum):
    """What an operator's time says of the host."""

    CALL = "call"
    """Next to nothing is done: what invoking a host part costs."""
    FITTED = "fitted"
    """The two rates are those that tell these best."""
    HELD_OUT = "held out"
    """Nothing is fitted to these: they say how good the model is."""


@dataclass(frozen=True, slots=True)
class HostOperator:
    """One float32 operator; `constants` are its last inputs, which a runtime may pack once."""

    name: str
    role: Role
    op_type: str
    inputs: tuple[Shape, ...]
    output: Shape
    constants: tuple[Shape, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        """The operator alone.  Cost: its constants."""
        draw = np.random.Generator(np.random.PCG64(SEED))
        names = [f"x{k}" for k in range(len(self.inputs) + len(self.constants))]
        outside = names[: len(self.inputs)]
        node = helper.make_node(self.op_type, names, ["y"], self.name, **self.attributes)
        graph = helper.make_graph(
            [node],
            "operator",
            [_info(n, s) for n, s in zip(outside, self.inputs, strict=True)],
            [_info("y", self.output)],
            [
                _tensor(n, draw.standard_normal(s, np.float32))
                for n, s in zip(names[len(outside) :], self.constants, strict=True)
            ],
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)

    def feeds(self) -> dict[str, NDArray[np.float32]]:
        """Its inputs by name."""
        draw = np.random.Generator(np.random.PCG64(SEED))
        return {f"x{k}": draw.standard_normal(s, np.float32) for k, s in enumerate(self.inputs)}

    def work(self) -> tuple[int, int]:
        """(flops, bytes) as the partitioner and the simulator count them."""
        model = onnx_ir.from_proto(self.model())
        return host_flops(list(model.graph))


def _info(name: str, shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _tensor(name: str, array: NDArray[np.float32]) -> onnx.TensorProto:
    return helper.make_tensor(name, TensorProto.FLOAT, array.shape, array.tobytes(), raw=True)


def _product(name: str, role: Role, m: int, k: int, n: int) -> HostOperator:
    return HostOperator(name, role, "MatMul", ((m, k),), (m, n), ((k, n),))


def _conv(
    name: str, role: Role, channels: int, filters: int, side: int, kernel: int, stride: int = 1,
    group: int = 1,
) -> HostOperator:  # fmt: skip
    pad, out = kernel // 2, (side - 1) // stride + 1
    return HostOperator(
        name, role, "Conv", ((1, channels, side, side),), (1, filters, out, out),
        ((filters, channels // group, kernel, kernel), (filters,)),
        {"kernel_shape": [kernel] * 2, "pads": [pad] * 4, "strides": [stride] * 2, "group": group},
    )  # fmt: skip


def _same(name: str, role: Role, op_type: str, shape: Shape, num_inputs: int = 1) -> HostOperator:
    return HostOperator(name, role, op_type, (shape,) * num_inputs, shape)


def operators() -> Sequence[HostOperator]:
    """All that is measured, in this order.

    What is fitted and what is held out are of the same kinds in other shapes, and of kinds that the
    fit has not seen; shapes are those of ResNet-50, MobileNet-v2, BERT-base and ViT at batch 1.
    """
    use, held = Role.FITTED, Role.HELD_OUT
    image, tokens, scores = (1, 256, 56, 56), (1, 128, 768), (1, 12, 128, 128)
    return (
        _same("call", Role.CALL, "Neg", (1,)),
        _product("product 512", use, 512, 512, 512),
        _conv("conv 3x3, 256 of 28", use, 256, 256, 28, 3),
        _conv("conv 7x7 / 2", use, 3, 64, 224, 7, 2),
        _conv("conv 3x3, 64 of 56", use, 64, 64, 56, 3),
        _conv("conv 1x1, 64 to 256 of 56", use, 64, 256, 56, 1),
        _conv("depthwise 3x3, 144 of 56", use, 144, 144, 56, 3, 1, 144),
        _product("tokens 128 x 768 x 768", use, 128, 768, 768),
        _product("row 2048 x 1000", use, 1, 2048, 1000),
        _same("relu of 256 x 56 x 56", use, "Relu", image),
        _same("sum of 256 x 56 x 56", use, "Add", image, 2),
        HostOperator("softmax of 12 x 128 x 128", use, "Softmax", (scores,), scores),
        HostOperator(
            "max pool 3x3 / 2", use, "MaxPool", ((1, 64, 112, 112),), (1, 64, 56, 56),
            attributes={"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]},
        ),
        _conv("conv 3x3, 512 of 7", held, 512, 512, 7, 3),
        _conv("conv 3x3 / 2, 128 of 56", held, 128, 128, 56, 3, 2),
        _conv("conv 1x1, 1024 to 256 of 14", held, 1024, 256, 14, 1),
        _conv("depthwise 3x3, 384 of 14", held, 384, 384, 14, 3, 1, 384),
        _product("tokens 197 x 768 x 3072", held, 197, 768, 3072),
        _product("row 4096 x 4096", held, 1, 4096, 4096),
        _same("product of 128 x 768", held, "Mul", tokens, 2),
        _same("error function of 128 x 3072", held, "Erf", (1, 128, 3072)),
        HostOperator(
            "layer norm of 128 x 768", held, "LayerNormalization", (tokens,), tokens,
            ((768,), (768,)), {"axis": -1},
        ),
        HostOperator(
            "transpose of 12 x 128 x 64", held, "Transpose", ((1, 128, 12, 64),), (1, 12, 128, 64),
            attributes={"perm": [0, 2, 1, 3]},
        ),
        HostOperator(
            "mean of 2048 x 7 x 7", held, "GlobalAveragePool", ((1, 2048, 7, 7),), (1, 2048, 1, 1),
        ),
    )  # fmt: skip
