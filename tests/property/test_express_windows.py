"""Convolutions and pools of random geometry against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from express_oracle import agree, express, model_of, only_op, reason
from hypothesis import assume, given
from hypothesis import strategies as st

from worker.compiler.ir.axis import AxisKind
from worker.compiler.rejection import ReasonCode

ATTRIBUTE = ReasonCode.UNSUPPORTED_ATTRIBUTE
RNG = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return RNG.standard_normal(shape).astype(np.float32)


@st.composite
def windows(draw: st.DrawFn, rank: int) -> dict[str, Any]:
    """Attributes of a window that fits an input of extent >= 8."""
    kernel = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)),
        "dilations": draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank)),
    }
    auto = draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if auto.startswith("SAME"):
        # ONNX Runtime crops with negative padding where frameworks do not, and ignores dilation
        strides = zip(attributes["strides"], kernel, strict=True)
        attributes["strides"] = [min(pair) for pair in strides]
        attributes["dilations"] = [1] * rank
    if auto == "NOTSET":
        attributes["pads"] = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    else:
        attributes["auto_pad"] = auto
    return attributes


@given(data=st.data(), rank=st.integers(1, 3), groups=st.sampled_from([1, 2, 4]))
def test_conv(data: st.DataObject, rank: int, groups: int) -> None:
    attributes = data.draw(windows(rank)) | {"group": groups}
    x = floats(data.draw(st.integers(1, 2)), 4, *data.draw(sizes(rank)))
    w = floats(4 * data.draw(st.integers(1, 2)), 4 // groups, *attributes["kernel_shape"])
    bias = floats(w.shape[0]) if data.draw(st.booleans()) else None
    agree("Conv", [x, w, bias], attributes, constants=(1, 2))


def sizes(rank: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(8, 9), min_size=rank, max_size=rank)


@given(data=st.data(), rank=st.integers(1, 2), groups=st.sampled_from([1, 2]))
def test_conv_transpose(data: st.DataObject, rank: int, groups: int) -> None:
    kernel = data.draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    strides = data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    attributes = {
        "kernel_shape": kernel,
        "strides": strides,
        "dilations": data.draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank)),
        "pads": [data.draw(st.integers(0, k // 2)) for k in kernel * 2],
        "output_padding": [data.draw(st.integers(0, s - 1)) for s in strides],
        "group": groups,
    }
    x = floats(1, 4, *data.draw(st.lists(st.integers(3, 5), min_size=rank, max_size=rank)))
    w = floats(4, 3, *kernel)
    bias = floats(3 * groups) if data.draw(st.booleans()) else None
    agree("ConvTranspose", [x, w, bias], attributes)


@given(data=st.data(), rank=st.integers(1, 3), ceil=st.booleans())
def test_max_pool(data: st.DataObject, rank: int, ceil: bool) -> None:
    attributes = data.draw(windows(rank)) | {"ceil_mode": int(ceil)}
    agree("MaxPool", [floats(1, 2, *data.draw(sizes(rank)))], attributes)


@given(data=st.data(), rank=st.integers(1, 2), ceil=st.booleans(), counts=st.booleans())
def test_average_pool(data: st.DataObject, rank: int, ceil: bool, counts: bool) -> None:
    attributes = data.draw(windows(rank))
    assume(not (counts and "auto_pad" in attributes))
    attributes |= {"ceil_mode": int(ceil), "count_include_pad": int(counts)}
    agree("AveragePool", [floats(1, 2, *data.draw(sizes(rank)))], attributes)


def test_conv_axes_are_in_scheduling_order_and_linear() -> None:
    op = only_op(model_of("Conv", [floats(2, 4, 8, 8), floats(6, 2, 3, 3)], {"group": 2}))
    assert [a.name for a in op.domain] == ["n", "g", "co", "o0", "o1", "ci", "k0", "k1"]
    assert [a.name for a in op.reduce_axes] == ["ci", "k0", "k1"]
    assert all(e.is_linear for access in op.reads for e in access.index)
    assert op.reads[0].fill is None


def test_depthwise_conv_has_no_channel_axes_left() -> None:
    op = only_op(model_of("Conv", [floats(1, 4, 8, 8), floats(4, 1, 3, 3)], {"group": 4}))
    assert [a.name for a in op.domain] == ["g", "o0", "o1", "k0", "k1"]


def test_pointwise_conv_of_one_channel_does_not_reduce() -> None:
    op = only_op(model_of("Conv", [floats(1, 1, 4, 4), floats(3, 1, 1, 1)]))
    assert op.reduce is None
    assert all(a.kind is AxisKind.PARALLEL for a in op.domain)


def test_a_zero_bias_costs_no_operator() -> None:
    inputs = [floats(1, 2, 4, 4), floats(3, 2, 1, 1), np.zeros(3, np.float32)]
    assert len(express(model_of("Conv", inputs, constants=(1, 2))).graph.ops) == 1


def test_half_precision_bias_is_added_in_f32() -> None:
    inputs = [a.astype(np.float16) for a in (floats(1, 2, 4, 4), floats(3, 2, 1, 1), floats(3))]
    model = model_of("Conv", inputs, output_type=onnx.TensorProto.FLOAT16)
    graph = express(model).graph
    written = [op.write.tensor for op in graph.ops]
    assert [str(graph.tensors[name].dtype) for name in written] == ["f32", "f16"]


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes", "code"),
    [
        ("Conv", [(1, 2, 4, 4, 4, 4), (1, 2, 1, 1, 1, 1)], {}, ReasonCode.RANK_LIMIT),
        ("Conv", [(1, 3, 4, 4), (1, 2, 1, 1)], {}, ReasonCode.SHAPE_MISMATCH),
        ("Conv", [(1, 2, 2, 2), (1, 2, 3, 3)], {}, ReasonCode.SHAPE_MISMATCH),
        ("Conv", [(1, 2, 4, 4), (1, 2, 3, 3)], {"pads": [-1] * 4}, ATTRIBUTE),
        ("Conv", [(1, 2, 4, 4), (1, 2, 3, 3)], {"wings": 2}, ATTRIBUTE),
        ("Conv", [(1, 2, 4, 4), (1, 2, 3, 3)], {"group": 1.5}, ATTRIBUTE),
        ("MaxPool", [(1, 2, 4, 4)], {}, ATTRIBUTE),
    ],
)
def test_refusals(
    op_type: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any], code: ReasonCode
) -> None:
    why = reason(model_of(op_type, [floats(*s) for s in shapes], attributes))
    assert why.code is code
    assert why.sentence


def test_same_padding_that_would_crop_is_refused() -> None:
    attributes = {"kernel_shape": [1, 1], "strides": [1, 3], "auto_pad": "SAME_UPPER"}
    assert reason(model_of("MaxPool", [floats(1, 1, 9, 9)], attributes)).code is ATTRIBUTE


def test_indices_of_max_pool_are_refused() -> None:
    model = model_of("MaxPool", [floats(1, 1, 4, 4)], {"kernel_shape": [2, 2]}, num_outputs=2)
    assert reason(model).code is ReasonCode.UNSUPPORTED_OUTPUT


@given(channels=st.integers(1, 6), size=st.integers(1, 15))
def test_lrn_over_more_channels_than_there_are(channels: int, size: int) -> None:
    """ONNX Runtime takes odd sizes only."""
    attributes = {"size": 2 * size - 1, "alpha": 0.3, "beta": 0.6, "bias": 1.5}
    agree("LRN", [floats(2, channels, 3, 4)], attributes)


def test_lrn_reads_no_channel_that_is_not_there() -> None:
    x = floats(1, 3, 2, 2)
    first, _ = express(model_of("LRN", [x], {"size": (1 << 31) - 1})).graph.ops
    assert [a.extent for a in first.domain if a.kind is AxisKind.REDUCE] == [5]
