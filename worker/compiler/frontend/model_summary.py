"""What a model is, in numbers: nodes, parameters, multiply-accumulates, inputs and outputs."""

from __future__ import annotations

from math import prod

import onnx_ir

from worker.compiler.errors import Detail
from worker.compiler.frontend.equation import MalformedEquationError, read_equation
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.shapes import is_static


def model_summary(model: OnnxModel) -> dict[str, Detail]:
    """Give `nodes, params, macs, macs_by_op, nodes_by_op, inputs, outputs, opset`.

    MACs are those of Conv, ConvTranspose, Gemm, MatMul, their integer forms, an Einsum of several
    operands (one for each combination of its indices) and recurrent layers;
    an operator with dynamic shapes counts 0.  Params are the elements of floating-point
    initializers and of initializers with more than one element of other types.
    """
    macs: dict[str, int] = {}
    counts: dict[str, int] = {}
    for node in model.ir.graph:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
        found = node_macs(node)
        if found:
            macs[node.op_type] = macs.get(node.op_type, 0) + found
    params = sum(
        prod(value.const_value.shape.numpy())
        for value in model.ir.graph.initializers.values()
        if value.const_value is not None
        and (value.dtype is None or value.dtype.is_floating_point()
             or prod(value.const_value.shape.numpy()) > 1)
    )  # fmt: skip
    return {
        "nodes": len(model.ir.graph),
        "params": params,
        "macs": sum(macs.values()),
        "macs_by_op": dict[str, Detail](sorted(macs.items())),
        "nodes_by_op": dict[str, Detail](sorted(counts.items())),
        "inputs": [_described(v) for v in model.ir.graph.inputs],
        "outputs": [_described(v) for v in model.ir.graph.outputs],
        "opset": model.opset,
    }


def node_macs(node: onnx_ir.Node) -> int:
    """Multiply-accumulates of one node; 0 for other operators and for dynamic shapes."""
    data = _dims(node, 0)
    weight = _dims(node, 1)
    out = node.outputs[0].shape.numpy() if node.outputs and is_static(node.outputs[0]) and (
        node.outputs[0].shape is not None) else None  # fmt: skip
    match node.op_type:
        case "Conv" | "ConvInteger" if out is not None and weight is not None:
            return prod(out) * prod(weight[1:])
        case "QLinearConv" if out is not None and (kernel := _dims(node, 3)) is not None:
            return prod(out) * prod(kernel[1:])
        case "ConvTranspose" if data is not None and weight is not None:
            return prod(data) * prod(weight[1:])
        case "MatMul" | "MatMulInteger" | "QLinearMatMul" if out is not None and data:
            return prod(out) * data[-1]
        case "Gemm" if out is not None and data is not None:
            transposed = node.attributes.get("transA")
            return prod(out) * data[0 if transposed is not None and transposed.as_int() else 1]
        case "Einsum" if len(node.inputs) > 1:
            return einsum_steps(node)
        case "LSTM" | "GRU" | "RNN":
            recurrent = _dims(node, 2)
            if data is not None and weight is not None and recurrent is not None:
                return data[0] * data[1] * (prod(weight) + prod(recurrent))
    return 0


def einsum_steps(node: onnx_ir.Node) -> int:
    """Every combination of an Einsum's indices' values; 0 when unknown."""
    equation = node.attributes.get("equation")
    shapes = [_dims(node, k) for k in range(len(node.inputs))]
    known = [shape for shape in shapes if shape is not None]
    if equation is None or len(known) < len(shapes):
        return 0
    try:
        said = read_equation(equation.as_string(), [len(shape) for shape in known])
    except MalformedEquationError:
        return 0
    sizes: dict[str, int] = {}
    for own, shape in zip(said.operands, known, strict=True):
        for index, size in zip(own, shape, strict=True):
            sizes[index] = max(sizes.get(index, 1), size)
    return prod(sizes.values())


def _dims(node: onnx_ir.Node, index: int) -> tuple[int, ...] | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or value.shape is None or not is_static(value):
        return None
    return value.shape.numpy()


def _described(value: onnx_ir.Value) -> Detail:
    dims: list[Detail] | None = None
    if value.shape is not None:
        dims = [d if isinstance(d, int) else d.value for d in value.shape]
    return {
        "name": value.name,
        "dtype": value.dtype.name.lower() if value.dtype is not None else None,
        "shape": dims,
    }
