"""Run one ONNX node through express and the reference interpreter, and through ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from worker.compiler.frontend.express import Expressed, express_region, rejection
from worker.compiler.frontend.ops.call import storage
from worker.compiler.ir.bits import load
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.op import TensorOp
from worker.compiler.rejection import Rejection

OPSET = 20
Inputs: TypeAlias = "Sequence[npt.NDArray[Any] | np.generic | None]"
"""Arrays by input position; None where an optional input is absent."""


def model_of(
    op_type: str,
    inputs: Inputs,
    attributes: dict[str, Any] | None = None,
    *,
    constants: tuple[int, ...] = (),
    num_outputs: int = 1,
    output_type: int | Sequence[int] = onnx.TensorProto.FLOAT,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """A model of one node named "node"; inputs x0, x1, ...; `constants` become initializers."""
    names = ["" if a is None else f"x{k}" for k, a in enumerate(inputs)]
    outputs = [f"y{k}" for k in range(num_outputs)]
    node = onnx.helper.make_node(op_type, names, outputs, name="node", **(attributes or {}))
    infos, initializers = [], []
    for k, array in enumerate(inputs):
        if array is None:
            continue
        tensor = onnx.numpy_helper.from_array(np.asarray(array), f"x{k}")
        if k in constants:
            initializers.append(tensor)
        else:
            infos.append(
                onnx.helper.make_tensor_value_info(f"x{k}", tensor.data_type, np.shape(array))
            )
    types = [output_type] * num_outputs if isinstance(output_type, int) else output_type
    results = [
        onnx.helper.make_tensor_value_info(o, t, None) for o, t in zip(outputs, types, strict=True)
    ]
    graph = onnx.helper.make_graph([node], "g", infos, results, initializers)
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10
    )


def node_of(model: onnx.ModelProto) -> ir.Node:
    """The node, with its values' shapes and constants."""
    (node,) = ir.serde.deserialize_model(model).graph
    return node


def express(model: onnx.ModelProto) -> Expressed:
    """Express the model's node."""
    node = node_of(model)
    opset = model.opset_import[0].version
    why = rejection(node, opset)
    assert why is None, why
    return express_region([node], [o.name for o in node.outputs if o.name], opset)


def only_op(model: onnx.ModelProto) -> TensorOp:
    """The one operator that the model's node becomes."""
    (op,) = express(model).graph.ops
    return op


def reason(model: onnx.ModelProto) -> Rejection:
    """Why the model's node is refused."""
    why = rejection(node_of(model), model.opset_import[0].version)
    assert why is not None
    return why


def ours(model: onnx.ModelProto, inputs: Inputs) -> list[npt.NDArray[Any]]:
    """Outputs by express and evaluate."""
    expressed = express(model)
    graph = expressed.graph
    feeds = {name: thunk() for name, thunk in expressed.constants.items()}
    for name in graph.inputs:
        feeds[name] = storage(np.asarray(inputs[int(name[1:])]), graph.tensors[name].dtype)
    results = evaluate(graph, feeds)
    return [load(results[n], graph.tensors[n].dtype) for n in graph.outputs]


def onnxruntime(model: onnx.ModelProto, inputs: Inputs) -> list[npt.NDArray[Any]]:
    """Outputs by ONNX Runtime, unoptimised."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    feeds = {i.name: np.asarray(inputs[int(i.name[1:])]) for i in session.get_inputs()}
    return [np.asarray(a) for a in session.run(None, feeds)]


def agree(
    op_type: str,
    inputs: Inputs,
    attributes: dict[str, Any] | None = None,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    **options: Any,
) -> None:
    """Assert that express + evaluate gives what ONNX Runtime gives."""
    model = model_of(op_type, inputs, attributes, **options)
    expected = onnxruntime(model, inputs)
    got = ours(model, inputs)
    for want, have in zip(expected, got, strict=True):
        assert want.shape == have.shape
        np.testing.assert_allclose(
            have.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol
        )
