"""Which nodes become integer operators, which pairs of them are one, and which values they share.

Nothing is edited here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir

from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.frontend.work import static_shape
from worker.compiler.machine.machine import Conversion
from worker.compiler.quantize.roles import (
    CONVERSIONS,
    Role,
    data_inputs,
    may_end_cluster,
    only_moves,
    role_of,
)

_INTEGER_OPERATORS = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})

Key = tuple[onnx_ir.Value, str]
"""A value as one target holds it."""


@dataclass(frozen=True, slots=True)
class Member:
    """One node that becomes (part of) an integer operator."""

    node: onnx_ir.Node
    role: Role
    target: str
    reads: tuple[tuple[int, onnx_ir.Value], ...]
    """(input position, value) of every computed operand that is still to be quantised."""
    writes: tuple[onnx_ir.Value, ...]
    """Results to be quantised; none where an activation follows in the cluster, or where the
    model itself quantises them."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The members in model order."""

    members: tuple[Member, ...]
    left: tuple[tuple[str, str], ...]
    """(node, why) of nodes that a target would take, but that stay float."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """Values to be quantised, each once per target that holds it, in model order."""
        found: dict[Key, None] = {}
        for member in self.members:
            found.update(((value, member.target), None) for _, value in member.reads)
            found.update(((value, member.target), None) for value in member.writes)
        return tuple(found)


def select(
    nodes: Sequence[onnx_ir.Node],
    targets: Sequence[str],
    choices: Mapping[str, Conversion],
    excluded: Mapping[str, str],
) -> Selection:
    """Choose among `nodes`, which stand on `targets`.

    Left alone: nodes whose operands the model itself dequantises and whose results it quantises;
    rearrangements with no integer operator beside them, for which rounding would buy nothing; and
    models with integer operators of their own, whose floats are the scales between them.

    Args:
        choices: integer conversions by target name.
        excluded: nodes that must stay float, and why.

    Cost: linear in nodes and edges.
    """
    own = next((node.op_type for node in nodes if node.op_type in _INTEGER_OPERATORS), "")
    if own:
        excluded = {node.name or "": f"the model computes in integers itself ({own})"
                    for node in nodes}  # fmt: skip
    chosen: dict[onnx_ir.Node, tuple[Role, str]] = {}
    left: list[tuple[str, str]] = []
    for node, target in zip(nodes, targets, strict=True):
        conversion = choices.get(target)
        if conversion is None or node.op_type in CONVERSIONS or not _has_data(node):
            continue
        why = excluded.get(node.name or "") or _why_not(node, conversion)
        role = role_of(node)
        if why or role is None:
            left.append((node.name or "", why or f"{node.op_type} has no integer form"))
        else:
            chosen[node] = (role, target)
    for node in _idle_moves(chosen):
        del chosen[node]
        left.append((node.name or "", "it moves data between float operators"))
    return Selection(_members(chosen), tuple(left))


def _has_data(node: onnx_ir.Node) -> bool:
    """Whether the node computes floats from floats (shapes and indices need no conversion)."""
    return any(_is_float(v) for v in node.inputs) and any(_is_float(v) for v in node.outputs)


def _why_not(node: onnx_ir.Node, conversion: Conversion) -> str:
    if conversion.op_types and node.op_type not in conversion.op_types:
        return f"the target converts only {', '.join(conversion.op_types)}"
    positions = data_inputs(node)
    operands = [node.inputs[k] for k in positions]
    if all(constant_of(v) is not None for v in operands):
        return "all its operands are constant"
    for value in (*operands, *node.outputs):
        if value is None or not value.name:
            continue
        dtype = None if value.dtype is None else DTYPES.get(value.dtype)
        if _is_float(value) and dtype not in conversion.sources:
            names = ", ".join(conversion.sources)
            return f"{value.name} is {dtype or 'of an unknown type'}, the target converts {names}"
        if static_shape(value) is None:
            return f"the shape of {value.name} is not known"
        touches = _is_dequantised(value) or _only_quantised(value)
        if touches and value.dtype != onnx_ir.DataType.FLOAT and _is_float(value):
            return f"the model itself quantises {value.name} from a type other than f32"
    return ""


def _is_float(value: onnx_ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


def _is_dequantised(value: onnx_ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def _only_quantised(value: onnx_ir.Value) -> bool:
    uses = value.uses()
    return (
        bool(uses)
        and not value.is_graph_output()
        and all(use.node.op_type == "QuantizeLinear" and use.idx == 0 for use in uses)
    )


def _idle_moves(chosen: Mapping[onnx_ir.Node, object]) -> list[onnx_ir.Node]:
    """Rearrangements not connected, through each other, with an operator that computes."""
    reached: dict[onnx_ir.Node, None] = {
        n: None for n in chosen if not only_moves(n) or _is_dequantised(n.inputs[0])
    }
    stack = list(reached)
    while stack:
        node = stack.pop()
        beside = [v.producer() for v in node.inputs if v is not None]
        beside += [use.node for v in node.outputs for use in v.uses()]
        for other in beside:
            if other is not None and other in chosen and other not in reached:
                reached[other] = None
                stack.append(other)
    return [node for node in chosen if node not in reached]


def _members(chosen: Mapping[onnx_ir.Node, tuple[Role, str]]) -> tuple[Member, ...]:
    follower = _followers(chosen)
    ended = set(follower.values())
    members: list[Member] = []
    for node, (role, target) in chosen.items():
        reads = tuple(
            (k, value)
            for k in data_inputs(node)
            if (value := node.inputs[k]) is not None
            and node not in ended
            and constant_of(value) is None
            and not _is_dequantised(value)
        )
        writes = tuple(
            value
            for value in node.outputs
            if value.name
            and node not in follower
            and _is_float(value)
            and (value.uses() or value.is_graph_output())
            and not _only_quantised(value)
        )
        members.append(Member(node, role, target, reads, writes))
    return _without_finished(members, follower)


def _followers(
    chosen: Mapping[onnx_ir.Node, tuple[Role, str]],
) -> dict[onnx_ir.Node, onnx_ir.Node]:
    """Core -> the activation that ends its cluster."""
    found: dict[onnx_ir.Node, onnx_ir.Node] = {}
    for node, (_, target) in chosen.items():
        value = node.outputs[0]
        uses = value.uses()
        if len(uses) != 1 or value.is_graph_output():
            continue
        (use,) = uses
        reader = chosen.get(use.node)
        if reader is not None and reader[1] == target and may_end_cluster(node, use.node):
            found[node] = use.node
    return found


def _without_finished(
    members: Sequence[Member], follower: Mapping[onnx_ir.Node, onnx_ir.Node]
) -> tuple[Member, ...]:
    """Leave out clusters whose operands and results the model has quantised already."""
    open_nodes: Collection[onnx_ir.Node] = {m.node for m in members if m.reads or m.writes}
    core_of = {activation: core for core, activation in follower.items()}
    kept = []
    for member in members:
        partner = follower.get(member.node) or core_of.get(member.node)
        if member.node in open_nodes or (partner is not None and partner in open_nodes):
            kept.append(member)
    return tuple(kept)
