"""Elements, steps and trips are counted before anything allocates or runs them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir

from worker.compiler.errors import Finding, ModelError
from worker.compiler.frontend.edit import constant_of, is_graph
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.origin import origin_of
from worker.compiler.frontend.work import node_steps, static_shape


def require_sizes(model: OnnxModel, limits: Limits) -> None:
    """Refuse a model whose tensors, nodes or loops ask for more than one may.

    Inputs are counted when symbols are bound and constants when the file is read; what nodes make
    of them may still be vast: a doubled Concat, an Expand, an Einsum of twenty letters, a Loop
    without a way out.  Bodies are looked at too.
    Cost: linear in the nodes.

    Raises:
        ModelError: TW-MODEL-007 for a tensor, TW-MODEL-014 for the steps of a node or the trips of
            a loop, with one finding each, at the user's node.
    """
    findings: list[Finding] = []
    for node in model.ir.graph.all_nodes():
        findings += _elements(node, model, limits)
        steps = node_steps(node)
        if steps > limits.max_steps:
            findings.append(
                Finding(
                    "TW-MODEL-014", f"{node.op_type} takes {steps} steps", None,
                    origin_of(node), limits.max_steps, str(steps),
                )
            )  # fmt: skip
    findings += _loops(model.ir.graph, 1, limits)
    if findings:
        first = findings[0]
        raise ModelError(
            first.code, first.message, node=first.node, limit=first.allowed,
            actual=first.actual, findings=tuple(findings[: limits.max_findings]),
            remedy=_REMEDY if first.code == "TW-MODEL-014" else None,
        )  # fmt: skip


_REMEDY = "Give the node named here smaller inputs, or a loop fewer iterations."


def _elements(node: onnx_ir.Node, model: OnnxModel, limits: Limits) -> Iterator[Finding]:
    for value in node.outputs:
        if value.shape is None or not model.is_static(value):
            continue
        dims = [int(dim) for dim in value.shape.numpy()]
        elements = math.prod(dims)
        if elements > limits.max_elements or max(dims, default=0) > limits.max_dim:
            yield Finding(
                "TW-MODEL-007",
                f"{node.op_type} makes {value.name!r} of shape {dims}: {elements} elements",
                None,
                origin_of(node),
                f"{limits.max_elements} elements, {limits.max_dim} along a dimension",
                str(elements),
            )


def _loops(graph: onnx_ir.Graph, around: int, limits: Limits) -> Iterator[Finding]:
    """Loops that are certain to take too many trips, `around` being those of the loops outside.

    An exporter writes the largest integer for "while": what a condition may end is not counted.
    """
    for node in graph:
        bodies = [a.as_graph() for a in node.attributes.values() if is_graph(a)]
        if node.op_type not in ("Loop", "Scan") or node.domain != "" or len(bodies) != 1:
            continue  # a branch may never be taken
        trips = around * certain_trips(node, bodies[0])
        if trips > limits.max_trips:
            yield Finding(
                "TW-MODEL-014", f"{node.op_type} takes {trips} trips, those around it included",
                None, origin_of(node), limits.max_trips, str(trips),
            )  # fmt: skip
            continue
        yield from _loops(bodies[0], trips, limits)


def certain_trips(node: onnx_ir.Node, body: onnx_ir.Graph) -> int:
    """Trips of a Loop that nothing can end early, or of a Scan; 1 where that is not known."""
    if node.op_type not in ("Loop", "Scan") or node.domain != "":
        return 1
    if node.op_type == "Scan":
        count = node.attributes.get("num_scan_inputs")
        axes = node.attributes.get("scan_input_axes")
        number = count.as_int() if count is not None else 0
        shape = static_shape(node.inputs[-number]) if 0 < number <= len(node.inputs) else None
        axis = axes.as_ints()[0] if axes is not None and axes.as_ints() else 0
        return shape[axis] if shape and -len(shape) <= axis < len(shape) else 1
    trips = constant_of(node.inputs[0]) if node.inputs else None
    if trips is None or trips.size != 1 or not _goes_on(node, body):
        return 1
    return max(int(np.asarray(trips.numpy()).reshape(-1)[0]), 1)


def _goes_on(node: onnx_ir.Node, body: onnx_ir.Graph) -> bool:
    """Whether a Loop's condition is true whatever the data: constants handed on."""
    condition = node.inputs[1] if len(node.inputs) > 1 else None
    if condition is not None and condition.name and not _is_true(condition):
        return False
    value = body.outputs[0] if len(body.outputs) > 0 else None
    while value is not None:
        maker = value.producer()
        if maker is None or maker.op_type != "Identity":
            break
        value = maker.inputs[0]
    if value is None:
        return False
    return (len(body.inputs) > 1 and value is body.inputs[1]) or _is_true(value)


def _is_true(value: onnx_ir.Value) -> bool:
    maker = value.producer()
    if maker is not None and maker.op_type == "Constant" and "value" in maker.attributes:
        tensor = maker.attributes["value"].as_tensor()
    else:
        tensor = constant_of(value)
    return tensor is not None and bool(np.asarray(tensor.numpy()).all())
