"""What each operator does to quantised data: the part it plays in an integer cluster."""

from __future__ import annotations

from enum import StrEnum

import onnx_ir

from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.ops.qcluster_call import (
    ACTIVATIONS,
    CONTRACTIONS,
    CORES,
    MAXIMA,
    REARRANGEMENTS,
)

CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_SINGULAR = frozenset({"Log", "Reciprocal"})
"""Infinite at zero, to which small values are rounded."""
_VARIADIC = frozenset(
    {"Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "PRelu", "Concat", "Conv",
     "ConvTranspose", "Gemm", "MatMul"}
)  # fmt: skip
"""Every input is data; elsewhere only the first is."""


class Role(StrEnum):
    """How the parameters of a node's result follow from those of its operands."""

    CONTRACTION = "contraction"
    """Own parameters; constant weights and bias are quantised beforehand."""
    COMPUTED = "computed"
    """Own parameters."""
    SHARED = "shared"
    """Elements of the input, unchanged: the input's parameters."""
    JOINED = "joined"
    """Elements of several inputs: one set of parameters where that costs little."""


def role_of(node: onnx_ir.Node) -> Role | None:
    """The node's role, or None where integers cannot stand in for its floats."""
    if node.domain != "" or node.op_type not in CORES or node.op_type in _SINGULAR:
        return None
    match node.op_type:
        case "Concat":
            return Role.JOINED
        case "Resize" | "Upsample":
            mode = node.attributes.get("mode")
            nearest = mode is None or mode.as_string() == "nearest"
            return Role.SHARED if nearest else None  # interpolation has no integer form
        case "Div" if _elements(node, 1) != 1:
            return None  # rounding can make a divisor zero; a single constant stays exact
        case "Pow" if _elements(node, 1) is None:
            return None
        case op_type if op_type in CONTRACTIONS:
            return Role.CONTRACTION
        case op_type if op_type in MAXIMA | REARRANGEMENTS:
            return Role.SHARED
        case _:
            return Role.COMPUTED


def only_moves(node: onnx_ir.Node) -> bool:
    """Whether the node computes nothing."""
    return node.op_type in REARRANGEMENTS


def data_inputs(node: onnx_ir.Node) -> tuple[int, ...]:
    """Positions of the inputs whose elements are data (parameters and a bias are not)."""
    last = 2 if node.op_type in CONTRACTIONS else len(node.inputs)
    if node.op_type not in _VARIADIC:
        last = 1
    return tuple(k for k, v in enumerate(node.inputs[:last]) if v is not None)


def may_end_cluster(core: onnx_ir.Node, activation: onnx_ir.Node) -> bool:
    """Whether `activation` can run in the cluster of `core`, whose only reader it is."""
    return (
        activation.op_type in ACTIVATIONS
        and core.op_type not in ACTIVATIONS
        and role_of(core) in (Role.CONTRACTION, Role.COMPUTED)
        and all(v is None or constant_of(v) is not None for v in activation.inputs[1:])
    )


def _elements(node: onnx_ir.Node, k: int) -> int | None:
    """Elements of constant input k; None when it is computed or absent."""
    tensor = constant_of(node.inputs[k]) if len(node.inputs) > k else None
    return None if tensor is None else int(tensor.size)
