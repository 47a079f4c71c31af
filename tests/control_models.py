"""Hand-built models with If, Loop and Scan whose bodies have work for an accelerator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
OPSET = 21


def value(name: str, shape: Sequence[int | str] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, array: object, dtype: type = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array, dtype=dtype), name)


def weight(name: str, *shape: int, seed: int = 1) -> onnx.TensorProto:
    rng = np.random.default_rng(seed)
    array = rng.standard_normal(shape) / np.sqrt(max(1, int(np.prod(shape[1:]))))
    return constant(name, array)


def model_of(graph: onnx.GraphProto, opset: int = OPSET) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def counted_loop(trips: int | None = 3, initial: bool | None = None) -> onnx.ModelProto:
    """state = relu(conv(state, captured weight) + x); the body keeps a scan output per trip.

    `trips` None: the count is a model input.  The body's condition passes through.
    """
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"], name="body/go"),
            helper.make_node("Conv", ["s", "w"], ["c"], name="body/conv", pads=[1, 1, 1, 1]),
            helper.make_node("Add", ["c", "x"], ["a"], name="body/add"),
            helper.make_node("Relu", ["a"], ["s_next"], name="body/relu"),
            helper.make_node("ReduceMax", ["s_next"], ["peak"], name="body/peak", keepdims=0),
        ],
        "body",
        [value("i", [], INT64), value("go", [], BOOL), value("s", ["a", "b", "c", "d"])],
        [value("go_on", [], BOOL), value("s_next", None), value("peak", [])],
    )
    inputs = [value("x", [1, 4, 6, 6])]
    constants = [weight("w", 4, 4, 3, 3)]
    if trips is None:
        inputs.append(value("m", [], INT64))
    else:
        constants.append(constant("m", trips, np.int64))
    if initial is not None:
        constants.append(constant("cond", initial, np.bool_))
    nodes = [
        helper.make_node("Tanh", ["x"], ["s0"], name="before"),
        helper.make_node("Loop", ["m", "cond" if initial is not None else "", "s0"],
                         ["s_end", "peaks"], name="loop", body=body),
        helper.make_node("Exp", ["s_end"], ["y"], name="after"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "counted", inputs, [value("y", None), value("peaks", ["n"])], constants
    )
    return model_of(graph)


def stopping_loop() -> onnx.ModelProto:
    """Doubles a state by a matmul until its sum passes a threshold that is a model input."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "w"], ["s_next"], name="grow"),
            helper.make_node("ReduceSum", ["s_next"], ["total"], name="total", keepdims=0),
            helper.make_node("Less", ["total", "limit"], ["go_on"], name="below"),
        ],
        "body",
        [value("i", [], INT64), value("go", [], BOOL), value("s", [2, 8])],
        [value("go_on", [], BOOL), value("s_next", None), value("total", None)],
        [constant("w", 2.0 * np.eye(8))],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Loop", ["", "yes", "x"], ["y", "totals"], name="loop", body=body),
        ],
        "stopping",
        [value("x", [2, 8]), value("limit", [])],
        [value("y", [2, 8]), value("totals", ["n"])],
        [constant("yes", True, np.bool_)],
    )
    return model_of(graph)


def branches(else_offloads: bool = True) -> onnx.ModelProto:
    """If: a two-layer branch or a one-layer branch (or one with host work only)."""
    then = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w1"], ["t1"], name="then/one"),
            helper.make_node("Relu", ["t1"], ["t2"], name="then/relu"),
            helper.make_node("MatMul", ["t2", "w2"], ["t3"], name="then/two"),
        ],
        "then",
        [],
        [value("t3", None)],
    )
    simple = [helper.make_node("MatMul", ["h", "w3"], ["e1"], name="else/only")]
    sorting = [
        helper.make_node("TopK", ["h", "k"], ["e1", "e2"], name="else/top", axis=1),
    ]
    other = helper.make_graph(simple if else_offloads else sorting, "else", [], [value("e1", None)])
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["h"], name="before"),
            helper.make_node("If", ["c"], ["r"], name="choose", then_branch=then,
                             else_branch=other),
            helper.make_node("Tanh", ["r"], ["y"], name="after"),
        ],
        "branches",
        [value("x", [4, 8]), value("c", [], BOOL)],
        [value("y", [4, 6])],
        [
            weight("w1", 8, 16), weight("w2", 16, 6, seed=2), weight("w3", 8, 6, seed=3),
            constant("k", [6], np.int64),
        ],
    )  # fmt: skip
    return model_of(graph)


