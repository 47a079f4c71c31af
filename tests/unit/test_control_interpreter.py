"""The interpreter of If, Loop and Scan against ONNX Runtime on the whole node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from control_models import BOOL, FLOAT, INT64, constant, model_of, scan, value
from control_reference import controls_of, flow_of, interpreted, outputs_of, simplified
from onnx import helper

from worker.compiler.control.compile import whole
from worker.compiler.control.flow import ControlKind
from worker.compiler.errors import InputError
from worker.compiler.machine import load_preset
from worker.compiler.package.control import array_of, interpret
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import HOST, Part
from worker.compiler.rejection import ReasonCode, Rejection


def fibonacci(trips: int, stop_at: int | None = None, rank: int = 0) -> onnx.ModelProto:
    """(a, b) -> (b, a + b), with a, the trip number, and an outer value as scan outputs.

    Stops when a + b exceeds `stop_at`.
    """
    shape = [1] * rank
    nodes = [
        helper.make_node("Identity", ["b"], ["a2"], name="shift"),
        helper.make_node("Add", ["a", "b"], ["b2"], name="sum"),
        helper.make_node("Cast", ["i"], ["number"], name="number", to=FLOAT),
        helper.make_node("Identity", ["outside"], ["seen"], name="outside"),
    ]
    if stop_at is None:
        nodes.append(helper.make_node("Identity", ["go"], ["go_on"], name="go"))
    else:
        nodes += [
            helper.make_node("ReduceMax", ["b2"], ["top"], name="top", keepdims=0),
            helper.make_node("LessOrEqual", ["top", "bound"], ["below"], name="below"),
            helper.make_node("Reshape", ["below", "rank"], ["go_on"], name="ranked"),
        ]
    body = helper.make_graph(
        nodes,
        "body",
        [value("i", shape, INT64), value("go", shape, BOOL), value("a", [2]), value("b", [2])],
        [value("go_on", shape, BOOL), value("a2", [2]), value("b2", [2]),
         value("number", shape), value("seen", [3])],
        [constant("rank", shape, np.int64)],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["m", "", "a0", "b0"], ["x", "y", "numbers", "seens"],
                          name="loop", body=body)],
        "fibonacci",
        [value("a0", [2]), value("outside", [3])],
        [value("x", [2]), value("y", [2]), value("numbers", None), value("seens", None)],
        [constant("m", trips, np.int64), constant("b0", [1, 2]),
         constant("bound", 0.0 if stop_at is None else stop_at)],
    )  # fmt: skip
    return model_of(graph)


FEEDS = {"a0": np.array([1, 5], np.float32), "outside": np.array([7, 8, 9], np.float32)}


def test_rows_of_no_iteration_have_the_shape_that_the_body_declares(tmp_path: Path) -> None:
    """Where it does not follow from what the body reads: a slice of unknown ends."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"], name="go"),
         helper.make_node("Unsqueeze", ["i", "zero"], ["first"], name="first"),
         helper.make_node("Add", ["first", "one"], ["end"], name="end"),
         helper.make_node("Slice", ["outside", "first", "end"], ["part"], name="part"),
         helper.make_node("Add", ["a", "part"], ["a2"], name="sum"),
         helper.make_node("Identity", ["a2"], ["row"], name="row")],
        "body",
        [value("i", [], INT64), value("go", [], BOOL), value("a", [1])],
        [value("go_on", [], BOOL), value("a2", [1]), value("row", [1])],
        [constant("zero", [0], np.int64), constant("one", [1], np.int64)],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["m", "", "a0"], ["x", "rows"], name="loop", body=body)],
        "no_rows", [value("m", [], INT64), value("a0", [1]), value("outside", [5])],
        [value("x", [1]), value("rows", None)],
    )  # fmt: skip
    model = model_of(graph)
    for trips, shape in ((0, (0, 1)), (2, (2, 1))):
        feeds = {
            "m": np.array(trips, np.int64), "a0": np.ones(1, np.float32),
            "outside": np.arange(5, dtype=np.float32),
        }  # fmt: skip
        got, _ = interpreted(model, feeds, tmp_path)
        assert got["rows"].shape == outputs_of(model, feeds)["rows"].shape == shape


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("trips", "stop_at", "ran"), [
    (0, None, 0), (1, None, 1), (5, None, 5), (9, 20, 4), (2, 1000, 2), (-3, None, 0),
])  # fmt: skip
def test_loops_agree(trips: int, stop_at: int | None, ran: int, rank: int, tmp_path: Path) -> None:
    model = fibonacci(trips, stop_at, rank)
    got, calls = interpreted(model, FEEDS, tmp_path)
    want = outputs_of(model, FEEDS)
    assert len(calls) == ran
    for name, array in want.items():
        assert (name, got[name].shape, got[name].dtype) == (name, array.shape, array.dtype)
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize(("trips", "known"), [(4, 4), (0, 0), (-1, 0)])
def test_static_trip_counts_are_known(trips: int, known: int, tmp_path: Path) -> None:
    (control,) = controls_of(simplified(fibonacci(trips), tmp_path))
    assert flow_of(control).trips == known
    (open_control,) = controls_of(simplified(fibonacci(7, stop_at=3), tmp_path))
    assert flow_of(open_control).trips is None
    assert flow_of(open_control).max_trips == 7


