"""Refuse a model of which neither the accelerator nor the host can run a node."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir

from worker.compiler.errors import ModelError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.partition.plan import HOST, Placement

_HOSTLESS = (onnx_ir.DataType.FLOAT4E2M1,)
"""Element types for which ONNX Runtime has no kernel on a CPU, of any operator."""


def require_host(model: OnnxModel, placement: Sequence[Placement]) -> None:
    """Check that every node left to the host is one that it can run.

    Raises:
        ModelError: TW-UNSUP-002 at the first node that touches a type the host has not.

    Cost: linear in the nodes.
    """
    target_of = {row.node: row.target for row in placement}
    for node in model.ir.graph:
        if target_of.get(node.name or "", HOST) != HOST:
            continue
        for value in (*node.inputs, *node.outputs):
            dtype = None if value is None else value.dtype
            if value is not None and dtype in _HOSTLESS:
                raise ModelError(
                    "TW-UNSUP-002",
                    f"{node.op_type} is left to the host, which has no kernels for {dtype.name}"
                    f" ({value.name!r})",
                    node=node.name,
                    limit="an accelerator whose capabilities list the type",
                    actual=dtype.name,
                )
