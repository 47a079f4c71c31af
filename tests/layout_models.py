"""Small regions with channels for the layout tests, and what they must still compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.frontend.express import Expressed, express_region
from worker.compiler.frontend.qdq import find_clusters
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.layout.lay_out import LaidOut
from worker.compiler.machine.layout_policy import LayoutPolicy

OPSET = 18
OP_TYPES = (
    "Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "MaxPool", "AveragePool",
    "GlobalAveragePool",
)  # fmt: skip
NHWC = LayoutPolicy("NHWC", "HWIO", OP_TYPES)
BLOCKED = LayoutPolicy("NCHW16c", "OIHW16i16o", OP_TYPES)


def blocked_by(extent: int) -> LayoutPolicy:
    """Channels in blocks of `extent`, weights too."""
    return LayoutPolicy(f"NCHW{extent}c", f"OIHW{extent}i{extent}o", OP_TYPES)


class RegionBuilder:
    """ONNX nodes with integer-valued constants, and shapes by ONNX's own inference."""

    def __init__(self, inputs: Mapping[str, tuple[int, ...]], seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._inputs = dict(inputs)
        self._types: dict[str, int] = {}
        self._constants: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []

    def constant(self, name: str, shape: Sequence[int], dtype: str = "float32") -> str:
        """Small integers, exact in any type, so that sums do not depend on their order."""
        low = 0 if dtype.startswith("u") else -3
        values = self._random.integers(low, 4, tuple(shape)).astype(dtype)
        return self.array(name, values)

    def array(self, name: str, values: npt.NDArray[Any]) -> str:
        """A constant of given values."""
        self._constants.append(numpy_helper.from_array(values, name))
        return name

    def typed(self, name: str, kind: int) -> None:
        """Give an input another type than float."""
        self._types[name] = kind

    def add(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Append a node called after its output."""
        self.nodes.append(
            helper.make_node(op_type, list(inputs), [output], name=f"n_{output}", **attributes)
        )
        return output

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """The whole as a model with inferred shapes."""
        graph = helper.make_graph(
            self.nodes,
            "region",
            [
                helper.make_tensor_value_info(n, self._types.get(n, TensorProto.FLOAT), list(s))
                for n, s in self._inputs.items()
            ],
            [onnx.ValueInfoProto(name=n) for n in outputs],
            self._constants,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9
        )
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)

    def express(self, outputs: Sequence[str]) -> Expressed:
        """The region in the algebra, its quantised clusters as integer operators."""
        nodes = list(onnx_ir.from_proto(self.model(outputs)).graph)
        return express_region(nodes, tuple(outputs), OPSET, find_clusters(nodes, tuple(outputs)))


def conv_relu_conv() -> Expressed:
    """32 -> 32 -> 16 channels on 6 x 6, the first one padded."""
    region = RegionBuilder({"x": (1, 32, 6, 6)})
    region.constant("w1", (32, 32, 3, 3))
    region.constant("w2", (16, 32, 3, 3))
    region.add("Conv", ["x", "w1"], "a", pads=[1, 1, 1, 1])
    region.add("Relu", ["a"], "b")
    region.add("Conv", ["b", "w2"], "y")
    return region.express(["y"])


def values(expressed: Expressed, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Seeded small integers for the inputs of a region."""
    random = np.random.default_rng(seed)
    graph = expressed.graph
    return {
        name: random.integers(0, 4, graph.tensors[name].shape).astype(
            graph.tensors[name].dtype.numpy
        )
        for name in graph.inputs
    }


def results(
    expressed: Expressed, inputs: Mapping[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """What a region computes, by the oracle; checks the constants' shapes on the way."""
    graph = expressed.graph
    constants = {name: expressed.constants[name]() for name in graph.constants}
    for name, array in constants.items():
        assert array.shape == graph.tensors[name].shape
    found = evaluate(graph, {**inputs, **constants})
    return {name: found[name] for name in graph.outputs}


def assert_same(before: Expressed, laid: LaidOut, seed: int = 0) -> None:
    """The laid-out region has the same interface and computes the same bits."""
    old, new = before.graph, laid.expressed.graph
    assert (new.inputs, new.outputs) == (old.inputs, old.outputs)
    for name in (*old.inputs, *old.outputs):
        assert new.tensors[name] == old.tensors[name]
    assert set(laid.expressed.constants) == set(new.constants)
    inputs = values(before, seed)
    want, got = results(before, inputs), results(laid.expressed, inputs)
    for name in old.outputs:
        assert got[name].dtype == want[name].dtype
        np.testing.assert_array_equal(got[name], want[name])
