"""Strict type and shape inference of the user's model: contradictions become findings."""

from __future__ import annotations

import re

import onnx
import onnx.shape_inference

from worker.compiler.errors import Finding
from worker.compiler.frontend.checks import label, refuse
from worker.compiler.frontend.inference_guard import guard_inference
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
    try:
        sized = onnx.shape_inference.infer_shapes(copy, True, True, False)
        if may_propagate(sized):
            onnx.shape_inference.infer_shapes(copy, True, True, True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError,
            IndexError) as error:  # fmt: skip
        text = str(error)
    else:
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
