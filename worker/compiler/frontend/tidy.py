"""Remove what does nothing: identities, inference-time dropout, duplicates, dead code."""

from __future__ import annotations

import onnx_ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    IdentityEliminationPass,
    RemoveUnusedNodesPass,
)

from worker.compiler.frontend.edit import constant_of


def drop_dropout(model: onnx_ir.Model) -> None:
    """Replace Dropout by its input where it does not train and nobody reads its mask."""
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Dropout" or node.domain != "" or node.inputs[0] is None:
            continue
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            training = constant_of(node.inputs[2])
            if training is None or bool(training.numpy().any()):
                continue
        if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
            continue
        # Identity keeps graph outputs and names right; it is eliminated next.
        node.op_type = "Identity"
        node.attributes.clear()
        node.resize_inputs(1)
        if len(node.outputs) > 1:
            node.resize_outputs(1)


def tidy(model: onnx_ir.Model) -> None:
    """Dropout, identities, common sub-expressions, dead code, in this order.  In place."""
    drop_dropout(model)
    IdentityEliminationPass()(model)
    CommonSubexpressionEliminationPass()(model)
    RemoveUnusedNodesPass()(model)
