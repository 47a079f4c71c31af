"""Give every reader of a dequantised value a DequantizeLinear of its own.

Exporters write one Q/DQ pair per value, however many operators read it.  A reader on the host
would then keep a float copy alive inside an integer region; with a dequantisation per reader each
cluster owns its operands and the host dequantises what it reads itself.
Source: BYOC section 3.2 (conversions stand at the edge of a region).
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.passes import interface_of, require_interface
from worker.compiler.quantize.insert import Inserter


def split_dequantisations(model: OnnxModel) -> OnnxModel:
    """The model with one DequantizeLinear per reading node; constants are left alone.

    The first reader keeps the model's node, so that its name survives; a value that is also a
    graph output keeps it for the caller.  Nothing is copied when nothing must be split.

    Cost: linear; the model is cloned when something is split.
    """
    if not any(_extra_readers(node) for node in model.ir.graph):
        return model
    clone = model.ir.clone()
    inserter = Inserter(clone.graph)
    for node in list(clone.graph):
        for reader in _extra_readers(node):
            value = node.outputs[0]
            assert value.dtype is not None, "simplify gives every value its type"
            operands = [v for v in node.inputs if v is not None]
            twin = inserter.node(
                "DequantizeLinear", "copy", node, operands,
                inserter.value_name(f"{value.name}/copy"), value.dtype,
            )  # fmt: skip
            for attribute in node.attributes.values():
                twin.attributes.add(attribute)
            clone.graph.insert_after(node, twin)
            for k, used in enumerate(reader.inputs):
                if used is value:
                    reader.replace_input_with(k, twin.outputs[0])
    require_interface("split dequantisations", interface_of(model.ir), clone)
    return replace(model, ir=clone)


def _extra_readers(node: onnx_ir.Node) -> list[onnx_ir.Node]:
    """Readers of a dequantised activation that need a copy of the node, in order."""
    if node.op_type != "DequantizeLinear" or node.domain not in ("", "ai.onnx"):
        return []
    source, value = node.inputs[0], node.outputs[0]
    if source is None or source.const_value is not None:
        return []
    readers = list(dict.fromkeys(use.node for use in value.uses()))
    same_graph = [reader for reader in readers if reader.graph is node.graph]
    keeps_first = not value.is_graph_output() and len(same_graph) == len(readers)
    return same_graph[1:] if keeps_first else same_graph
