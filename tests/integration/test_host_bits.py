"""Host parts hand on values of types that numpy has not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from worker.compiler.package.host_module import HostModule

KINDS = {
    TensorProto.BFLOAT16: np.array([0x3F80, 0x4000, 0xBF80], np.uint16),
    TensorProto.FLOAT8E4M3FN: np.array([0x38, 0x40, 0xB8], np.uint8),
    TensorProto.FLOAT8E5M2FNUZ: np.array([0x40, 0x44, 0xC0], np.uint8),
}
"""1, 2 and -1 in each."""


@pytest.mark.parametrize("kind", KINDS)
def test_bits_go_in_and_come_out(kind: int) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["y"], ["z"], to=kind),
            helper.make_node("Shape", ["x"], ["n"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", kind, [None])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [None]),
            helper.make_tensor_value_info("z", kind, [None]),
            helper.make_tensor_value_info("n", TensorProto.INT64, [1]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    host = HostModule([model.SerializeToString()], threads=1)
    for bits in (KINDS[kind], KINDS[kind][:0]):
        y, z, n = host.run(0, ["y", "z", "n"], {"x": bits})
        assert y.tolist() == [1.0, 2.0, -1.0][: len(bits)]
        assert (z.dtype, z.tolist()) == (bits.dtype, bits.tolist())
        assert n.tolist() == [len(bits)]
