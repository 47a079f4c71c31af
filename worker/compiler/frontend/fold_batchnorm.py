"""Fold an inference BatchNormalization into the Conv, ConvTranspose or Gemm before it.

    y = s (W x + b - mean) + beta   with   s = gain / sqrt(variance + epsilon)

The new weights are computed in float64 and rounded once, when first read: the front end keeps no
copy of weights that nobody asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir

from worker.compiler.frontend.calls import number_of, take_over_results
from worker.compiler.frontend.edit import Names, add_constant, add_initializer, constant_of

_F64 = npt.NDArray[np.float64]


def fold_batchnorm(model: onnx_ir.Model) -> int:
    """Fold where the normalization is the only reader of the operator before it; give the count."""
    names = Names(model.graph)
    return sum(
        _fold(model.graph, node, names)
        for node in list(model.graph)
        if node.op_type == "BatchNormalization" and node.domain == ""
    )


def _fold(graph: onnx_ir.Graph, norm: onnx_ir.Node, names: Names) -> bool:
    data = norm.inputs[0]
    before = data.producer() if data is not None else None
    if data is None or before is None or len(data.uses()) != 1 or data.is_graph_output():
        return False
    if before.op_type not in ("Conv", "ConvTranspose", "Gemm") or before.graph is not graph:
        return False
    if number_of(before) != number_of(norm):
        return False  # a vendor's operator is what its definition says, or none
    training = norm.attributes.get("training_mode")
    if (training is not None and training.as_int()) or any(
        v.uses() or v.is_graph_output() for v in norm.outputs[1:]
    ):
        return False
    tensors = [constant_of(value) for value in norm.inputs[1:5]]
    weight = constant_of(before.inputs[1])
    old_bias = before.inputs[2] if len(before.inputs) > 2 else None
    bias = constant_of(old_bias)
    if weight is None or any(t is None for t in tensors) or (old_bias is not None and bias is None):
        return False
    gain, beta, mean, variance = (t.numpy().astype(np.float64) for t in tensors)
    epsilon = norm.attributes.get("epsilon")
    spread = variance + (epsilon.as_float() if epsilon is not None else 1e-5)
    if not (np.isfinite(spread).all() and (spread > 0).all()):
        return False
    scale = gain / np.sqrt(spread)
    shaped = _shaped(before, weight, scale)
    if shaped is None or weight.dtype not in (
        onnx_ir.DataType.FLOAT, onnx_ir.DataType.FLOAT16, onnx_ir.DataType.DOUBLE,
        onnx_ir.DataType.BFLOAT16,
    ):  # fmt: skip
        return False
    offset: Any = 0.0 if bias is None else bias.numpy().astype(np.float64)
    if before.op_type == "Gemm":
        factor = before.attributes.get("beta")
        offset = offset * (factor.as_float() if factor is not None else 1.0)
        if np.ndim(offset) > 1 and np.shape(offset)[0] != 1:
            return False
        offset = np.reshape(offset, -1) if np.ndim(offset) else offset
    before.attributes.pop("beta", None)
    base = before.inputs[1].name if before.inputs[1] is not None else "weight"
    name = names.fresh(f"{base}_folded")
    lazy = onnx_ir.LazyTensor(
        _scaled(weight, shaped, name), dtype=weight.dtype,
        shape=onnx_ir.Shape(weight.shape.numpy()), name=name, cache=True,
    )  # fmt: skip
    before.replace_input_with(1, add_initializer(graph, name, lazy))
    folded = ((offset - mean) * scale + beta).astype(weight.dtype.numpy())
    if len(before.inputs) < 3:
        before.resize_inputs(3)
    bias_name = names.fresh(f"{base}_folded_bias")
    before.replace_input_with(2, add_constant(graph, bias_name, folded, weight.dtype))
    _take_over(graph, norm, before)
    return True


def _shaped(before: onnx_ir.Node, weight: Any, scale: _F64) -> _F64 | None:
    """`scale` laid out to multiply the weights, or None when sizes do not agree."""
    dims = weight.shape.numpy()
    count = scale.size
    if before.op_type == "Conv":
        return scale.reshape(-1, *[1] * (len(dims) - 1)) if dims[0] == count else None
    if before.op_type == "Gemm":
        transposed = before.attributes.get("transB")
        if transposed is not None and transposed.as_int():
            return scale.reshape(-1, 1) if dims[0] == count else None
        return scale.reshape(1, -1) if dims[1] == count else None
    group = before.attributes.get("group")
    groups = group.as_int() if group is not None else 1
    if dims[1] * groups != count or dims[0] % groups:
        return None
    # Rows of one group scale by that group's output channels.
    rows = np.repeat(scale.reshape(groups, dims[1]), dims[0] // groups, axis=0)
    return rows.reshape(*rows.shape, *[1] * (len(dims) - 2))


def _scaled(weight: Any, shaped: _F64, name: str) -> Callable[[], Any]:
    def compute() -> Any:
        values, kind = weight.numpy(), np.dtype(weight.dtype.numpy())
        if kind.kind == "f":  # products in float64 as below, a buffer of them at a time
            folded = np.empty(np.broadcast_shapes(values.shape, shaped.shape), dtype=kind)
            np.multiply(values, shaped, out=folded, casting="same_kind")
        else:
            folded = (values.astype(np.float64) * shaped).astype(kind)
        return onnx_ir.tensor(folded, dtype=weight.dtype, name=name)

    return compute


def _take_over(graph: onnx_ir.Graph, norm: onnx_ir.Node, before: onnx_ir.Node) -> None:
    """Let `before` produce the normalization's output, under that output's name."""
    old, result = norm.outputs[0], before.outputs[0]
    take_over_results(before, norm)
    name, shape, kind = old.name, old.shape, old.type
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(norm, safe=True)
    result.name = name
    result.shape = shape if shape is not None else result.shape
    result.type = kind if kind is not None else result.type
