"""Cut a model into accelerator regions and host parts that alternate.

Thin version of BYOC's flow: an operator the capability list allows and the algebra can express goes
to the accelerator; everything else to the host.  Regions are built from alternation levels: a
node's level is the largest number of side changes on any path to it, so nodes of one level and
side form a convex set, and no two parts of one side are adjacent in execution order.
Source: BYOC section 3 (annotation and region merge); the cost-based split is a later issue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import onnx_ir

from worker.compiler.frontend.express import rejection
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine.machine import Machine
from worker.compiler.partition.support import refusal
from worker.compiler.rejection import ReasonCode, Rejection


class Target(StrEnum):
    ACCELERATOR = "accelerator"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one ONNX node goes and why."""

    node: str
    op_type: str
    target: Target
    reason_code: ReasonCode
    reason: str


@dataclass(frozen=True, slots=True)
class Part:
    """A convex set of nodes that runs as one piece; `nodes` are positions in the model."""

    target: Target
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    """Values from outside, in order of first use; initializers excluded."""
    outputs: tuple[str, ...]
    """Values used outside, in order of definition."""


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Parts in execution order, and a placement row for every node in model order."""

    parts: tuple[Part, ...]
    placement: tuple[Placement, ...]


def partition(model: OnnxModel, machine: Machine, refused: Mapping[str, Rejection]) -> Partitioning:
    """Place every node.

    `refused` adds rejections found later (an operator that fits no memory), by node name.
    Cost: linear in nodes and edges, plus one trial expression per allowed node.
    """
    nodes = list(model.ir.graph)
    placement = tuple(_place(node, model, machine, refused) for node in nodes)
    sides = [row.target for row in placement]
    levels = _levels(nodes, sides)
    members: dict[tuple[int, Target], list[int]] = {}
    for k, side in enumerate(sides):
        members.setdefault((levels[k], side), []).append(k)
    graph_outputs = [v.name for v in model.ir.graph.outputs if v.name is not None]
    parts = tuple(
        _part(side, members[level, side], nodes, graph_outputs)
        for level, side in sorted(members, key=lambda key: key[0])
    )
    return Partitioning(parts, placement)


def _place(
    node: onnx_ir.Node, model: OnnxModel, machine: Machine, refused: Mapping[str, Rejection]
) -> Placement:
    name = node.name or ""
    found = (
        refused.get(name)
        or refusal(node, machine.targets[0].capabilities)
        or rejection(node, model.opset)
    )
    if found is None:
        return Placement(
            name, node.op_type, Target.ACCELERATOR, ReasonCode.OFFLOADED,
            "offered by the accelerator",
        )  # fmt: skip
    return Placement(name, node.op_type, Target.HOST, found.code, found.sentence)


def captured_values(node: onnx_ir.Node) -> tuple[onnx_ir.Value, ...]:
    """Inputs of a node including outer values its sub-graphs capture, each once."""
    found: dict[int, onnx_ir.Value] = {id(v): v for v in node.inputs if v is not None}
    stack = [
        a.as_graph() for a in node.attributes.values() if a.type == onnx_ir.AttributeType.GRAPH
    ]
    inner: set[int] = set()
    seen: dict[int, onnx_ir.Value] = {}
    while stack:
        graph = stack.pop()
        inner.update(id(v) for v in (*graph.inputs, *graph.initializers.values()))
        for sub in graph:
            inner.update(id(v) for v in sub.outputs)
            seen.update((id(v), v) for v in sub.inputs if v is not None)
            stack += [
                a.as_graph()
                for a in sub.attributes.values()
                if a.type == onnx_ir.AttributeType.GRAPH
            ]
        seen.update((id(v), v) for v in graph.outputs if v is not None)
    found.update((key, v) for key, v in seen.items() if key not in inner)
    return tuple(found.values())


def _levels(nodes: Sequence[onnx_ir.Node], sides: Sequence[Target]) -> list[int]:
    """Alternation levels; the parity of a level names its side (even: accelerator)."""
    level_of: dict[int, int] = {}
    position = {id(node): k for k, node in enumerate(nodes)}
    levels: list[int] = []
    for k, node in enumerate(nodes):
        level = 0 if sides[k] is Target.ACCELERATOR else 1
        if sides[k] is Target.HOST and not _has_accelerated_ancestor(node, position, level_of):
            level = -1
        for value in captured_values(node):
            producer = value.producer()
            if producer is not None and id(producer) in position:
                p = position[id(producer)]
                level = max(level, levels[p] + (sides[p] is not sides[k]))
        levels.append(level)
        level_of[k] = level
    return levels


def _has_accelerated_ancestor(
    node: onnx_ir.Node, position: Mapping[int, int], level_of: Mapping[int, int]
) -> bool:
    for value in captured_values(node):
        producer = value.producer()
        if producer is None or id(producer) not in position:
            continue
        if level_of[position[id(producer)]] >= 0:
            return True
    return False


def _part(
    side: Target, members: list[int], nodes: Sequence[onnx_ir.Node], graph_outputs: list[str]
) -> Part:
    inside = {id(nodes[k]) for k in members}
    inputs: dict[str, None] = {}
    outputs: dict[str, None] = {}
    wanted = set(graph_outputs)
    for k in members:
        for value in captured_values(nodes[k]):
            producer = value.producer()
            is_outside = producer is None or id(producer) not in inside
            if is_outside and value.const_value is None and value.name:
                inputs.setdefault(value.name)
        for value in nodes[k].outputs:
            name = value.name or ""
            used_outside = any(id(user.node) not in inside for user in value.uses())
            if name and (name in wanted or used_outside):
                outputs.setdefault(name)
    return Part(side, tuple(members), tuple(inputs), tuple(outputs))
