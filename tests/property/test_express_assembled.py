"""Col2Im, AffineGrid, masks and empty pieces against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from express_oracle import agree, model_of, onnxruntime, ours, reason
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from onnx import helper
from test_express_kernels import check

from benchmarks.onnx_coverage import Case
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.simplify import simplify
from worker.compiler.rejection import ReasonCode

SEEDS = st.integers(0, 2**32 - 1)


@COSTLY
@given(data=st.data(), count=st.integers(1, 2), seed=SEEDS)
def test_col2im(data: st.DataObject, count: int, seed: int) -> None:
    """Whole numbers, so that overlapping blocks add up exactly in any order."""

    def each(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    block, strides, dilations = each(1, 3), each(1, 3), each(1, 3)
    pads = [*each(0, 2), *each(0, 2)]
    least = [d * (b - 1) + 1 for b, d in zip(block, dilations, strict=True)]
    image = [low + data.draw(st.integers(0, 5)) for low in least]
    columns = [
        (image[d] + pads[d] + pads[count + d] - least[d]) // strides[d] + 1 for d in range(count)
    ]
    rng = np.random.default_rng(seed)
    batch, channels = data.draw(st.integers(1, 2)), data.draw(st.integers(1, count))
    shape = [batch, channels * int(np.prod(block)), int(np.prod(columns))]
    inputs = [
        rng.integers(-4, 5, shape).astype(np.float32), np.asarray(image, np.int64),
        np.asarray(block, np.int64),
    ]  # fmt: skip
    flags = {"strides": strides, "dilations": dilations, "pads": pads}
    agree("Col2Im", inputs, flags, constants=(1, 2))


def test_col2im_of_other_columns_is_refused() -> None:
    sizes = [np.asarray([5, 5], np.int64), np.asarray([2, 2], np.int64)]
    model = model_of("Col2Im", [np.ones((1, 4, 15), np.float32), *sizes], constants=(1, 2))
    assert reason(model).code is ReasonCode.SHAPE_MISMATCH


def test_what_runtimes_disagree_on_is_refused() -> None:
    """ONNX Runtime 1.32.0 puts the second channel's taps elsewhere in any but two dimensions."""
    sizes = [np.asarray([3], np.int64), np.asarray([2], np.int64)]
    model = model_of(
        "Col2Im", [np.ones((1, 4, 1), np.float32), *sizes], {"dilations": [2]}, constants=(1, 2)
    )
    assert "mixes up the channels" in reason(model).sentence


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 2, 3, 4, 2)])
def test_affine_grid(size: tuple[int, ...], aligned: int) -> None:
    count = len(size) - 2
    theta = np.random.default_rng(3).standard_normal((size[0], count, count + 1))
    inputs = [theta.astype(np.float32), np.asarray(size, np.int64)]
    model = model_of("AffineGrid", inputs, {"align_corners": aligned}, constants=(1,), opset=20)
    np.testing.assert_allclose(ours(model, inputs)[0], onnxruntime(model, inputs)[0], atol=1e-6)


def test_the_mask_of_a_dropout_that_does_not_train_is_true() -> None:
    x = np.ones((2, 3), np.float32)
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL)
    model = model_of("Dropout", [x], num_outputs=2, output_type=kinds)
    value, mask = ours(model, [x])
    np.testing.assert_array_equal(value, x)
    assert mask.dtype == np.bool_
    assert mask.all()


def test_a_piece_without_elements_is_not_joined() -> None:
    """What RotaryEmbedding's function leaves unrotated of a head: nothing."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Split", ["x", "lengths"], ["all", "none"], axis=1, name="split"),
        helper.make_node("Neg", ["all"], ["n"], name="neg"),
        helper.make_node("Concat", ["n", "none"], ["y"], axis=1, name="join"),
    ]
    lengths = onnx.numpy_helper.from_array(np.asarray([4, 0], np.int64), "lengths")
    graph = helper.make_graph(nodes, "g", [info("x", 1, [2, 4])], [info("y", 1, [2, 4])], [lengths])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    found = simplify(OnnxModel(onnx_ir.serde.deserialize_model(model), "m", "", 18))
    (join,) = (node for node in found.ir.graph if node.op_type == "Concat")
    assert [value.name for value in join.inputs if value is not None] == ["n"]


def test_they_are_kernels(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)

    def case(name: str, op_type: str, inputs: list[Any], opset: int, **attributes: Any) -> Case:
        constants = tuple(range(1, len(inputs)))
        model = model_of(op_type, inputs, attributes, constants=constants, opset=opset)
        return Case(name, op_type, model, tuple(inputs[:1]), tuple(ours(model, inputs)), 1e-6, 1e-6)

    sizes = [np.asarray([5, 6], np.int64), np.asarray([2, 3], np.int64)]
    columns = rng.integers(-4, 5, (1, 12, 9)).astype(np.float32)
    theta = rng.standard_normal((2, 2, 3)).astype(np.float32)
    cases = [
        case("fold", "Col2Im", [columns, *sizes], 18, strides=[2, 2], pads=[1, 0, 0, 1]),
        case("grid", "AffineGrid", [theta, np.asarray([2, 1, 3, 4], np.int64)], 20),
    ]
    assert check("kapla-16x16", cases, tmp_path) == 3
