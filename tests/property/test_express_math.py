"""Contractions, reductions, normalisations and quantisation against numpy and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from express_oracle import agree, express, model_of, node_of, only_op, ours, reason
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY

from worker.compiler.errors import InternalError
from worker.compiler.frontend.express import express_region
from worker.compiler.ir.scalar import Const, children
from worker.compiler.ir.signature import signature
from worker.compiler.rejection import ReasonCode

RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 5)), ((4,), (2, 4, 5)), ((1, 4), (4, 1)),
    ],
)  # fmt: skip
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = floats(*left), floats(*right)
    got = ours(model_of("MatMul", [a, b]), [a, b])[0]
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-6)


@COSTLY
@given(
    turn_a=st.booleans(),
    turn_b=st.booleans(),
    alpha=st.sampled_from([1.0, 0.5]),
    beta=st.sampled_from([0.0, 1.0, 2.0]),
    c=st.sampled_from([None, (), (5,), (3, 1), (3, 5)]),
    constant=st.booleans(),
)
def test_gemm(
    turn_a: bool, turn_b: bool, alpha: float, beta: float, c: tuple[int, ...] | None, constant: bool
) -> None:
    a = floats(4, 3) if turn_a else floats(3, 4)
    b = floats(5, 4) if turn_b else floats(4, 5)
    attributes = {"transA": int(turn_a), "transB": int(turn_b), "alpha": alpha, "beta": beta}
    agree(
        "Gemm", [a, b, None if c is None else floats(*c)], attributes,
        constants=(1, 2) if constant else (),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhqd,bhkd->bhqk", [(1, 2, 3, 4), (1, 2, 5, 4)]),
        ("ii->i", [(3, 3)]),
        ("ij->", [(2, 3)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
        ("i,j", [(3,), (4,)]),
        ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
        ("ji", [(2, 3)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [floats(*s) for s in shapes]
    got = ours(model_of("Einsum", list(arrays), {"equation": equation}), list(arrays))[0]
    np.testing.assert_allclose(got, np.einsum(equation, *arrays), rtol=1e-4, atol=1e-5)


@COSTLY
@given(
    op_type=st.sampled_from(
        ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
         "ReduceLogSumExp", "ReduceSumSquare"]
    ),
    axes=st.sampled_from([None, [0], [1, -1], [2]]),
    keep=st.integers(0, 1),
)  # fmt: skip
def test_reductions(op_type: str, axes: list[int] | None, keep: int) -> None:
    given_axes = None if axes is None else np.asarray(axes, np.int64)
    agree(op_type, [floats(2, 3, 4), given_axes], {"keepdims": keep}, constants=(1,))


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_softmax_survives_large_inputs_in_half_precision(op_type: str) -> None:
    x = (RNG.standard_normal((3, 5)) * 1000).astype(np.float16)
    model = model_of(op_type, [x], output_type=onnx.TensorProto.FLOAT16)
    got = ours(model, [x])[0]
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    expected = powers / powers.sum(-1, keepdims=True)
    if op_type == "LogSoftmax":
        expected = wide - wide.max(-1, keepdims=True) - np.log(powers.sum(-1, keepdims=True))
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=2e-3, atol=1e-3)


def test_softmax_before_opset_13_works_on_a_matrix() -> None:
    agree("Softmax", [floats(2, 3, 4)], {"axis": 1}, opset=11)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_norm_with_every_output(has_bias: bool, axis: int) -> None:
    x = floats(2, 3, 4)
    tail = x.shape[axis:]
    inputs = [x, floats(*tail), floats(*tail) if has_bias else None]
    agree("LayerNormalization", inputs, {"axis": axis}, num_outputs=3)


def test_batch_norm_with_constant_statistics_is_one_scale_and_shift() -> None:
    inputs = [floats(2, 3, 4, 4), floats(3), floats(3), floats(3), np.abs(floats(3)) + 0.5]
    agree("BatchNormalization", inputs, constants=(1, 2, 3, 4))
    graph = express(model_of("BatchNormalization", inputs, constants=(1, 2, 3, 4))).graph
    assert len(graph.ops) == 1
    assert graph.constants == ("y0.scale", "y0.shift")


def test_group_norm_per_channel_and_per_group() -> None:
    x = floats(2, 6, 5)
    wide = x.reshape(2, 3, 10).astype(np.float64)
    normal = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    for opset, count in ((21, 6), (20, 3)):
        scale, bias = floats(count), floats(count)
        inputs = [x, scale, bias]
        model = model_of("GroupNormalization", inputs, {"num_groups": 3}, opset=opset)
        spread = [np.repeat(p, 6 // count).reshape(1, 6, 1) for p in (scale, bias)]
        expected = normal.reshape(x.shape) * spread[0] + spread[1]
        np.testing.assert_allclose(ours(model, inputs)[0], expected, rtol=1e-4, atol=1e-5)


@COSTLY
@given(
    kind=st.sampled_from([np.int8, np.uint8]),
    per_axis=st.booleans(),
    has_zero=st.booleans(),
    constant=st.booleans(),
)
def test_quantize_and_dequantize(kind: Any, per_axis: bool, has_zero: bool, constant: bool) -> None:
    shape = (3,) if per_axis else ()
    x = floats(2, 3, 4) * 50
    scale = (np.abs(floats(*shape)) + 0.1).astype(np.float32)
    zero = np.asarray(RNG.integers(0, 9, shape), kind) if has_zero else None
    constants = (1, 2) if constant else ()
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind if has_zero else np.uint8))
    agree("QuantizeLinear", [x, scale, zero], {"axis": 1}, constants=constants, output_type=code)
    q = RNG.integers(0, 99, (2, 3, 4)).astype(kind)
    agree("DequantizeLinear", [q, scale, zero], {"axis": 1}, constants=constants)


def test_matmul_integer_accumulates_in_i32() -> None:
    """Without VNNI, ONNX Runtime adds two products of U8 and S8 in 16 bits, which saturate: it is
    asked for weights of 7 bits only, NumPy for all of them."""
    a = RNG.integers(0, 256, (3, 300)).astype(np.uint8)
    b = RNG.integers(-128, 128, (300, 4)).astype(np.int8)
    zeros = [np.asarray(7, np.uint8), np.asarray(-3, np.int8)]
    options = {"constants": (2, 3), "output_type": onnx.TensorProto.INT32}
    agree("MatMulInteger", [a, b // 2, *zeros], **options)
    inputs = [a, b, *zeros]
    (found,) = ours(model_of("MatMulInteger", inputs, **options), inputs)
    np.testing.assert_array_equal(found, (a.astype(np.int64) - 7) @ (b.astype(np.int64) + 3))


def test_scalar_constants_become_literals() -> None:
    inputs = [floats(2, 3), np.asarray([[0.5]], np.float32)]
    model = model_of("Mul", inputs, constants=(1,))
    op = only_op(model)
    assert express(model).graph.constants == ()
    assert [c.value for c in children(op.body) if isinstance(c, Const)] == [0.5]


def test_a_nan_scalar_stays_a_tensor() -> None:
    inputs = [floats(2, 3), np.asarray(np.nan, np.float32)]
    graph = express(model_of("Add", inputs, constants=(1,))).graph
    assert graph.constants == ("x1",)


def test_weights_are_not_read_while_expressing() -> None:
    model = model_of("MatMul", [floats(2, 3), floats(3, 4)], constants=(1,))
    node = node_of(model)

    class Untouched:
        """A weight whose bytes must not be asked for."""

        def __init__(self, tensor: Any) -> None:
            self.shape, self.dtype, self.size = tensor.shape, tensor.dtype, tensor.size

        def numpy(self) -> Any:
            raise AssertionError("the weight was read")

    weight = node.inputs[1]
    assert weight is not None
    weight.const_value = Untouched(weight.const_value)  # type: ignore[assignment]
    assert express_region([node], ["y0"], 20).graph.constants == ("x1",)


def test_equal_nodes_of_other_names_have_one_signature() -> None:
    model = model_of("LayerNormalization", [floats(2, 3, 4), floats(4), floats(4)])
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    renamed.graph.node[0].output[0] = "elsewhere"
    renamed.graph.output[0].name = "elsewhere"
    renamed.graph.node[0].name = "other"
    assert signature(express(model).graph) == signature(express(renamed).graph)


def test_names_derive_from_the_output_and_origins_name_the_node() -> None:
    graph = express(model_of("Softmax", [floats(2, 3)])).graph
    assert [op.name for op in graph.ops] == ["y0.max", "y0.exp", "y0.sum", "y0"]
    assert {(op.origin.nodes, op.origin.op_type) for op in graph.ops} == {(("node",), "Softmax")}


@pytest.mark.parametrize(
    ("op_type", "code"),
    [
        ("NonZero", ReasonCode.DATA_DEPENDENT),
        ("Det", ReasonCode.UNSUPPORTED_OP),
        ("Unheard", ReasonCode.UNSUPPORTED_OP),
    ],
)
def test_operators_outside(op_type: str, code: ReasonCode) -> None:
    model = model_of(op_type, [floats(2, 3)])
    assert reason(model).code is code
    with pytest.raises(InternalError) as caught:
        express_region([node_of(model)], ["y0"], 20)
    assert caught.value.place.node == "node"


def test_a_foreign_domain_and_a_foreign_type_are_refused() -> None:
    model = model_of("Relu", [floats(2, 3)])
    model.graph.node[0].domain = "com.example"
    assert reason(model).code is ReasonCode.UNSUPPORTED_OP
    texts = model_of("Identity", [np.asarray(["a"], dtype=object)])
    assert reason(texts).code is ReasonCode.UNSUPPORTED_DTYPE
