"""Random loops and scans: the interpreter gives what ONNX Runtime gives."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from control_models import BOOL, INT64, constant, model_of, value
from control_reference import interpreted, outputs_of
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

STATES = ("Add", "Sub", "Max", "Min")


def random_scan(
    states: list[str], extents: list[int], axes: list[int], backwards: list[bool],
    out_axis: int, out_backwards: bool, length: int,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    """Every state takes in every sequence by its own operator; all states are stacked too."""
    rng = np.random.default_rng(length + len(states))
    inputs: dict[str, np.ndarray] = {}
    sequences = []
    for k, (axis, _) in enumerate(zip(axes, backwards, strict=True)):
        shape = list(extents)
        shape.insert(axis % (len(extents) + 1), length)
        inputs[f"x{k}"] = rng.integers(-4, 5, shape).astype(np.float32)
        sequences.append(value(f"x{k}", shape))
    nodes, last = [], [f"s{j}" for j in range(len(states))]
    for j, op_type in enumerate(states):
        inputs[f"init{j}"] = rng.integers(-4, 5, extents).astype(np.float32)
        for k in range(len(axes)):
            name = f"s{j}_{k}"
            nodes.append(helper.make_node(op_type, [last[j], f"e{k}"], [name], name=name))
            last[j] = name
        nodes.append(helper.make_node("Neg", [last[j]], [f"o{j}"], name=f"o{j}"))
    body = helper.make_graph(
        nodes, "body",
        [value(f"s{j}", extents) for j in range(len(states))]
        + [value(f"e{k}", extents) for k in range(len(axes))],
        [value(name, extents) for name in last]
        + [value(f"o{j}", extents) for j in range(len(states))],
    )  # fmt: skip
    node = helper.make_node(
        "Scan", [*(f"init{j}" for j in range(len(states))), *(f"x{k}" for k in range(len(axes)))],
        [*(f"end{j}" for j in range(len(states))), *(f"all{j}" for j in range(len(states)))],
        name="scan", body=body, num_scan_inputs=len(axes), scan_input_axes=axes,
        scan_input_directions=[int(b) for b in backwards],
        scan_output_axes=[out_axis] * len(states),
        scan_output_directions=[int(out_backwards)] * len(states),
    )  # fmt: skip
    outputs = [value(name, None) for name in node.output]
    starts = [value(f"init{j}", extents) for j in range(len(states))]
    return model_of(helper.make_graph([node], "random", [*starts, *sequences], outputs)), inputs


@given(data=st.data())
def test_scans_agree(data: st.DataObject) -> None:
    extents = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    rank = len(extents) + 1
    count = data.draw(st.integers(1, 3))
    model, inputs = random_scan(
        data.draw(st.lists(st.sampled_from(STATES), min_size=1, max_size=3)),
        extents,
        data.draw(st.lists(st.integers(-rank, rank - 1), min_size=count, max_size=count)),
        data.draw(st.lists(st.booleans(), min_size=count, max_size=count)),
        data.draw(st.integers(-rank, rank - 1)),
        data.draw(st.booleans()),
        data.draw(st.integers(1, 5)),
    )
    _assert_agree(model, inputs)


@given(
    count=st.none() | st.integers(-1, 6),
    condition=st.none() | st.booleans(),
    bound=st.integers(-2, 6),
    is_constant=st.booleans(),
    order=st.permutations(range(3)),
)
def test_loops_agree(
    count: int | None, condition: bool | None, bound: int, is_constant: bool, order: list[int]
) -> None:
    """Three states handed round in `order`; goes on while the trip number is below `bound`."""
    bound = min(bound, 6)
    body = helper.make_graph(
        [
            helper.make_node("Add", ["i", "one"], ["next"], name="next"),
            helper.make_node("Less", ["next", "bound"], ["go_on"], name="below"),
            *[helper.make_node("Add", [f"s{order[k]}", "step"], [f"t{k}"], name=f"t{k}")
              for k in range(2)],
            helper.make_node("Identity", [f"s{order[2]}"], ["t2"], name="t2"),
            helper.make_node("Concat", ["s0", "s1"], ["both"], name="both", axis=0),
        ],
        "body",
        [value("i", [], INT64), value("go", [], BOOL), *[value(f"s{k}", [2]) for k in range(3)]],
        [value("go_on", [], BOOL), *[value(f"t{k}", [2]) for k in range(3)], value("both", [4])],
    )  # fmt: skip
    inputs: dict[str, np.ndarray] = {"step": np.array([1, 10], np.float32)}
    ports, constants = [value("step", [2])], [
        constant("one", 1, np.int64), constant("bound", bound, np.int64),
        *[constant(f"s{k}_0", [k, -k]) for k in range(3)],
    ]  # fmt: skip
    for name, kind, dtype, given_value in (
        ("m", INT64, np.int64, count), ("c", BOOL, np.bool_, condition),
    ):  # fmt: skip
        if given_value is None:
            continue
        if is_constant:
            constants.append(constant(name, given_value, dtype))
        else:
            ports.append(value(name, [], kind))
            inputs[name] = np.array(given_value, dtype)
    operands = ["" if count is None else "m", "" if condition is None else "c"]
    node = helper.make_node(
        "Loop", [*operands, "s0_0", "s1_0", "s2_0"], ["a", "b", "c_end", "boths"], name="loop",
        body=body,
    )  # fmt: skip
    outputs = [value("a", [2]), value("b", [2]), value("c_end", [2]), value("boths", None)]
    _assert_agree(model_of(helper.make_graph([node], "random", ports, outputs, constants)), inputs)


def _assert_agree(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        got, _ = interpreted(model, inputs, Path(folder))
    want = outputs_of(model, inputs)
    assert list(got) == list(want)
    for name, array in want.items():
        assert (got[name].shape, got[name].dtype) == (array.shape, array.dtype), name
        np.testing.assert_array_equal(got[name], array)