def test_values_the_body_only_hands_on_are_not_computed(tmp_path: Path) -> None:
    (control,) = controls_of(simplified(fibonacci(4), tmp_path))
    (body,) = flow_of(control).bodies
    assert body.formal == ("i", "go", "a", "b")
    assert body.outputs[:2] == ("go", "b")
    assert body.outputs[4] == "outside"
    assert body.computes == ("b2", "number")
    assert set(body.reads) == {"i", "a", "b"}
    assert body.captured == ("outside",)


def switch(swap: bool = False) -> onnx.ModelProto:
    """then: the captured value and a constant; else: two computed values."""
    then = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["t1"], name="hand_on"),
         helper.make_node("Constant", [], ["t2"], name="fixed",
                          value=constant("", [4.0, 5.0, 6.0]))],
        "then", [], [value("t1", [3]), value("t2", [3])],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["e1"], name="negate"),
         helper.make_node("Mul", ["x", "x"], ["e2"], name="square")],
        "else", [], [value("e1", [3]), value("e2", [3])],
    )  # fmt: skip
    pair = (other, then) if swap else (then, other)
    node = helper.make_node(
        "If", ["c"], ["p", "q"], name="if", then_branch=pair[0], else_branch=pair[1]
    )
    return model_of(
        helper.make_graph(
            [node], "switch", [value("x", [3]), value("c", [1], BOOL)],
            [value("p", [3]), value("q", [3])],
        )
    )  # fmt: skip


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("swap", [True, False])
def test_branches_agree(condition: bool, swap: bool, tmp_path: Path) -> None:
    feeds = {"x": np.array([1, -2, 3], np.float32), "c": np.array([condition])}
    got, calls = interpreted(switch(swap), feeds, tmp_path)
    for name, array in outputs_of(switch(swap), feeds).items():
        np.testing.assert_array_equal(got[name], array)
    # the branch of an input and a constant has nothing to run
    assert calls == ([] if condition is not swap else [0 if swap else 1])


def test_sequences_of_different_length_are_refused(tmp_path: Path) -> None:
    (control,) = controls_of(simplified(scan(), tmp_path))
    feeds = {
        "a0": np.zeros((3, 5), np.float32),
        "ps": np.zeros((3, 7, 4), np.float32),
        "qs": np.zeros((3, 5, 6), np.float32),
    }
    with pytest.raises(InputError, match=r"\[7, 6\]") as caught:
        interpret(flow_of(control), feeds, lambda _k, _feeds: {})
    assert caught.value.code == "TW-RUN-002"
    assert caught.value.place.node == "scan"


def test_scan_is_described_as_the_standard_says(tmp_path: Path) -> None:
    (control,) = controls_of(simplified(scan((1, 0), (0, 1)), tmp_path))
    flow = flow_of(control)
    assert flow.kind is ControlKind.SCAN
    assert (flow.num_states, flow.num_sequences, flow.trips) == (2, 2, 7)
    assert (flow.input_axes, flow.input_reversed) == ((1, -1), (True, False))
    assert (flow.output_axes, flow.output_reversed) == ((2, 0), (False, True))
    (initial,) = flow.literals
    np.testing.assert_array_equal(array_of(initial), np.full((3, 5), 0.25, np.float32))


def strings() -> onnx.ModelProto:
    kind = onnx.TensorProto.STRING
    then = helper.make_graph(
        [helper.make_node("Identity", ["s"], ["t"], name="hand_on")], "then", [],
        [value("t", [2], kind)],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Identity", ["r"], ["e"], name="other")], "else", [],
        [value("e", [2], kind)],
    )  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other)
    return model_of(
        helper.make_graph(
            [node], "strings",
            [value("s", [2], kind), value("r", [2], kind), value("c", [], BOOL)],
            [value("y", [2], kind)],
        )
    )  # fmt: skip


def test_types_without_a_numpy_form_stay_whole(tmp_path: Path) -> None:
    (control,) = controls_of(simplified(strings(), tmp_path))
    assert control.flow is None
    assert "string" in control.reason
    assert control.rows == ((("hand_on", "Identity"),), (("other", "Identity"),))


def test_bodies_given_up_leave_no_program(tmp_path: Path) -> None:
    controls = controls_of(simplified(fibonacci(3), tmp_path))
    (given_up,) = whole(controls, "no room")
    assert (given_up.flow, given_up.bodies, given_up.reason) == (None, (None,), "no room")
    assert given_up.rows == controls[0].rows


def test_host_parts_are_cut_around_control_flow(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], name="before"),
        helper.make_node("If", ["c"], ["p"], name="if",
                         then_branch=_branch("t", "n"), else_branch=_branch("e", "x")),
        helper.make_node("Mul", ["p", "n"], ["y"], name="after"),
    ]  # fmt: skip
    model = simplified(
        model_of(
            helper.make_graph(
                nodes, "cut", [value("x", [3]), value("c", [], BOOL)], [value("y", [3])]
            )
        ),
        tmp_path,
    )
    refused = {
        name: Rejection(ReasonCode.CONTROL_FLOW, "stays on the host")
        for name in ("before", "after")
    }
    assert partition(model, load_preset("a100"), refused).parts == (
        Part(HOST, (0,), ("x",), ("n",)),
        Part(HOST, (1,), ("c", "n", "x"), ("p",)),
        Part(HOST, (2,), ("p", "n"), ("y",)),
    )


def _branch(name: str, source: str) -> onnx.GraphProto:
    return helper.make_graph(
        [helper.make_node("Exp", [source], [name], name=f"{name}/exp")], name, [],
        [value(name, [3])],
    )  # fmt: skip
