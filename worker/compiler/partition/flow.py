"""The model as partitioning sees it: nodes by position, activations, weights, who feeds whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.tensor_checks import num_bytes
from worker.compiler.frontend.work import static_shape


@dataclass(frozen=True, slots=True)
class Activation:
    """A value computed at run time (or given to the model) that somebody reads."""

    name: str
    producer: int
    """Position of the node that computes it; -1: an input of the model."""
    consumers: tuple[int, ...]
    """Positions, ascending, each once.  A captured value is read by the capturing node."""
    size_bytes: int | None
    """None: its shape is known only at run time."""
    is_output: bool
    """Of the model."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Data flow of the main graph.  All tuples are by node position unless said otherwise."""

    names: tuple[str, ...]
    successors: tuple[tuple[int, ...], ...]
    is_control: tuple[bool, ...]
    """Has sub-graphs (If, Loop, Scan): runs as a host part of its own."""
    activations: tuple[Activation, ...]
    """Model inputs first, then in order of definition."""
    reads: tuple[tuple[int, ...], ...]
    """Activations read, in operand order, each once."""
    writes: tuple[tuple[int, ...], ...]
    """Activations computed."""
    weights: tuple[tuple[tuple[str, int], ...], ...]
    """(name, bytes) of the constants a node reads, each once."""


def read_flow(model: OnnxModel) -> Flow:
    """Cost: linear in nodes, operands and nested nodes."""
    graph = model.ir.graph
    nodes = list(graph)
    index: dict[int, int] = {}
    known: list[tuple[onnx_ir.Value, int]] = []
    for value in graph.inputs:
        if value.const_value is None:
            index[id(value)] = len(known)
            known.append((value, -1))
    for k, node in enumerate(nodes):
        for value in node.outputs:
            if value.name:
                index[id(value)] = len(known)
                known.append((value, k))
    consumers: list[list[int]] = [[] for _ in known]
    reads: list[tuple[int, ...]] = []
    weights: list[tuple[tuple[str, int], ...]] = []
    weight_bytes: dict[int, int] = {}
    for k, node in enumerate(nodes):
        own: dict[int, None] = {}
        constants: dict[str, int] = {}
        for value in captured_values(node):
            found = index.get(id(value))
            if found is not None:
                if found not in own:
                    own[found] = None
                    consumers[found].append(k)
            elif value.const_value is not None and value.name:
                key = id(value)
                if key not in weight_bytes:
                    weight_bytes[key] = value_bytes(value) or 0
                constants[value.name] = weight_bytes[key]
        reads.append(tuple(own))
        weights.append(tuple(constants.items()))
    outputs = {id(value) for value in graph.outputs}
    successors: list[dict[int, None]] = [{} for _ in nodes]
    writes: list[list[int]] = [[] for _ in nodes]
    activations: list[Activation] = []
    for number, (value, producer) in enumerate(known):
        activations.append(
            Activation(
                value.name or "", producer, tuple(consumers[number]), value_bytes(value),
                id(value) in outputs,
            )
        )  # fmt: skip
        if producer >= 0:
            writes[producer].append(number)
            successors[producer].update(dict.fromkeys(consumers[number]))
    return Flow(
        tuple(node.name or "" for node in nodes),
        tuple(tuple(after) for after in successors),
        tuple(_has_graphs(node) for node in nodes),
        tuple(activations),
        tuple(reads),
        tuple(tuple(w) for w in writes),
        tuple(weights),
    )


def value_bytes(value: onnx_ir.Value) -> int | None:
    """Bytes of a value; None where its shape or type is unknown, and for strings."""
    shape = static_shape(value)
    if shape is None or value.dtype is None:
        return None
    return num_bytes(int(value.dtype), shape)


def captured_values(node: onnx_ir.Node) -> tuple[onnx_ir.Value, ...]:
    """Inputs of a node including outer values its sub-graphs capture, each once."""
    found: dict[int, onnx_ir.Value] = {id(v): v for v in node.inputs if v is not None}
    stack = _graphs(node)
    inner: set[int] = set()
    seen: dict[int, onnx_ir.Value] = {}
    while stack:
        graph = stack.pop()
        inner.update(id(v) for v in (*graph.inputs, *graph.initializers.values()))
        for sub in graph:
            inner.update(id(v) for v in sub.outputs)
            seen.update((id(v), v) for v in sub.inputs if v is not None)
            stack += _graphs(sub)
        seen.update((id(v), v) for v in graph.outputs if v is not None)
    found.update((key, v) for key, v in seen.items() if key not in inner)
    return tuple(found.values())


def _graphs(node: onnx_ir.Node) -> list[onnx_ir.Graph]:
    found: list[onnx_ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == onnx_ir.AttributeType.GRAPHS:
            found += attribute.as_graphs()
    return found


def _has_graphs(node: onnx_ir.Node) -> bool:
    kinds: Sequence[onnx_ir.AttributeType] = (
        onnx_ir.AttributeType.GRAPH,
        onnx_ir.AttributeType.GRAPHS,
    )
    return any(attribute.type in kinds for attribute in node.attributes.values())
