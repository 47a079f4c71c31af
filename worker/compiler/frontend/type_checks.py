"""Strict type and shape inference of the user's model: contradictions become findings."""

from __future__ import annotations

import re

import onnx
import onnx.shape_inference

from worker.compiler.errors import Finding
from worker.compiler.frontend.checks import label, refuse
from worker.compiler.frontend.inference_guard import complaints, guard_inference
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.propagation import may_propagate

_BY_POSITION = re.compile(r"node name: #(\d+)#\): ?([^\n]*)")


def check_types(proto: onnx.ModelProto, limits: Limits) -> None:
    """Refuse a model whose tensor types or shapes contradict each other.

    Nodes are renamed by position in a copy, so that hostile names cannot forge the checker's
    message and each complaint leads back to its node.

    Raises:
        ModelError: TW-MODEL-006 with one finding per node.
    """
    guard_inference()
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for index, node in enumerate(copy.graph.node):
        node.name = f"#{index}#"
        _rename_slices(node)
    text = ""
    with complaints() as of_slices:
        try:
            sized = onnx.shape_inference.infer_shapes(copy, True, True, False)
            if may_propagate(sized) and not of_slices:
                onnx.shape_inference.infer_shapes(copy, True, True, True)
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError,
                IndexError) as error:  # fmt: skip
            text = str(error)
    lines = dict.fromkeys(f"node name: {name}): {complaint}" for name, complaint in of_slices)
    text = "\n".join(filter(None, (text, *lines)))
    if not text:
        return
    findings = [
        Finding(
            "TW-MODEL-006", f"{node.op_type}: {match[2][:400]}", None, label(node, int(match[1]))
        )
        for match in _BY_POSITION.finditer(text)
        if int(match[1]) < len(proto.graph.node)
        for node in [proto.graph.node[int(match[1])]]
    ]
    refuse(findings or [Finding("TW-MODEL-006", text.strip()[:500])], limits)


def _rename_slices(node: onnx.NodeProto) -> None:
    """Call the Slices in a node's bodies, however deep, like the node."""
    waiting = [node]
    while waiting:
        for attribute in waiting.pop().attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                for inner in body.node:
                    waiting.append(inner)
                    if inner.op_type == "Slice":
                        inner.name = node.name
