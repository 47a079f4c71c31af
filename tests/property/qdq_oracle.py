"""Build one QDQ cluster as an ONNX model, run it through ONNX Runtime and through the algebra."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from worker.compiler.frontend.express import Expressed, express_region
from worker.compiler.frontend.qdq import QdqCluster, cluster_rejection, find_clusters
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.rejection import Rejection

OPSET = 21
Array: TypeAlias = "npt.NDArray[Any]"


@dataclass(frozen=True)
class Quantised:
    """Integers with their parameters; an initializer when `constant`."""

    values: Array
    scale: float | Sequence[float]
    zero: int | Sequence[int] = 0
    axis: int | None = None
    constant: bool = False


Operand: TypeAlias = "Quantised | Array | None"
"""Quantised, a plain constant, or absent."""


@dataclass(frozen=True)
class Result:
    """Parameters of a quantised output."""

    scale: float
    zero: int = 0
    dtype: type[np.generic] = np.int8


def qdq_model(
    op_type: str,
    operands: Sequence[Operand],
    results: Sequence[Result],
    attributes: dict[str, Any] | None = None,
    activation: tuple[str, Sequence[float | None]] | None = None,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """Inputs x0, x1, ... through DequantizeLinear, the core, an activation, QuantizeLinear."""
    make, constants = onnx.helper.make_node, []
    nodes, infos, names = [], [], []

    def constant(name: str, value: Any) -> str:
        constants.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    for k, operand in enumerate(operands):
        if operand is None:
            names.append("")
        elif isinstance(operand, Quantised):
            kind = onnx.helper.np_dtype_to_tensor_dtype(operand.values.dtype)
            if operand.constant:
                constant(f"x{k}", operand.values)
            else:
                infos.append(
                    onnx.helper.make_tensor_value_info(f"x{k}", kind, operand.values.shape)
                )
            inputs = [
                f"x{k}",
                constant(f"x{k}_scale", np.asarray(operand.scale, np.float32)),
                constant(f"x{k}_zero", np.asarray(operand.zero, operand.values.dtype)),
            ]
            extra = {} if operand.axis is None else {"axis": operand.axis}
            nodes.append(make("DequantizeLinear", inputs, [f"d{k}"], name=f"dq{k}", **extra))
            names.append(f"d{k}")
        else:
            names.append(constant(f"x{k}", operand))
    outs = [f"f{k}" for k in range(len(results))]
    nodes.append(make(op_type, names, outs, name="core", **(attributes or {})))
    infos_out = []
    for k, result in enumerate(results):
        last = f"f{k}"
        if activation is not None:
            limits = [
                "" if v is None else constant(f"limit{k}_{j}", np.float32(v))
                for j, v in enumerate(activation[1])
            ]
            nodes.append(make(activation[0], [last, *limits], [f"a{k}"], name=f"act{k}"))
            last = f"a{k}"
        inputs = [
            last,
            constant(f"y{k}_scale", np.float32(result.scale)),
            constant(f"y{k}_zero", np.asarray(result.zero, result.dtype)),
        ]
        nodes.append(make("QuantizeLinear", inputs, [f"y{k}"], name=f"q{k}"))
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(result.dtype))
        infos_out.append(onnx.helper.make_tensor_value_info(f"y{k}", kind, None))
    graph = onnx.helper.make_graph(nodes, "g", infos, infos_out, constants)
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10
    )
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def nodes_of(model: onnx.ModelProto) -> list[ir.Node]:
    return list(ir.serde.deserialize_model(model).graph)


def outputs_of(model: onnx.ModelProto) -> list[str]:
    return [o.name for o in model.graph.output]


def only_cluster(model: onnx.ModelProto) -> tuple[list[ir.Node], QdqCluster]:
    """The model's nodes and the one cluster that covers them all."""
    nodes = nodes_of(model)
    (cluster,) = find_clusters(nodes, outputs_of(model))
    assert cluster.nodes == tuple(range(len(nodes)))
    return nodes, cluster


def reason(model: onnx.ModelProto) -> Rejection | None:
    """Why the model's one cluster is refused."""
    nodes, cluster = only_cluster(model)
    return cluster_rejection(nodes, cluster, OPSET)


def express_cluster_of(model: onnx.ModelProto) -> Expressed:
    """The model as integer operators; checks that no float tensor but tables remains."""
    nodes, cluster = only_cluster(model)
    why = cluster_rejection(nodes, cluster, OPSET)
    assert why is None, why
    expressed = express_region(nodes, outputs_of(model), OPSET, (cluster,))
    graph = expressed.graph
    for tensor in graph.tensors.values():
        assert not tensor.dtype.is_float or tensor.name in graph.constants, tensor
    return expressed


def feeds_of(model: onnx.ModelProto, operands: Sequence[Operand]) -> dict[str, Array]:
    """Arrays of the model's inputs."""
    names = {i.name for i in model.graph.input}
    return {
        f"x{k}": o.values
        for k, o in enumerate(operands)
        if isinstance(o, Quantised) and f"x{k}" in names
    }


def ours(model: onnx.ModelProto, operands: Sequence[Operand]) -> list[Array]:
    """Outputs by the integer operators and the reference interpreter."""
    expressed = express_cluster_of(model)
    feeds = {name: thunk() for name, thunk in expressed.constants.items()}
    feeds |= feeds_of(model, operands)
    results = evaluate(expressed.graph, feeds)
    return [results[name] for name in expressed.graph.outputs]


def onnxruntime(model: onnx.ModelProto, operands: Sequence[Operand]) -> list[Array]:
    """Outputs by ONNX Runtime, node by node in float: graph optimisation is off."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, feeds_of(model, operands))]


def agree(
    op_type: str,
    operands: Sequence[Operand],
    results: Sequence[Result],
    attributes: dict[str, Any] | None = None,
    activation: tuple[str, Sequence[float | None]] | None = None,
    *,
    steps: int = 0,
) -> Expressed:
    """Assert that both differ by at most `steps` least significant bits; gives the operators."""
    model = qdq_model(op_type, operands, results, attributes, activation)
    expected, got = onnxruntime(model, operands), ours(model, operands)
    for want, have in zip(expected, got, strict=True):
        assert want.shape == have.shape
        assert want.dtype == have.dtype
        assert np.abs(want.astype(np.int64) - have.astype(np.int64)).max() <= steps
    return express_cluster_of(model)
