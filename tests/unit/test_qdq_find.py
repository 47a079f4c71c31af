"""Which nodes make a quantised cluster, which do not, and what a region does with the rest."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest

from worker.compiler.errors import InternalError
from worker.compiler.frontend.express import Expressed, express_region
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.qdq import cluster_rejection, find_clusters
from worker.compiler.frontend.simplify import simplify
from worker.compiler.ir.dtype import DType
from worker.compiler.rejection import ReasonCode

OPSET = 21
make = onnx.helper.make_node
INT8, FLOAT = onnx.TensorProto.INT8, onnx.TensorProto.FLOAT


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, tuple[int, ...]]],
    outputs: Sequence[str],
    constants: dict[str, npt.NDArray[Any]] | None = None,
) -> onnx.ModelProto:
    """Nodes over the given inputs; s, z are a scale of 0.1 and a zero point of 3."""
    values = {"s": np.float32(0.1), "z": np.int8(3), **(constants or {})}
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        list(nodes),
        "g",
        [info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in values.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    return onnx.shape_inference.infer_shapes(model)


def nodes_of(model: onnx.ModelProto) -> list[ir.Node]:
    return list(ir.serde.deserialize_model(model).graph)


def dq(source: str, result: str) -> onnx.NodeProto:
    return make("DequantizeLinear", [source, "s", "z"], [result], name=f"dq_{result}")


def q(source: str, result: str) -> onnx.NodeProto:
    return make("QuantizeLinear", [source, "s", "z"], [result], name=f"q_{result}")


def node(op_type: str, inputs: Sequence[str], result: str, **attributes: Any) -> onnx.NodeProto:
    return make(op_type, inputs, [result], name=f"{op_type}_{result}", **attributes)


X = {"x": (INT8, (2, 4))}


def found(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], **more: Any
) -> list[tuple[int, ...]]:
    clusters = find_clusters(nodes_of(model_of(nodes, {**X, **more}, outputs)), outputs)
    return [c.nodes for c in clusters]


def test_a_chain_with_an_activation_is_one_cluster() -> None:
    nodes = [dq("x", "d"), node("Neg", ["d"], "n"), node("Relu", ["n"], "r"), q("r", "y")]
    (cluster,) = find_clusters(nodes_of(model_of(nodes, X, ["y"])), ["y"])
    assert (cluster.nodes, cluster.core, cluster.op_type) == ((0, 1, 2, 3), 1, "Neg")


def test_a_shared_dequantisation_belongs_to_every_cluster_that_reads_it() -> None:
    nodes = [
        dq("x", "d"), node("Neg", ["d"], "n"), q("n", "y"), node("Abs", ["d"], "a"), q("a", "w"),
    ]  # fmt: skip
    assert found(nodes, ["y", "w"]) == [(0, 1, 2), (0, 3, 4)]


def test_clusters_follow_each_other_through_integers() -> None:
    nodes = [dq("x", "d"), node("Neg", ["d"], "n"), q("n", "i"),
             dq("i", "e"), node("Abs", ["e"], "a"), q("a", "y")]  # fmt: skip
    assert found(nodes, ["y"]) == [(0, 1, 2), (3, 4, 5)]


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        pytest.param(
            [dq("x", "d"), node("Neg", ["d"], "n"), q("n", "y")], ["y", "n"], id="value is wanted"
        ),
        pytest.param(
            [dq("x", "d"), node("Neg", ["d"], "n"), q("n", "y"), node("Exp", ["n"], "e")],
            ["y", "e"], id="float result is read elsewhere",
        ),
        pytest.param(
            [dq("x", "d"), node("Neg", ["d"], "n"), node("Relu", ["n"], "r"), q("r", "y"),
             node("Exp", ["r"], "e")], ["y", "e"], id="activation is read elsewhere",
        ),
        pytest.param([dq("x", "d"), node("Softmax", ["d"], "n"), q("n", "y")], ["y"],
                     id="no integer form"),
        pytest.param([dq("x", "d"), node("Neg", ["d"], "n")], ["n"], id="no quantisation"),
        pytest.param([node("Neg", ["f"], "n"), q("n", "y")], ["y"], id="no dequantisation"),
        pytest.param([dq("x", "d"), node("Add", ["d", "f"], "n"), q("n", "y")], ["y"],
                     id="a float operand"),
        pytest.param([dq("c", "d"), node("Neg", ["d"], "n"), q("n", "y")], ["y"],
                     id="constants only"),
        pytest.param([dq("x", "d"), node("MatMul", ["d", "w"], "n"), q("n", "y")], ["y"],
                     id="float weights"),
        pytest.param(
            [make("DequantizeLinear", ["x", "t", "z"], ["d"]), node("Neg", ["d"], "n"),
             q("n", "y")], ["y"], id="run-time scale"),
        pytest.param([dq("x", "d"), node("Clip", ["d", "", "t"], "n"), q("n", "y")], ["y"],
                     id="run-time limit"),
        pytest.param([dq("x", "d"), node("Clip", ["f", "d0"], "n"), q("n", "y")], ["y"],
                     id="a quantised parameter"),
    ],
)  # fmt: skip
def test_what_is_no_cluster(nodes: list[onnx.NodeProto], outputs: list[str]) -> None:
    inputs = {**X, "f": (FLOAT, (2, 4)), "t": (FLOAT, ())}
    constants = {"c": np.ones((2, 4), np.int8), "w": np.ones((4, 3), np.float32)}
    if any("d0" in n.input for n in nodes):
        nodes = [dq("k", "d0"), *nodes]
        constants["k"] = np.asarray(4, np.int8)
    model = model_of(nodes, inputs, outputs, constants)
    assert find_clusters(nodes_of(model), outputs) == ()


@pytest.mark.parametrize("at", range(4))
def test_nodes_of_other_domains_make_no_cluster(at: int) -> None:
    nodes = [dq("x", "d"), node("Neg", ["d"], "n"), node("Relu", ["n"], "r"), q("r", "y")]
    listed = nodes_of(model_of(nodes, X, ["y"]))
    assert len(find_clusters(listed, ["y"])) == 1
    listed[at].domain = "com.example"
    assert find_clusters(listed, ["y"]) == ()


def test_finding_is_linear() -> None:
    def chain(count: int) -> list[ir.Node]:
        nodes: list[onnx.NodeProto] = []
        for k in range(count):
            source = "x" if k == 0 else f"y{k - 1}"
            nodes += [dq(source, f"d{k}"), node("Neg", [f"d{k}"], f"n{k}"), q(f"n{k}", f"y{k}")]
        return nodes_of(model_of(nodes, X, [f"y{count - 1}"]))

    def calls(nodes: list[ir.Node]) -> int:
        """Function calls made, a measure of work that does not depend on the machine."""
        count = 0

        def step(_frame: FrameType, event: str, _arg: object) -> None:
            nonlocal count
            count += event == "call"

        last = str(nodes[-1].outputs[0].name)
        gc.disable()  # finalizers of what other tests left behind would count
        sys.setprofile(step)
        try:
            clusters = find_clusters(nodes, [last])
        finally:
            sys.setprofile(None)
            gc.enable()
        assert len(clusters) == len(nodes) // 3
        return count

    assert calls(chain(400)) < 8.1 * calls(chain(50))


def expressed(nodes: list[onnx.NodeProto], outputs: list[str]) -> Expressed:
    listed = nodes_of(model_of(nodes, X, outputs))
    return express_region(listed, outputs, OPSET, find_clusters(listed, outputs))


def test_a_dequantisation_stays_for_readers_outside_clusters_only() -> None:
    nodes = [dq("x", "d"), node("Neg", ["d"], "n"), q("n", "y")]
    graph = expressed(nodes, ["y"]).graph
    assert [op.name for op in graph.ops] == ["y"]
    assert {t.dtype for t in graph.tensors.values()} == {DType.I8}
    wanted = expressed(nodes, ["y", "d"]).graph
    assert [op.name for op in wanted.ops] == ["d", "y"]
    beside = expressed([*nodes, node("Softmax", ["d"], "p")], ["y", "p"]).graph
    assert {"d", "y", "p"} <= {op.name.split(".")[0] for op in beside.ops}
    assert "x" in beside.ops[1].input_names()  # the cluster reads the integers all the same


def test_a_cluster_of_every_node_is_in_the_origin() -> None:
    nodes = [dq("x", "d"), node("Neg", ["d"], "n"), node("Relu", ["n"], "r"), q("r", "y")]
    (op,) = expressed(nodes, ["y"]).graph.ops
    assert op.origin.op_type == "Neg"
    assert op.origin.nodes == ("Neg_n", "Relu_r", "q_y", "dq_d")


def test_without_clusters_every_node_is_its_own_operator() -> None:
    nodes = nodes_of(model_of([dq("x", "d"), node("Neg", ["d"], "n"), q("n", "y")], X, ["y"]))
    plain = express_region(nodes, ["y"], OPSET)
    assert [op.name for op in plain.graph.ops] == ["d", "n", "y"]
    assert plain.together == ()


def refused(
    nodes: list[onnx.NodeProto],
    constants: dict[str, npt.NDArray[Any]],
    shape: tuple[int, ...] = (2, 4),
    kind: int = INT8,
) -> tuple[ReasonCode, str]:
    listed = nodes_of(model_of(nodes, {"x": (kind, shape)}, ["y"], constants))
    (cluster,) = find_clusters(listed, ["y"])
    why = cluster_rejection(listed, cluster, OPSET)
    assert why is not None
    with pytest.raises(InternalError, match="cannot be expressed"):
        express_region(listed, ["y"], OPSET, (cluster,))
    return why.code, why.sentence


def contraction(*, w_axis: int = 0, x_inputs: Sequence[str] = ("x", "s", "z"), bias: bool = False,
                op_type: str = "MatMul", x_axis: int = 1) -> list[onnx.NodeProto]:  # fmt: skip
    return [
        make("DequantizeLinear", list(x_inputs), ["d"], name="dx", axis=x_axis),
        make("DequantizeLinear", ["w", "ws", "wz"], ["e"], name="dw", axis=w_axis),
        node(op_type, ["d", "e", *(["b"] if bias else [])], "n"),
        q("n", "y"),
    ]


def table(*shape: int, count: int = 1) -> dict[str, npt.NDArray[Any]]:
    return {
        "w": np.ones(shape, np.int8),
        "ws": np.linspace(0.1, 0.2, count, dtype=np.float32) if count > 1 else np.float32(0.1),
        "wz": np.zeros(count if count > 1 else (), np.int8),
    }


def test_refuses_scales_along_a_summed_axis() -> None:
    code, sentence = refused(contraction(w_axis=0), table(4, 3, count=4))
    assert code is ReasonCode.UNSUPPORTED_INPUT
    assert "axis 0" in sentence
    assert "axis 1" in sentence


def test_refuses_scales_per_channel_of_both_operands() -> None:
    constants = {**table(4, 3, count=3), "xs": np.float32([0.1, 0.3]), "xz": np.int8([0, 0])}
    nodes = contraction(w_axis=1, x_inputs=("x", "xs", "xz"), x_axis=0)
    assert "both operands" in refused(nodes, constants)[1]


def test_refuses_an_input_with_scales_per_channel() -> None:
    constants = {**table(3, 4, 1, 1), "xs": np.linspace(0.1, 1, 4, dtype=np.float32),
                 "xz": np.zeros(4, np.int8)}  # fmt: skip
    nodes = contraction(op_type="Conv", x_inputs=("x", "xs", "xz"))
    assert "summed over" in refused(nodes, constants, (1, 4, 5, 5))[1]


def test_refuses_a_sum_that_can_leave_i32() -> None:
    constants = {**table(40000, 1), "w": np.ones((40000, 1), np.int8), "z16": np.int16(0)}
    nodes = contraction(x_inputs=("x", "s", "z16"))
    code, sentence = refused(nodes, constants, (1, 40000), onnx.TensorProto.INT16)
    assert code is ReasonCode.SIZE_LIMIT
    assert "2147483647" in sentence


def test_refuses_a_bias_off_the_grid_of_a_coarse_sum() -> None:
    constants = {**table(4, 3), "ws": np.float32(90.0), "b": np.float32([1.0, 2.0, 4.0])}
    nodes = contraction(op_type="Gemm", bias=True)
    assert "off the grid" in refused(nodes, constants)[1]


def test_refuses_a_bias_that_differs_between_rows() -> None:
    constants = {**table(4, 3), "b": np.ones((2, 3), np.float32)}
    code, _ = refused(contraction(op_type="Gemm", bias=True), constants)
    assert code is ReasonCode.SHAPE_MISMATCH


@pytest.mark.parametrize("scale", [0.0, -0.1, np.inf, 1e-45])
def test_refuses_a_scale_that_is_no_positive_number(scale: float) -> None:
    nodes = [make("DequantizeLinear", ["x", "t", "z"], ["d"]), node("Neg", ["d"], "n"), q("n", "y")]
    assert "positive" in refused(nodes, {"t": np.float32(scale)})[1]


def test_refuses_scales_per_block() -> None:
    nodes = [
        make("DequantizeLinear", ["x", "t", "u"], ["d"], axis=1, block_size=2),
        node("Neg", ["d"], "n"), q("n", "y"),
    ]  # fmt: skip
    constants = {"t": np.full((2, 2), 0.1, np.float32), "u": np.zeros((2, 2), np.int8)}
    assert refused(nodes, constants)[0] is ReasonCode.UNSUPPORTED_ATTRIBUTE


def test_refuses_a_gemm_scaled_by_nothing() -> None:
    nodes = contraction(op_type="Gemm")
    nodes[2] = node("Gemm", ["d", "e"], "n", alpha=0.0)
    assert "scaled by 0" in refused(nodes, table(4, 3))[1]


def test_refuses_linear_interpolation() -> None:
    nodes = [dq("x", "d"), node("Resize", ["d", "", "k"], "n", mode="linear"), q("n", "y")]
    code, _ = refused(nodes, {"k": np.float32([1, 2])})
    assert code is ReasonCode.UNSUPPORTED_OP


def test_simplifying_keeps_dequantised_constants() -> None:
    """Weights stay integers: the QDQ form is what the back end matches."""
    model = model_of(contraction(w_axis=1), X, ["y"], table(4, 3, count=3))
    simple = simplify(OnnxModel(ir.serde.deserialize_model(model), "m", "0" * 64, OPSET))
    nodes = list(simple.ir.graph)
    kinds = sorted(n.op_type for n in nodes)
    assert kinds == ["DequantizeLinear", "DequantizeLinear", "MatMul", "QuantizeLinear"]
    (cluster,) = find_clusters(nodes, ["y"])
    assert len(cluster.nodes) == 4
