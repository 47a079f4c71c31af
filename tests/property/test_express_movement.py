"""Operators that move elements, of random geometry, against numpy and ONNX Runtime."""

from __future__ import annotations

from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from express_oracle import agree, express, model_of, only_op, onnxruntime, ours, reason
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY

from worker.compiler.ir.region import is_view
from worker.compiler.rejection import ReasonCode

Array: TypeAlias = "npt.NDArray[Any]"
SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4)


def ramp(*shape: int) -> Array:
    return np.arange(prod(shape), dtype=np.float32).reshape(shape)


def ints(*values: int) -> Array:
    return np.asarray(values, np.int64)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two shapes of one size: factors in one order, joined in two ways."""
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 4, 5]), min_size=1, max_size=5))

    def joined() -> list[int]:
        shape = [1]
        for factor in factors:
            if draw(st.booleans()):
                shape.append(factor)
            else:
                shape[-1] *= factor
        return shape

    return joined(), joined()


@given(reshapes())
def test_reshape_is_a_view_with_the_same_elements(shapes: tuple[list[int], list[int]]) -> None:
    before, after = shapes
    x = ramp(*before)
    model = model_of("Reshape", [x, ints(*after)], constants=(1,))
    assert is_view(only_op(model), express(model).graph.tensors)
    np.testing.assert_array_equal(ours(model, [x, None])[0], x.reshape(after))


def test_splitting_a_dimension_reads_linearly() -> None:
    op = only_op(model_of("Reshape", [ramp(6, 5), ints(2, 3, 5)], constants=(1,)))
    assert all(e.is_linear for e in op.reads[0].index)


@COSTLY
@given(shape=SHAPES, data=st.data())
def test_transpose(shape: list[int], data: st.DataObject) -> None:
    perm = data.draw(st.permutations(range(len(shape))))
    x = ramp(*shape)
    got = ours(model_of("Transpose", [x], {"perm": perm}), [x])[0]
    np.testing.assert_array_equal(got, x.transpose(perm))


@given(shape=SHAPES, data=st.data())
def test_slice(shape: list[int], data: st.DataObject) -> None:
    x = ramp(*shape)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    bounds = st.one_of(st.integers(-9, 9), st.sampled_from([-(2**63), 2**63 - 1]))
    start, end = data.draw(bounds), data.draw(bounds)
    step = data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
    inputs = [x, ints(start), ints(end), ints(axis), ints(step)]
    model = model_of("Slice", inputs, constants=(1, 2, 3, 4))
    if step < 0 and end == 2**63 - 1:
        assert reason(model).code is ReasonCode.UNSUPPORTED_ATTRIBUTE
        return
    expected = onnxruntime(model, inputs)[0]
    if expected.size == 0:
        assert reason(model).code is ReasonCode.EMPTY_TENSOR
    else:
        np.testing.assert_array_equal(ours(model, inputs)[0], expected)


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    mode=st.sampled_from(["constant", "reflect", "edge", "wrap"]),
    data=st.data(),
)
def test_pad(shape: list[int], mode: str, data: st.DataObject) -> None:
    low = -1 if mode == "constant" else 0
    before = [data.draw(st.integers(low, 1 if mode == "constant" else n - 1)) for n in shape]
    after = [data.draw(st.integers(0, n - 1)) for n in shape]
    assume(all(n + b + a > 0 for n, b, a in zip(shape, before, after, strict=True)))
    x = ramp(*shape)
    inputs = [x, ints(*before, *after), np.asarray(2.5, np.float32)]
    model = model_of("Pad", inputs, {"mode": mode}, constants=(1, 2))
    cropped = x[tuple(slice(max(-b, 0), None) for b in before)]
    widths = [(max(b, 0), a) for b, a in zip(before, after, strict=True)]
    if mode == "constant":
        expected = np.pad(cropped, widths, constant_values=2.5)
    else:
        expected = np.pad(cropped, widths, mode=mode)  # type: ignore[call-overload]
    np.testing.assert_array_equal(ours(model, inputs)[0], expected)


def test_mirrored_pad_of_two_dimensions_is_affine_copies() -> None:
    model = model_of(
        "Pad", [ramp(1, 2, 5, 5), ints(0, 0, 2, 2, 0, 0, 2, 2)], {"mode": "reflect"}, constants=(1,)
    )
    graph = express(model).graph
    assert len(graph.ops) == 9
    assert not any(op.has_lookup for op in graph.ops)


@COSTLY
@given(
    rows=st.integers(2, 6),
    axis=st.integers(0, 1),
    constant=st.booleans(),
    values=st.lists(st.integers(-2, 1), min_size=1, max_size=4),
)
def test_gather(rows: int, axis: int, constant: bool, values: list[int]) -> None:
    inputs = [ramp(rows, 3), np.asarray([values], np.int64)]
    agree("Gather", inputs, {"axis": axis}, constants=(1,) if constant else ())


def test_gather_of_one_known_row_is_a_plain_read() -> None:
    model = model_of("Gather", [ramp(4, 3), np.asarray(-1, np.int64)], constants=(1,))
    assert not only_op(model).has_lookup
    assert express(model).graph.constants == ()


def test_gather_out_of_range_is_refused() -> None:
    model = model_of("Gather", [ramp(4, 3), ints(0, 4)], constants=(1,))
    assert reason(model).code is ReasonCode.SHAPE_MISMATCH


@given(
    mode=st.sampled_from(["nearest", "linear", "cubic"]),
    transform=st.sampled_from(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]),
    rows=st.integers(2, 6),
    cols=st.integers(2, 6),
    height=st.integers(2, 12),
    width=st.integers(2, 12),
)
def test_resize(mode: str, transform: str, rows: int, cols: int, height: int, width: int) -> None:
    if mode == "nearest":  # f32 coordinates put ties elsewhere: keep to ratios without them
        height, width = rows * (height % 3 + 1), cols * (width % 3 + 1)
        assume(transform == "asymmetric")
    x = np.random.default_rng(3).standard_normal((1, 2, rows, cols)).astype(np.float32)
    inputs = [x, None, None, ints(1, 2, height, width)]
    attributes = {"mode": mode, "coordinate_transformation_mode": transform}
    if mode == "nearest":
        attributes["nearest_mode"] = "floor"
    agree("Resize", inputs, attributes, constants=(3,))


@pytest.mark.parametrize("transform", ["half_pixel", "asymmetric"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_by_an_integer_is_affine(mode: str, transform: str) -> None:
    scales = np.asarray([1, 1, 2, 2], np.float32)
    inputs = [ramp(1, 2, 4, 4), None, scales]
    attributes = {"mode": mode, "coordinate_transformation_mode": transform}
    assert not only_op(model_of("Resize", inputs, attributes, constants=(2,))).has_lookup


@COSTLY
@given(shape=SHAPES, data=st.data())
def test_concat_then_split(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    other = list(shape)
    other[axis] = data.draw(st.integers(1, 4))
    a, b = ramp(*shape), -ramp(*other)
    joined = np.concatenate([a, b], axis)
    concat = model_of("Concat", [a, b], {"axis": axis})
    np.testing.assert_array_equal(ours(concat, [a, b])[0], joined)
    inputs = [joined, ints(shape[axis], other[axis])]
    parts = ours(model_of("Split", inputs, {"axis": axis}, constants=(1,), num_outputs=2), inputs)
    np.testing.assert_array_equal(parts[0], a)
    np.testing.assert_array_equal(parts[1], b)


def test_parameters_known_only_at_run_time_are_refused() -> None:
    x = ramp(4, 3)
    for op_type, inputs in {
        "Reshape": [x, ints(3, 4)],
        "Slice": [x, ints(0), ints(2)],
        "Expand": [x, ints(2, 4, 3)],
        "Tile": [x, ints(1, 2)],
    }.items():
        assert reason(model_of(op_type, inputs)).code is ReasonCode.DATA_DEPENDENT


def test_a_symbolic_shape_is_refused() -> None:
    model = model_of("Relu", [ramp(2, 2)])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    assert reason(model).code is ReasonCode.DYNAMIC_SHAPE


def test_a_contradicting_recorded_shape_is_refused() -> None:
    model = model_of("Relu", [ramp(2, 2)])
    model.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("y0", onnx.TensorProto.FLOAT, [3, 2])
    )
    assert reason(model).code is ReasonCode.SHAPE_MISMATCH


def test_a_dimension_too_long_for_a_table_is_refused() -> None:
    resize = model_of("Resize", [ramp(2, 2), None, None, ints(2, 2**40)], constants=(3,))
    pad = model_of("Pad", [ramp(2, 2), ints(0, 0, 0, 2**40)], {"mode": "edge"}, constants=(1,))
    for model in (resize, pad):
        assert reason(model).code is ReasonCode.SIZE_LIMIT