def scan(directions: tuple[int, int] = (0, 0), outs: tuple[int, int] = (0, 0)) -> onnx.ModelProto:
    """Two states, two sequences on different axes, two stacked results on different axes."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "wh"], ["hh"], name="scan/hidden"),
            helper.make_node("MatMul", ["p", "wp"], ["pp"], name="scan/input"),
            helper.make_node("Add", ["hh", "pp"], ["z"], name="scan/sum"),
            helper.make_node("Tanh", ["z"], ["h_next"], name="scan/tanh"),
            helper.make_node("Mul", ["h_next", "q"], ["gated"], name="scan/gate"),
            helper.make_node("Add", ["acc", "gated"], ["acc_next"], name="scan/acc"),
        ],
        "body",
        [value("h", [3, 5]), value("acc", [3, 5]), value("p", [3, 4]), value("q", [3, 5])],
        [value("h_next", [3, 5]), value("acc_next", [3, 5]), value("gated", [3, 5]),
         value("z", [3, 5])],
    )  # fmt: skip
    node = helper.make_node(
        "Scan", ["h0", "a0", "ps", "qs"], ["h_end", "acc_end", "gates", "zs"], name="scan",
        body=body, num_scan_inputs=2, scan_input_axes=[1, -1],
        scan_input_directions=list(directions), scan_output_axes=[2, 0],
        scan_output_directions=list(outs),
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "scan",
        [value("a0", [3, 5]), value("ps", [3, 7, 4]), value("qs", [3, 5, 7])],
        [value("h_end", [3, 5]), value("acc_end", [3, 5]), value("gates", [3, 5, 7]),
         value("zs", [7, 3, 5])],
        [constant("h0", np.full((3, 5), 0.25)), weight("wh", 5, 5), weight("wp", 4, 5, seed=2)],
    )  # fmt: skip
    return model_of(graph)


def old_scan(
    batch: int = 1, directions: tuple[int, int] = (0, 0), *, has_lengths: bool = False
) -> onnx.ModelProto:
    """Scan of opset 8: every operand has a batch, and sequences may have lengths."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "wh"], ["hh"], name="scan/hidden"),
            helper.make_node("Add", ["hh", "p"], ["h_next"], name="scan/sum"),
            helper.make_node("Mul", ["h_next", "q"], ["gated"], name="scan/gate"),
        ],
        "body",
        [value("h", [3, 5]), value("p", [3, 5]), value("q", [3, 5])],
        [value("h_next", [3, 5]), value("gated", [3, 5])],
    )
    node = helper.make_node(
        "Scan", ["lengths" if has_lengths else "", "h0", "ps", "qs"], ["h_end", "gates"],
        name="scan", body=body, num_scan_inputs=2, directions=list(directions),
    )  # fmt: skip
    graph = helper.make_graph(
        [node, helper.make_node("Neg", ["gates"], ["y"], name="after")],
        "old_scan",
        [value("h0", [batch, 3, 5]), value("ps", [batch, 7, 3, 5]), value("qs", [batch, 7, 3, 5]),
         *([value("lengths", [batch], INT64)] if has_lengths else [])],
        [value("h_end", [batch, 3, 5]), value("y", [batch, 7, 3, 5])],
        [weight("wh", 5, 5)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=8)


def loop_in_if() -> onnx.ModelProto:
    """If whose then branch runs a Loop that captures values of two levels above it."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "w"], ["m1"], name="inner/matmul"),
            helper.make_node("Add", ["m1", "x"], ["m2"], name="inner/outermost"),
            helper.make_node("Add", ["m2", "scaled"], ["s_next"], name="inner/branch"),
            helper.make_node("Identity", ["go"], ["go_on"], name="inner/go"),
        ],
        "body",
        [value("i", [], INT64), value("go", [], BOOL), value("s", [4, 8])],
        [value("go_on", [], BOOL), value("s_next", [4, 8])],
    )
    then = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "half"], ["scaled"], name="then/scale"),
            helper.make_node("Loop", ["three", "", "x"], ["t"], name="then/loop", body=body),
        ],
        "then",
        [],
        [value("t", [4, 8])],
        [constant("three", 3, np.int64), constant("half", 0.5)],
    )
    other = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["e"], name="else/matmul")], "else", [],
        [value("e", [4, 8])],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], name="choose", then_branch=then, else_branch=other)],
        "nested",
        [value("x", [4, 8]), value("c", [], BOOL)],
        [value("y", [4, 8])],
        [weight("w", 8, 8)],
    )
    return model_of(graph)


def growing_loop() -> onnx.ModelProto:
    """A carried value that grows by a row in each trip, beside one whose shape stays."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "w"], ["s_next"], name="grow/matmul"),
            helper.make_node("Concat", ["rows", "s_next"], ["rows_next"], name="grow/concat",
                             axis=0),
            helper.make_node("Exp", ["rows_next"], ["e"], name="grow/exp"),
            helper.make_node("ReduceSum", ["e"], ["total"], name="grow/sum", keepdims=0),
            helper.make_node("Identity", ["go"], ["go_on"], name="grow/go"),
        ],
        "body",
        [value("i", [], INT64), value("go", [], BOOL), value("s", [1, 8]),
         value("rows", ["r", 8])],
        [value("go_on", [], BOOL), value("s_next", [1, 8]), value("rows_next", ["r1", 8]),
         value("total", [])],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["m", "", "x", "x"], ["y", "rows_end", "totals"], name="loop",
                          body=body)],
        "growing",
        [value("x", [1, 8]), value("m", [], INT64)],
        [value("y", [1, 8]), value("rows_end", ["n", 8]), value("totals", ["t"])],
        [weight("w", 8, 8)],
    )  # fmt: skip
    return model_of(graph)


