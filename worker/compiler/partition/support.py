"""Does the machine's capability list allow one node?  (Expressibility is asked separately.)"""

from __future__ import annotations

import onnx_ir

from worker.compiler.frontend.work import static_shape
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Capabilities
from worker.compiler.partition.limits import quantities
from worker.compiler.rejection import ReasonCode, Rejection

DTYPE_OF_ONNX: dict[onnx_ir.DataType, DType] = {
    onnx_ir.DataType.FLOAT: DType.F32,
    onnx_ir.DataType.DOUBLE: DType.F64,
    onnx_ir.DataType.FLOAT16: DType.F16,
    onnx_ir.DataType.BFLOAT16: DType.BF16,
    onnx_ir.DataType.INT64: DType.I64,
    onnx_ir.DataType.INT32: DType.I32,
    onnx_ir.DataType.INT16: DType.I16,
    onnx_ir.DataType.INT8: DType.I8,
    onnx_ir.DataType.UINT64: DType.U64,
    onnx_ir.DataType.UINT32: DType.U32,
    onnx_ir.DataType.UINT16: DType.U16,
    onnx_ir.DataType.UINT8: DType.U8,
    onnx_ir.DataType.BOOL: DType.BOOL,
}
_FREE_DTYPES = frozenset({DType.I64, DType.I32, DType.BOOL})
"""Index and mask types: carried by every datapath that moves memory."""


def refusal(node: onnx_ir.Node, capabilities: Capabilities) -> Rejection | None:
    """None when the capability list allows the node, otherwise the first rule that refuses it."""
    if node.domain not in ("", "ai.onnx"):
        return Rejection(
            ReasonCode.CAPABILITY_OP,
            f"operator domain {node.domain!r} is not offered by the accelerator",
        )
    support = capabilities.support(node.op_type)
    if support is None:
        return Rejection(
            ReasonCode.CAPABILITY_OP,
            f"the accelerator's capability list does not name {node.op_type}",
        )
    allowed = support.dtypes or capabilities.dtypes
    for value in (*node.inputs, *node.outputs):
        if value is None or value.dtype is None:
            continue
        dtype = DTYPE_OF_ONNX.get(value.dtype)
        if dtype is None or (dtype not in allowed and dtype not in _FREE_DTYPES):
            names = ", ".join(allowed)
            return Rejection(
                ReasonCode.CAPABILITY_DTYPE,
                f"{node.op_type} of {value.dtype.name.lower()} is not offered (offered: {names})",
            )
        shape = static_shape(value)
        if shape is not None and len(shape) > capabilities.max_rank:
            return Rejection(
                ReasonCode.CAPABILITY_RANK,
                f"rank {len(shape)} exceeds the accelerator's limit of {capabilities.max_rank}",
            )
    have = quantities(node)
    for name, low, high in support.limits:
        if name in have and not low <= have[name] <= high:
            return Rejection(
                ReasonCode.CAPABILITY_ATTRIBUTE,
                f"{name} is {have[name]}, the accelerator allows {low} to {high}",
            )
    return None
