"""Reading control-flow nodes: their kind, operands, graphs and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx_ir

from worker.compiler.control.flow import ControlKind
from worker.compiler.frontend.edit import constant_of

KINDS: Mapping[str, ControlKind] = MappingProxyType(
    {"If": ControlKind.IF, "Loop": ControlKind.LOOP, "Scan": ControlKind.SCAN}
)
"""ONNX operator -> how it is interpreted."""


@dataclass(frozen=True, slots=True)
class ScanLayout:
    """Which operands and results of a Scan are states and which are sequences."""

    num_states: int
    input_axes: tuple[int, ...]
    input_reversed: tuple[bool, ...]
    output_axes: tuple[int, ...]
    output_reversed: tuple[bool, ...]


def has_graphs(node: onnx_ir.Node) -> bool:
    """Whether the node owns graphs."""
    return any(
        a.type in (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS)
        for a in node.attributes.values()
    )


def graphs_of(node: onnx_ir.Node) -> tuple[onnx_ir.Graph, ...]:
    """The node's bodies; of an If: then, else."""
    if node.op_type == "If":
        names = ("then_branch", "else_branch")
        return tuple(node.attributes[name].as_graph() for name in names)
    found: list[onnx_ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == onnx_ir.AttributeType.GRAPHS:
            found.extend(attribute.as_graphs())
    return tuple(found)


def operands_of(node: onnx_ir.Node) -> tuple[onnx_ir.Value | None, ...]:
    """Inputs of the node; a Loop always has its first two, None where absent."""
    operands = tuple(node.inputs)
    if node.op_type == "Loop" and len(operands) < 2:
        return (*operands, *[None] * (2 - len(operands)))
    return operands


def scan_layout(node: onnx_ir.Node) -> ScanLayout:
    """Attributes of a Scan (opset 9 or later), defaults filled in."""
    (body,) = graphs_of(node)
    sequences = node.attributes["num_scan_inputs"].as_int()
    num_states = len(node.inputs) - sequences
    scanned = len(body.outputs) - num_states

    def ints(name: str, count: int) -> tuple[int, ...]:
        attribute = node.attributes.get(name)
        values = tuple(attribute.as_ints()) if attribute is not None else ()
        return values or (0,) * count

    return ScanLayout(
        num_states,
        ints("scan_input_axes", sequences),
        tuple(d == 1 for d in ints("scan_input_directions", sequences)),
        ints("scan_output_axes", scanned),
        tuple(d == 1 for d in ints("scan_output_directions", scanned)),
    )


def constant_int(value: onnx_ir.Value | None) -> int | None:
    """The single element of a constant, or None."""
    tensor = constant_of(value)
    if tensor is None or tensor.size != 1:
        return None
    return int(np.asarray(tensor.numpy()).reshape(-1)[0])


def outer_reads(graph: onnx_ir.Graph) -> tuple[onnx_ir.Value, ...]:
    """Values a graph reads from outside, nested graphs included, in order; constants excluded."""
    nodes = list(graph.all_nodes())
    graphs = (graph, *graph.subgraphs())
    inside = {v for node in nodes for v in node.outputs}
    for each in graphs:
        inside.update(each.inputs)
        inside.update(each.initializers.values())
    reads = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None)
    reads.update(dict.fromkeys(v for each in graphs for v in each.outputs))
    return tuple(v for v in reads if v not in inside and constant_of(v) is None)
