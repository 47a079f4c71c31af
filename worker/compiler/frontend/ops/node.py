"""Express one ONNX node by the function of its operator."""

from __future__ import annotations

import onnx_ir as ir

from worker.compiler.frontend.ops.call import Call
from worker.compiler.frontend.ops.emitter import Emitter
from worker.compiler.frontend.ops.refusal import Refusal
from worker.compiler.frontend.ops.registry import CONTROL_FLOW, DATA_DEPENDENT, EXPRESSIONS
from worker.compiler.rejection import ReasonCode


def express_node(node: ir.Node, opset: int, emitter: Emitter) -> None:
    """Emit the operators of `node`.

    Raises:
        Refusal: the node has no expression in the algebra.
    """
    if node.domain not in ("", "ai.onnx"):
        raise Refusal(
            ReasonCode.UNSUPPORTED_OP, f"operator {node.op_type} of domain {node.domain!r}"
        )
    if node.op_type in CONTROL_FLOW:
        raise Refusal(
            ReasonCode.CONTROL_FLOW, f"{node.op_type} is control flow and stays on the host"
        )
    if node.op_type in DATA_DEPENDENT:
        raise Refusal(ReasonCode.DATA_DEPENDENT, f"{node.op_type}: {DATA_DEPENDENT[node.op_type]}")
    function = EXPRESSIONS.get(node.op_type)
    if function is None:
        raise Refusal(
            ReasonCode.UNSUPPORTED_OP, f"{node.op_type} has no expression in the operator algebra"
        )
    call = Call(node, opset, emitter)
    function(call)
    call.attrs.finish()
