"""Running sums, scatters, ReverseSequence and TopK against numpy and ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from express_oracle import agree, express, model_of, onnxruntime, ours, reason
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from test_express_kernels import check

from benchmarks.onnx_coverage import Case
from worker.compiler.rejection import ReasonCode

Array: TypeAlias = "npt.NDArray[Any]"
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=3)
TOP: dict[str, Any] = {
    "num_outputs": 2,
    "output_type": (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64),
}
SEEDS = st.integers(0, 2**32 - 1)
REDUCTIONS = st.sampled_from(["none", "add", "mul", "max", "min"])


def whole(rng: np.random.Generator, shape: list[int]) -> Array:
    """Small whole numbers: their sums are exact in any order, and some are equal."""
    return rng.integers(-4, 5, shape).astype(np.float32)


@COSTLY
@given(
    before=st.lists(st.integers(1, 3), max_size=2),
    length=st.sampled_from([1, 2, 7, 8, 9, 20, 64, 70, 130]),
    after=st.lists(st.integers(1, 3), max_size=1),
    exclusive=st.booleans(),
    reverse=st.booleans(),
    seed=SEEDS,
)
def test_cumulative_sums(
    before: list[int], length: int, after: list[int], exclusive: bool, reverse: bool, seed: int
) -> None:
    x = whole(np.random.default_rng(seed), [*before, length, *after])
    inputs = [x, np.asarray(len(before), np.int64)]
    flags = {"exclusive": int(exclusive), "reverse": int(reverse)}
    model = model_of("CumSum", inputs, flags, constants=(1,))
    np.testing.assert_array_equal(ours(model, inputs)[0], onnxruntime(model, inputs)[0])
    factors = np.where(x == 0, 1, np.sign(x))
    product = ours(model_of("CumProd", inputs, flags, constants=(1,), opset=26), [factors, None])
    turned = np.flip(factors, len(before)) if reverse else factors
    found = np.cumprod(turned, len(before))
    if exclusive:
        found = np.insert(found, 0, 1, len(before)).take(range(length), len(before))
    np.testing.assert_array_equal(product[0], np.flip(found, len(before)) if reverse else found)


def test_a_long_sum_takes_few_steps() -> None:
    x = np.ones((2, 4096), np.float32)
    graph = express(model_of("CumSum", [x, np.asarray(1, np.int64)], constants=(1,))).graph
    assert [max(a.extent for a in op.reduce_axes) for op in graph.ops] == [8, 8, 8, 8]


@COSTLY
@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4), time=st.integers(0, 1), seed=SEEDS
)
def test_reverse_sequence(shape: list[int], time: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, shape[time] + 1, shape[1 - time]).astype(np.int64)
    inputs = [whole(rng, shape), lengths]
    agree("ReverseSequence", inputs, {"time_axis": time, "batch_axis": 1 - time})


@COSTLY
@given(shape=SHAPES, reduction=REDUCTIONS, known=st.booleans(), data=st.data(), seed=SEEDS)
def test_scatter_elements(
    shape: list[int], reduction: str, known: bool, data: st.DataObject, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    count = [data.draw(st.integers(1, 8 if d == axis % len(shape) else n))
             for d, n in enumerate(shape)]  # fmt: skip
    extent = shape[axis]
    inputs = [whole(rng, shape), rng.integers(-extent, extent, count), whole(rng, count)]
    model = model_of("ScatterElements", inputs, {"axis": axis, "reduction": reduction},
                     constants=(1,) if known else ())  # fmt: skip
    np.testing.assert_array_equal(ours(model, inputs)[0], onnxruntime(model, inputs)[0])


@COSTLY
@given(shape=SHAPES, lead=SHAPES, reduction=REDUCTIONS, data=st.data(), seed=SEEDS)
def test_scatter_nd(
    shape: list[int], lead: list[int], reduction: str, data: st.DataObject, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    depth = data.draw(st.integers(1, len(shape)))
    known = data.draw(st.booleans())
    low = [-n for n in shape[:depth]] if known or len(set(shape[:depth])) == 1 else [0] * depth
    indices = rng.integers(low, shape[:depth], (*lead, depth))
    inputs = [whole(rng, shape), indices, whole(rng, [*lead, *shape[depth:]])]
    model = model_of("ScatterND", inputs, {"reduction": reduction}, constants=(1,) if known else ())
    np.testing.assert_array_equal(ours(model, inputs)[0], onnxruntime(model, inputs)[0])


@COSTLY
@given(shape=SHAPES, largest=st.booleans(), data=st.data(), seed=SEEDS)
def test_top_k(shape: list[int], largest: bool, data: st.DataObject, seed: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(1, shape[axis]))
    inputs = [whole(np.random.default_rng(seed), shape), np.asarray([k], np.int64)]
    agree("TopK", inputs, {"axis": axis, "largest": int(largest)}, constants=(1,), **TOP)


def test_top_k_of_what_is_not_a_number_is_still_an_order() -> None:
    x = np.asarray([np.nan, 1, -np.inf, np.nan, np.inf], np.float32)
    model = model_of("TopK", [x, np.asarray([5], np.int64)], constants=(1,), **TOP)
    values, places = ours(model, [x, None])
    assert places.tolist() == [4, 1, 2, 0, 3]
    np.testing.assert_array_equal(values, x[places])


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    rng = np.random.default_rng(5)
    x, update = whole(rng, [3, 2, 7, 2]), whole(rng, [3, 2, 4, 2])
    starts = np.asarray([0, 3, 5 if mode == "circular" else 2], np.int64)
    expected = x.copy()
    for b, start in enumerate(starts):
        for s in range(4):
            expected[b, :, (start + s) % 7] = update[b, :, s]
    model = model_of("TensorScatter", [x, update, starts], {"mode": mode}, opset=24)
    np.testing.assert_array_equal(ours(model, [x, update, starts])[0], expected)


def test_a_scatter_too_large_to_compare_is_refused() -> None:
    x = np.zeros((40_000,), np.float32)
    places = np.zeros((30_000,), np.int64)
    why = reason(model_of("ScatterElements", [x, places, x[:30_000]]))
    assert why.code is ReasonCode.SIZE_LIMIT
    assert "1200000000" in why.sentence


def test_a_scatter_at_known_places_compares_nothing() -> None:
    """It gathers: as many steps as the busiest place has updates, however many there are."""
    x, updates = np.zeros((4_000, 4), np.float32), np.ones((3_000, 4), np.float32)
    places = (np.arange(3_000, dtype=np.int64) // 3).reshape(-1, 1)
    edges = [x, places, updates]
    summed = express(model_of("ScatterND", edges, {"reduction": "add"}, constants=(1,))).graph
    assert [max((a.extent for a in op.reduce_axes), default=1) for op in summed.ops] == [3, 1]
    written = express(model_of("ScatterND", edges, constants=(1,))).graph
    assert [op.reduce for op in written.ops] == [None]
    compared = express(model_of("ScatterND", edges)).graph
    assert max(a.extent for op in compared.ops for a in op.reduce_axes) == 3_000


def test_a_known_place_outside_is_refused() -> None:
    x = np.zeros((4, 3), np.float32)
    far = model_of("ScatterND", [x, np.asarray([[4]]), x[:1]], constants=(1,))
    assert reason(far).code is ReasonCode.SHAPE_MISMATCH
    assert "index 4" in reason(far).sentence


def case(name: str, op_type: str, inputs: list[Any], constants: tuple[int, ...] = (),
         **attributes: Any) -> Case:  # fmt: skip
    outputs = TOP if op_type == "TopK" else {}
    model = model_of(op_type, inputs, attributes, constants=constants, **outputs)
    given = tuple(a for k, a in enumerate(inputs) if k not in constants)
    return Case(name, op_type, model, given, tuple(ours(model, inputs)), 0, 0)


def test_they_are_kernels(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x = whole(rng, [5, 6])
    less = rng.integers(-5, 5, (3, 4))
    pairs = rng.integers(0, 5, (2, 3, 2))
    one = np.asarray(1, np.int64)
    cases = [
        case("sum", "CumSum", [whole(rng, [3, 70]), one], constants=(1,), exclusive=1),
        case("short", "CumSum", [x[:, :1], one], constants=(1,), exclusive=1),
        case("scatter", "ScatterElements", [x, less, whole(rng, [3, 4])]),
        case("rows", "ScatterElements", [x, less, whole(rng, [3, 4])], reduction="add"),
        case("nd", "ScatterND", [x, pairs, whole(rng, [2, 3])]),
        case("nd_max", "ScatterND", [x, pairs, whole(rng, [2, 3])], reduction="max"),
        case("known", "ScatterND", [x, pairs, whole(rng, [2, 3])], constants=(1,)),
        case("edges", "ScatterND", [x, pairs, whole(rng, [2, 3])], constants=(1,), reduction="add"),
        case("column", "ScatterElements", [x, less, whole(rng, [3, 4])], constants=(1,)),
        case("top", "TopK", [x, np.asarray([3], np.int64)], constants=(1,)),
        case("reverse", "ReverseSequence", [x, np.asarray([5, 1, 3, 2, 4, 0], np.int64)]),
    ]
    assert check("kapla-16x16", cases, tmp_path) == sum(
        len(express(c.model).graph.ops) for c in cases
    )


def test_an_unknown_axis_is_data_dependent() -> None:
    x = np.ones((2, 3), np.float32)
    sums = model_of("CumSum", [x, np.asarray(1, np.int64)])
    assert reason(sums).code is ReasonCode.DATA_DEPENDENT
    order = model_of("TopK", [x, np.asarray([2], np.int64)], **TOP)
    assert reason(order).code is ReasonCode.DATA_DEPENDENT
