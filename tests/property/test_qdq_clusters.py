"""Quantised clusters as integer operators against ONNX Runtime running the float nodes."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from qdq_oracle import Quantised, Result, agree, onnxruntime, ours, qdq_model

from worker.compiler.cost.compute import contraction
from worker.compiler.frontend.express import express_region
from worker.compiler.frontend.qdq import cluster_rejection, find_clusters
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.region import is_view
from worker.compiler.ir.scalar import Read

RNG = np.random.default_rng(17)


@pytest.fixture(autouse=True)
def _numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """A test draws the same numbers whichever tests ran before it in its process."""
    RNG.bit_generator.state = np.random.default_rng(
        [17, zlib.crc32(request.node.name.encode())]
    ).bit_generator.state


KINDS = (np.int8, np.uint8)


def integers(*shape: int, kind: type[np.generic] = np.int8) -> npt.NDArray[Any]:
    limits = np.iinfo(kind)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(kind)


def weights(shape: tuple[int, ...], axis: int | None) -> Quantised:
    """Constant i8 weights, symmetric, with one scale per index of `axis`."""
    values = RNG.integers(-127, 128, shape).astype(np.int8)
    if axis is None:
        return Quantised(values, 0.011, 0, None, True)
    count = shape[axis]
    scales = RNG.uniform(0.004, 0.02, count).astype(np.float32)
    return Quantised(values, list(scales), [0] * count, axis, True)


def bias_of(x: Quantised, w: Quantised, channels: int) -> Quantised:
    """An i32 bias on the grid of the sum, as quantisers write it."""
    values = RNG.integers(-20000, 20000, channels).astype(np.int32)
    scale = np.float32(x.scale) * np.asarray(w.scale, np.float32)
    if scale.ndim == 0:
        return Quantised(values, float(scale), 0, None, True)
    return Quantised(values, list(scale), [0] * channels, 0, True)


@given(
    kind=st.sampled_from(KINDS),
    out=st.sampled_from(KINDS),
    zero=st.integers(0, 100),
    per_channel=st.booleans(),
    bias=st.sampled_from(["none", "integer", "float"]),
    groups=st.sampled_from([1, 2, 4]),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    pad=st.integers(0, 2),
    activation=st.sampled_from([None, ("Relu", []), ("Clip", [0.0, 1.5]), ("Clip", [-0.7, None])]),
)
def test_conv(
    kind: type[np.generic], out: type[np.generic], zero: int, per_channel: bool, bias: str,
    groups: int, stride: int, dilation: int, pad: int, activation: Any,
) -> None:  # fmt: skip
    x = Quantised(integers(1, 4, 7, 6, kind=kind), 0.02, zero)
    w = weights((8, 4 // groups, 3, 2), 0 if per_channel else None)
    third: Any = None
    if bias == "integer":
        third = bias_of(x, w, 8)
    elif bias == "float":
        third = RNG.uniform(-3, 3, 8).astype(np.float32)
    attributes = {
        "group": groups, "strides": [stride, 1], "dilations": [dilation, 1],
        "pads": [pad, 1, pad, 0],
    }  # fmt: skip
    found = agree(
        "Conv", [x, w, third], [Result(0.05, zero // 2, out)], attributes, activation, steps=1
    )
    acc, last = found.graph.ops
    assert contraction(acc) is not None
    assert found.graph.tensors[acc.write.tensor].dtype is DType.I32
    assert found.together == ((acc.name, last.name),)


def test_conv_weights_with_zero_points_per_channel() -> None:
    x = Quantised(integers(1, 3, 5, 5, kind=np.uint8), 0.03, 7)
    w = Quantised(integers(4, 3, 3, 3), [0.01, 0.02, 0.015, 0.03], [1, -3, 0, 9], 0, True)
    agree("Conv", [x, w], [Result(0.5)], {"pads": [1, 1, 1, 1]}, steps=1)


@COSTLY
@given(
    groups=st.sampled_from([1, 2]),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    per_channel=st.booleans(),
    zero=st.integers(-20, 20),
)
def test_conv_transpose(
    groups: int, stride: int, dilation: int, per_channel: bool, zero: int
) -> None:
    x = Quantised(integers(1, 4, 5, 4), 0.02, zero)
    channels = 3 if groups == 1 else 3 * groups
    w = weights((4, 3, 3, 2), 1 if per_channel else None)
    bias = RNG.uniform(-2, 2, channels).astype(np.float32)
    attributes = {"group": groups, "strides": [stride, 1], "dilations": [dilation, 1]}
    agree("ConvTranspose", [x, w, bias], [Result(0.05, 3)], attributes, ("Relu", []), steps=1)


@COSTLY
@given(
    turn_a=st.booleans(),
    turn_b=st.booleans(),
    per_channel=st.booleans(),
    alpha=st.sampled_from([1.0, 0.5]),
    beta=st.sampled_from([0.0, 1.0, 2.0]),
    bias=st.sampled_from([(), (6,), (1, 6)]),
)
def test_gemm(
    turn_a: bool, turn_b: bool, per_channel: bool, alpha: float, beta: float, bias: tuple[int, ...]
) -> None:
    a = Quantised(integers(*((5, 3) if turn_a else (3, 5))), 0.02, -4)
    w = weights((6, 5) if turn_b else (5, 6), (0 if turn_b else 1) if per_channel else None)
    c = RNG.uniform(-3, 3, bias).astype(np.float32)
    attributes = {"transA": int(turn_a), "transB": int(turn_b), "alpha": alpha, "beta": beta}
    agree("Gemm", [a, w, c], [Result(0.06, 5)], attributes, steps=1)


@pytest.mark.parametrize(
    ("left", "right", "right_axis", "left_axis"),
    [
        ((3, 5), (5, 4), 1, None), ((2, 3, 5), (2, 5, 4), None, None), ((5,), (5, 4), 1, None),
        ((2, 3, 5), (5,), None, 1), ((3, 5), (5,), None, 0), ((2, 3, 5), (5, 4), 1, None),
        ((3, 5), (5, 4), None, 0), ((5,), (2, 5, 4), 2, None),
    ],
)  # fmt: skip
def test_matmul(
    left: tuple[int, ...], right: tuple[int, ...], right_axis: int | None, left_axis: int | None
) -> None:
    a = Quantised(integers(*left), 0.02, 6)
    if left_axis is not None:
        count = left[left_axis]
        a = Quantised(a.values, [0.01 * (k + 1) for k in range(count)], list(range(count)),
                      left_axis, True)  # fmt: skip
    b = Quantised(integers(*right), 0.03, -5)
    if right_axis is not None:
        count = right[right_axis]
        b = Quantised(b.values, [0.01 * (k + 1) for k in range(count)], list(range(count)),
                      right_axis, True)  # fmt: skip
    agree("MatMul", [a, b], [Result(0.09, -3)], steps=1)


POINTWISE: list[tuple[str, dict[str, Any]]] = [
    ("Relu", {}), ("Sigmoid", {}), ("Tanh", {}), ("LeakyRelu", {"alpha": 0.2}),
    ("HardSigmoid", {}), ("HardSwish", {}), ("Gelu", {}), ("Gelu", {"approximate": "tanh"}),
    ("Erf", {}), ("Elu", {}), ("Abs", {}), ("Neg", {}), ("Exp", {}), ("Softplus", {}),
    ("Mish", {}), ("Identity", {}),
]  # fmt: skip
ROUNDED_ELSEWHERE = frozenset({"Sigmoid", "Tanh", "Gelu", "Erf", "Elu", "Exp", "Softplus", "Mish"})
"""Their functions are approximated: a value at a half step may fall to the other side."""


@pytest.mark.parametrize(("op_type", "attributes"), POINTWISE)
@pytest.mark.parametrize("kind", KINDS)
def test_unary(op_type: str, attributes: dict[str, Any], kind: type[np.generic]) -> None:
    limits = np.iinfo(kind)
    x = Quantised(np.arange(limits.min, limits.max + 1, dtype=kind).reshape(2, 128), 0.031, 3)
    steps = int(op_type in ROUNDED_ELSEWHERE)
    found = agree(op_type, [x], [Result(0.017, 9, kind)], attributes, steps=steps)
    (op,) = found.graph.ops
    assert op.input_names() == ("x0",)
    assert found.together == ()


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"])
@pytest.mark.parametrize("second", [(2, 3, 4), (3, 1), (4,), ()])
def test_binary_with_broadcasting(op_type: str, second: tuple[int, ...]) -> None:
    a = Quantised(integers(2, 3, 4), 0.02, 5)
    divisors = np.asarray(integers(*second).clip(-127))  # -128 stands for 0
    b = Quantised(divisors, 0.013, -128)
    agree(op_type, [a, b], [Result(0.04, -7)], activation=("Relu", []))
    agree(op_type, [a, integers(*second).astype(np.float32) + 0.5], [Result(1.5)])


def test_add_of_one_tensor_to_itself_and_to_quantised_constants_per_channel() -> None:
    a = Quantised(integers(2, 3, 4), 0.02, 5)
    per_channel = Quantised(integers(2, 3, 4), [0.01, 0.02, 0.03], [1, 2, 3], 1, True)
    agree("Add", [a, per_channel], [Result(0.05)], activation=("Clip", [-1.0, 2.0]))


def test_clip_alone() -> None:
    x = Quantised(integers(40), 0.1, 3)
    agree("Clip", [x, np.float32(-2.0), np.float32(6.0)], [Result(0.05, -100)])


MOVES: list[tuple[str, tuple[int, ...], list[Any], dict[str, Any]]] = [
    ("Reshape", (2, 3, 4), [np.array([4, 6])], {}), ("Flatten", (2, 3, 4), [], {"axis": 2}),
    ("Transpose", (2, 3, 4), [], {"perm": [2, 0, 1]}), ("Squeeze", (2, 1, 4), [np.array([1])], {}),
    ("Unsqueeze", (2, 4), [np.array([1])], {}),
    ("Slice", (5, 6), [np.array([1]), np.array([5]), np.array([0]), np.array([2])], {}),
    ("Pad", (2, 3, 4), [np.array([0, 1, 2, 0, 0, 1])], {}),
    ("Pad", (2, 3, 4), [np.array([0, 1, 2, 0, 0, 1]), np.float32(0.777)], {}),
    ("Pad", (2, 3, 4), [np.array([0, 1, 2, 0, 0, 1])], {"mode": "reflect"}),
    ("Resize", (1, 2, 3, 4), [None, np.array([1, 1, 2, 3], np.float32)], {"mode": "nearest"}),
    ("DepthToSpace", (1, 8, 2, 3), [], {"blocksize": 2}),
    ("SpaceToDepth", (1, 2, 4, 6), [], {"blocksize": 2}), ("Tile", (2, 3), [np.array([2, 2])], {}),
    ("Expand", (2, 1), [np.array([2, 5])], {}),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "shape", "rest", "attributes"), MOVES)
@pytest.mark.parametrize("same", [True, False])
def test_rearrangement(
    op_type: str, shape: tuple[int, ...], rest: list[Any], attributes: dict[str, Any], same: bool
) -> None:
    x = Quantised(integers(*shape), 0.02, 5)
    result = Result(0.02, 5) if same else Result(0.03, 2, np.uint8)
    found = agree(op_type, [x, *rest], [result], attributes)
    is_exact_fill = op_type != "Pad" or len(rest) == 1
    if same and is_exact_fill:  # integers are copied as they are
        assert all(op.body == Read(0) for op in found.graph.ops)
    if same and op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
        assert is_view(found.graph.ops[0], found.graph.tensors)


def test_concat_rescales_only_what_differs() -> None:
    a, b = Quantised(integers(2, 3), 0.02, 5), Quantised(integers(2, 4), 0.03, 5)
    found = agree("Concat", [a, b], [Result(0.02, 5)], {"axis": 1})
    first, second = found.graph.ops
    assert first.body == Read(0)
    assert second.body != Read(0)


def test_split_into_outputs_with_their_own_parameters() -> None:
    x = Quantised(integers(2, 6), 0.02, 5)
    found = agree(
        "Split", [x, np.array([2, 4])], [Result(0.02, 5), Result(0.01, 0, np.uint8)], {"axis": 1}
    )
    assert len(found.graph.ops) == 2


@pytest.mark.parametrize("result", [Result(0.02, 5), Result(0.03, 9), Result(0.02, 5, np.uint8)])
@pytest.mark.parametrize("activation", [None, ("Relu", [])])
@pytest.mark.parametrize(
    ("op_type", "rest", "attributes"),
    [
        ("MaxPool", [], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
        ("MaxPool", [], {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("GlobalMaxPool", [], {}),
        ("ReduceMax", [np.array([1, 3])], {"keepdims": 0}),
    ],
)
def test_maxima(
    op_type: str, rest: list[Any], attributes: dict[str, Any], result: Result, activation: Any
) -> None:
    x = Quantised(integers(1, 2, 5, 6), 0.02, 5)
    found = agree(op_type, [x, *rest], [result], attributes, activation)
    is_copy = result == Result(0.02, 5) and activation is None
    assert len(found.graph.ops) == (1 if is_copy else 2)
    assert bool(found.together) is not is_copy


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("op_type", "rest", "attributes"),
    [
        ("AveragePool", [], {"kernel_shape": [3, 2], "strides": [2, 1]}),
        ("AveragePool", [], {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0]}),
        ("AveragePool", [],
         {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0], "count_include_pad": 1}),
        ("AveragePool", [], {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("GlobalAveragePool", [], {}),
        ("ReduceMean", [np.array([2, 3])], {}), ("ReduceMean", [np.array([1])], {"keepdims": 0}),
        ("ReduceSum", [np.array([3])], {}),
    ],
)  # fmt: skip
def test_means(
    op_type: str, rest: list[Any], attributes: dict[str, Any], kind: type[np.generic]
) -> None:
    x = Quantised(integers(2, 3, 5, 7, kind=kind), 0.021, 11)
    found = agree(op_type, [x, *rest], [Result(0.017, 4, kind)], attributes, steps=1)
    acc, last = found.graph.ops
    assert found.graph.tensors[acc.write.tensor].dtype is DType.I32
    assert found.together == ((acc.name, last.name),)


def test_differences_from_float_are_rare() -> None:
    """Sums differ from float only where f32 rounding decides a half step."""
    x = Quantised(integers(1, 32, 12, 12), 0.0213, 5)
    w = weights((16, 32, 3, 3), 0)
    operands = [x, w, bias_of(x, w, 16)]
    model = qdq_model("Conv", operands, [Result(0.35, 3)])
    (want,), (have,) = onnxruntime(model, operands), ours(model, operands)
    different = want != have
    assert different.mean() < 0.002
    assert np.abs(want.astype(int) - have.astype(int)).max() <= 1


def test_sixteen_bit_activations() -> None:
    x = Quantised(integers(1, 3, 6, 6, kind=np.int16), 0.0003, 40)
    result = Result(0.002, -70, np.int16)
    agree("Conv", [x, weights((4, 3, 3, 3), 0)], [result], steps=1)
    wide = Quantised(integers(1, 3, 6, 6, kind=np.uint16), 0.0007, 30000)
    agree("Add", [x, Quantised(wide.values.astype(np.int16), 0.0007, 3)], [result])
    agree("Sub", [wide, wide], [Result(0.0007, 9, np.uint16)])
    same = agree("Transpose", [x], [Result(0.0003, 40, np.int16)], {"perm": [3, 0, 1, 2]})
    assert all(op.body == Read(0) for op in same.graph.ops)


@pytest.mark.parametrize("limits", [[2.0, 1.0], [50.0, None], [None, -50.0], [-1e30, 1e30]])
def test_odd_limits(limits: list[float | None]) -> None:
    x, w = Quantised(integers(3, 8), 0.02, 5), weights((8, 4), 1)
    agree("MatMul", [x, w], [Result(0.05, 3)], activation=("Clip", limits), steps=1)
    agree("Neg", [x], [Result(0.05, 3)], activation=("Clip", limits))


def test_results_beyond_the_range_saturate() -> None:
    x, w = Quantised(integers(3, 8), 5.0, 5), weights((8, 4), 1)
    agree("MatMul", [x, w], [Result(0.001, 3)])
    agree("Exp", [x], [Result(0.001, 3)])


@pytest.mark.parametrize("result", [Result(0.02, 5), Result(0.03, -2), Result(0.02, 5, np.uint8)])
def test_a_change_of_parameters_alone(result: Result) -> None:
    x = Quantised(integers(300), 0.02, 5)
    model = qdq_model("Identity", [x], [result])
    identity = next(n for n in model.graph.node if n.op_type == "Identity")
    model.graph.node.remove(identity)
    next(n for n in model.graph.node if n.op_type == "QuantizeLinear").input[0] = "d0"
    onnx.checker.check_model(model)
    nodes = list(ir.serde.deserialize_model(model).graph)
    (cluster,) = find_clusters(nodes, ["y0"])
    assert (cluster.nodes, cluster.core, cluster.op_type) == ((0, 1), 1, "QuantizeLinear")
    assert cluster_rejection(nodes, cluster, 21) is None
    graph = express_region(nodes, ["y0"], 21, (cluster,)).graph
    (op,) = graph.ops
    assert (op.body == Read(0)) is (result == Result(0.02, 5))
    np.testing.assert_array_equal(
        evaluate(graph, {"x0": x.values})["y0"], onnxruntime(model, [x])[0]
    )