def sequence_loop() -> onnx.ModelProto:
    """A loop that carries a sequence: only ONNX Runtime can."""
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2, 8]))
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"], name="seq/matmul"),
            helper.make_node("SequenceInsert", ["q", "p"], ["q_next"], name="seq/insert"),
            helper.make_node("Identity", ["go"], ["go_on"], name="seq/go"),
        ],
        "body",
        [value("i", [], INT64), value("go", [], BOOL), helper.make_value_info("q", kind)],
        [value("go_on", [], BOOL), helper.make_value_info("q_next", kind)],
    )
    graph = helper.make_graph(
        [
            helper.make_node("SequenceEmpty", [], ["q0"], name="empty"),
            helper.make_node("Loop", ["m", "", "q0"], ["q_end"], name="loop", body=body),
            helper.make_node("ConcatFromSequence", ["q_end"], ["y"], name="join", axis=0),
        ],
        "sequence",
        [value("x", [2, 8])],
        [value("y", ["n", 8])],
        [weight("w", 8, 8), constant("m", 3, np.int64)],
    )
    return model_of(graph)


def optional_loop() -> onnx.ModelProto:
    """A loop that carries an optional: only ONNX Runtime can."""
    tensor = helper.make_tensor_type_proto(FLOAT, [2, 8])
    kind = helper.make_optional_type_proto(tensor)
    body = helper.make_graph(
        [
            helper.make_node("OptionalGetElement", ["o"], ["v"], name="opt/get"),
            helper.make_node("MatMul", ["v", "w"], ["p"], name="opt/matmul"),
            helper.make_node("Optional", ["p"], ["o_next"], name="opt/put"),
            helper.make_node("Identity", ["go"], ["go_on"], name="opt/go"),
        ],
        "body",
        [value("i", [], INT64), value("go", [], BOOL), helper.make_value_info("o", kind)],
        [value("go_on", [], BOOL), helper.make_value_info("o_next", kind)],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Optional", ["x"], ["o0"], name="wrap"),
            helper.make_node("Loop", ["m", "", "o0"], ["o_end"], name="loop", body=body),
            helper.make_node("OptionalGetElement", ["o_end"], ["y"], name="unwrap"),
        ],
        "optional",
        [value("x", [2, 8])],
        [value("y", [2, 8])],
        [weight("w", 8, 8), constant("m", 2, np.int64)],
    )
    return model_of(graph)
