"""Tensors between nodes are counted before anything allocates them."""

from __future__ import annotations

import math

from worker.compiler.errors import Finding, ModelError
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.model import OnnxModel


def require_sizes(model: OnnxModel, limits: Limits) -> None:
    """Refuse a model with a tensor of more elements than a tensor may have.

    Inputs are counted when symbols are bound and constants when the file is read; what nodes make
    of them may still be vast: a doubled Concat, an Expand, a Resize.  Bodies are looked at too.
    Cost: linear in the nodes.

    Raises:
        ModelError: TW-MODEL-007 with one finding per tensor, at the node that makes it.
    """
    findings: list[Finding] = []
    for node in model.ir.graph.all_nodes():
        for value in node.outputs:
            if value.shape is None or not model.is_static(value):
                continue
            dims = [int(dim) for dim in value.shape.numpy()]
            elements = math.prod(dims)
            if elements > limits.max_elements or max(dims, default=0) > limits.max_dim:
                findings.append(
                    Finding(
                        "TW-MODEL-007",
                        f"{node.op_type} makes {value.name!r} of shape {dims}: {elements} elements",
                        None,
                        node.name,
                        f"{limits.max_elements} elements, {limits.max_dim} along a dimension",
                        str(elements),
                    )
                )
    if findings:
        first = findings[0]
        raise ModelError(
            first.code, first.message, node=first.node, limit=limits.max_elements,
            actual=first.actual, findings=tuple(findings[: limits.max_findings]),
        )  # fmt: skip
