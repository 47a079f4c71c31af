"""numpy's Q and DQ against ONNX Runtime's, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.ir.dtype import DType
from worker.compiler.quantize.parameters import (
    QuantParameters,
    dequantise,
    from_range,
    of_weights,
    quantise,
)

SHAPE = (3, 4, 5)


def _oracle(x: npt.NDArray[Any], p: QuantParameters) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    attributes = {} if p.axis is None else {"axis": p.axis}
    kind = TensorProto.INT8 if p.dtype is DType.I8 else TensorProto.UINT8
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
         helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes)],
        "qdq",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("q", kind, x.shape),
         helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
        [numpy_helper.from_array(p.scale, "s"), numpy_helper.from_array(p.zero_point, "z")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    q, y = session.run(["q", "y"], {"x": x})
    return np.asarray(q), np.asarray(y)


@given(
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-20, 20),
    overshoot=st.sampled_from([0.3, 1.0, 4.0]),
    dtype=st.sampled_from([DType.I8, DType.U8]),
    axis=st.sampled_from([None, 0, 1, 2]),
    symmetric=st.booleans(),
    power_of_two=st.booleans(),
)
def test_same_integers_and_floats_as_onnx_runtime(
    seed: int,
    exponent: int,
    overshoot: float,
    dtype: DType,
    axis: int | None,
    symmetric: bool,
    power_of_two: bool,
) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(SHAPE) * 2.0**exponent).astype(np.float32)
    if axis is None:
        p = from_range(
            float(x.min()), float(x.max()), dtype, symmetric=symmetric,
            power_of_two=power_of_two, node="n",
        )  # fmt: skip
    else:
        p = of_weights(x, axis, dtype, power_of_two=power_of_two, node="n")
    x *= np.float32(overshoot)  # some saturate
    laid_out = [1, 1, 1]
    if axis is not None:
        laid_out[axis] = -1
    step = p.scale.reshape(laid_out)
    halves = (np.rint(x / step) + np.float32(0.5)) * step
    x = np.where(rng.random(SHAPE) < 0.3, halves, x).astype(np.float32)
    integers, floats = _oracle(x, p)
    q = quantise(x, p)
    assert q.dtype == integers.dtype
    assert np.array_equal(q, integers)
    assert np.array_equal(dequantise(q, p), floats)
