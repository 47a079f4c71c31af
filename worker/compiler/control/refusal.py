"""Why the host cannot interpret a control-flow node: such nodes run whole in ONNX Runtime."""

from __future__ import annotations

import onnx_ir

from worker.compiler.control.bodies import INTERPRETED_TYPES
from worker.compiler.control.nodes import KINDS, graphs_of, operands_of, outer_reads, scan_layout


def refusal(node: onnx_ir.Node) -> str:
    """A sentence, or nothing when the node can be interpreted.

    Cost: linear in the node's bodies.
    """
    if node.op_type not in KINDS:
        return f"{node.op_type} is not interpreted: only If, Loop and Scan are"
    values: list[onnx_ir.Value | None] = [*operands_of(node), *node.outputs]
    for graph in graphs_of(node):
        values += [*graph.inputs, *graph.outputs, *outer_reads(graph)]
    for value in values:
        sentence = "" if value is None else _type_refusal(value)
        if sentence:
            return sentence
    return _misfit(node)


def _type_refusal(value: onnx_ir.Value) -> str:
    if not value.name:
        return ""
    if isinstance(value.type, onnx_ir.SequenceType):
        return f"{value.name} is a sequence, which only ONNX Runtime can carry"
    if isinstance(value.type, onnx_ir.OptionalType):
        return f"{value.name} is optional-typed, which only ONNX Runtime can carry"
    if value.dtype is not None and value.dtype not in INTERPRETED_TYPES:
        kind = value.dtype.name.lower()
        return f"{value.name} is {kind}, which does not pass between host and kernels as it is"
    return ""


def _misfit(node: onnx_ir.Node) -> str:
    """Counts that contradict the operator's definition (Scan-8, with its batch dimension, too)."""
    graphs, operands = graphs_of(node), operands_of(node)
    given = 0 if node.op_type == "If" else len(operands)
    for graph in graphs:
        if len(graph.inputs) != given:
            return f"its body takes {len(graph.inputs)} inputs, the node gives {given}"
    extra = 1 if node.op_type == "Loop" else 0
    wanted = [len(graph.outputs) - extra for graph in graphs]
    if len(set(wanted)) != 1 or len(node.outputs) > wanted[0]:
        return f"its bodies give {wanted} results, the node has {len(node.outputs)}"
    if node.op_type == "Loop" and wanted[0] < len(operands) - 2:
        return f"its body gives {wanted[0]} results for {len(operands) - 2} carried values"
    return _scan_misfit(node) if node.op_type == "Scan" else ""


def _scan_misfit(node: onnx_ir.Node) -> str:
    layout = scan_layout(node)
    sequences = operands_of(node)[max(layout.num_states, 0) :]
    (body,) = graphs_of(node)
    scanned = len(body.outputs) - layout.num_states
    counts = (
        len(layout.input_axes), len(layout.input_reversed), len(layout.output_axes),
        len(layout.output_reversed),
    )  # fmt: skip
    if layout.num_states < 0 or counts != (len(sequences), len(sequences), scanned, scanned):
        return (
            f"its axes and directions ({counts}) do not fit {len(sequences)} sequences and"
            f" {scanned} stacked results"
        )
    for value, axis in zip(sequences, layout.input_axes, strict=True):
        rank = None if value is None or value.shape is None else len(value.shape)
        if rank is not None and not -rank <= axis < rank:
            return f"it scans axis {axis} of a value with {rank} dimensions"
    return ""
