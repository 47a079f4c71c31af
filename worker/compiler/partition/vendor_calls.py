"""Calls of foreign operators as one node each, so that rows can name them.

The model has the bodies of such calls (frontend/calls.py).  Where all that is left of a body still
is the call, it can stand as one operator: it reads the call's operands and constants only, and what
is read outside are results of its last node.  Rows are asked on a model in which such calls are
nodes of op type `domain::op type`, with the attributes of the call; their composite is the body.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir

from worker.compiler.frontend.calls import Call, CallValue, call_of

CONVERTING = ("QuantizeLinear", "DequantizeLinear")
"""Nodes of a quantised operator that are none of its float form."""


@dataclass(frozen=True, slots=True)
class VendorCall:
    """What is left of one call."""

    call: Call
    nodes: tuple[int, ...]
    """Positions of its body in the model, conversions apart, ascending."""
    operands: tuple[onnx_ir.Value | None, ...]
    """By position at the call; None: absent, or used by nothing that is left."""
    results: tuple[onnx_ir.Value | None, ...]
    broken: str = ""
    """Why it is the call no more; empty: it is."""


@dataclass(slots=True)
class _Body:
    call: Call
    nodes: list[int]
    operands: dict[int, onnx_ir.Value] = field(default_factory=dict)
    results: dict[int, onnx_ir.Value] = field(default_factory=dict)


def vendor_calls(nodes: Sequence[onnx_ir.Node], outputs: Sequence[str]) -> tuple[VendorCall, ...]:
    """The calls that nodes of a whole graph remember, in the order of the model.

    Cost: linear in nodes and operands.
    """
    bodies: dict[int, _Body] = {}
    for k, node in enumerate(nodes):
        call = call_of(node)
        if call is not None and node.op_type not in CONVERTING:
            bodies.setdefault(call.number, _Body(call, [])).nodes.append(k)
    names = frozenset(outputs)
    return tuple(_judged(bodies[number], nodes, names) for number in sorted(bodies))


def _judged(body: _Body, nodes: Sequence[onnx_ir.Node], outputs: frozenset[str]) -> VendorCall:
    inside = {id(nodes[k]) for k in body.nodes}
    broken = ""
    for k in body.nodes:
        broken = broken or _read_miss(body, nodes[k], inside)
        broken = broken or _left_miss(body, nodes[k], inside, outputs)
    call = body.call
    last = nodes[body.nodes[-1]]
    made = [body.results.get(k) for k in range(call.num_outputs)]
    if not broken and made[0] is None:
        broken = "nothing that is left of it makes its first result"
    if not broken and any(v is not None and v.producer() is not last for v in made):
        broken = "its results are made by several of its nodes, and a composite ends in one"
    return VendorCall(
        call, tuple(body.nodes), tuple(body.operands.get(k) for k in range(call.num_inputs)),
        tuple(made), broken,
    )  # fmt: skip


def _read_miss(body: _Body, node: onnx_ir.Node, inside: set[int]) -> str:
    """What the node reads from outside the body that is none of the call's operands."""
    call = call_of(node)
    assert call is not None
    places = dict(call.inputs)
    for p, value in enumerate(node.inputs):
        if value is None or not value.name:
            continue
        source = _unconverted(value)
        producer = source.producer()
        if producer is not None and id(producer) in inside:
            continue
        if p in places:
            known = body.operands.setdefault(places[p], value)
            if known is not value and _unconverted(known) is not source:
                return f"operand {places[p]} of it became several values"
        elif source.const_value is None:
            return f"{node.name} reads {value.name}, which is no operand of it"
    return ""


def _left_miss(
    body: _Body, node: onnx_ir.Node, inside: set[int], outputs: frozenset[str]
) -> str:  # fmt: skip
    """What of the node is read outside the body that is none of the call's results."""
    call = call_of(node)
    assert call is not None
    places = dict(call.outputs)
    for q, value in enumerate(node.outputs):
        if q in places:
            body.results[places[q]] = value
        elif value.is_graph_output() or value.name in outputs:
            return f"{value.name}, which is no result of it, is an output of the model"
        else:
            reader = _outer_reader(value, inside)
            if reader is not None:
                return f"{value.name}, which is no result of it, is also read by {reader.name}"
    return ""


def _outer_reader(value: onnx_ir.Value, inside: set[int]) -> onnx_ir.Node | None:
    """A node outside that reads the value, conversions inside the body passed over."""
    waiting = [value]
    while waiting:
        for use in waiting.pop().uses():
            if id(use.node) in inside:
                continue
            if use.node.op_type not in CONVERTING or not use.node.outputs[0].uses():
                return use.node
            waiting += use.node.outputs
    return None


def _unconverted(value: onnx_ir.Value) -> onnx_ir.Value:
    """What a value was before it was quantised and dequantised."""
    while True:
        producer = value.producer()
        if producer is None or producer.op_type not in CONVERTING or producer.inputs[0] is None:
            return value
        value = producer.inputs[0]


@dataclass(frozen=True, slots=True)
class Contracted:
    """A model in which some calls are nodes."""

    nodes: tuple[onnx_ir.Node, ...]
    """Copies, in model order; a call stands where its last node did."""
    members: tuple[tuple[int, ...], ...]
    """Positions in the model of what each node stands for."""


def contracted(
    nodes: Sequence[onnx_ir.Node],
    calls: Sequence[VendorCall],
    others: Sequence[int],
    opset: int,
) -> Contracted:
    """Copies of the nodes at `others`, and each of `calls` as one node.

    What is read by a node that is neither, or made by one, is so in the copy.  Cost: linear in the
    nodes and their operands.
    """
    copies = _Copies(opset)
    at: dict[int, tuple[onnx_ir.Node, tuple[int, ...]]] = {}
    inside = {id(nodes[k]) for call in calls for k in call.nodes}
    for call in calls:
        ends = {k: value for k, value in enumerate(call.results) if value is not None}
        at[call.nodes[-1]] = (
            copies.node(call.call.op, call.call.name, call.operands,
                        [ends.get(k) for k in range(max(ends) + 1)], call.call.attributes),
            call.nodes,
        )  # fmt: skip
    listed = set(others)
    for k, node in enumerate(nodes):
        if k in listed and k not in at and id(node) not in inside:
            at[k] = (copies.like(node), (k,))
    for k, node in enumerate(nodes):
        if k not in listed and id(node) not in inside:
            copies.like(node)
    order = sorted(at)
    return Contracted(tuple(at[k][0] for k in order), tuple(at[k][1] for k in order))


class _Copies:
    """Nodes on values of their own, connected as the model's are."""

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._values: dict[int, onnx_ir.Value] = {}

    def like(self, node: onnx_ir.Node) -> onnx_ir.Node:
        attributes = {a.name: a for a in node.attributes.values() if not _has_graph(a)}
        return onnx_ir.Node(
            node.domain, node.op_type, [self._value(v) for v in (*node.inputs, *_captured(node))],
            list(attributes.values()), outputs=[self._made(v) for v in node.outputs],
            version=self._opset, name=node.name,
        )  # fmt: skip

    def node(
        self,
        op: str,
        name: str,
        operands: Sequence[onnx_ir.Value | None],
        results: Sequence[onnx_ir.Value | None],
        attributes: Mapping[str, CallValue],
    ) -> onnx_ir.Node:
        made = onnx_ir.node(op, [self._value(v) for v in operands], dict(attributes), name=name,
                            outputs=[self._made(v) for v in results])  # fmt: skip
        made.version = self._opset
        return made

    def _value(self, value: onnx_ir.Value | None) -> onnx_ir.Value | None:
        return None if value is None else self._made(value)

    def _made(self, value: onnx_ir.Value | None) -> onnx_ir.Value:
        if value is None:
            return onnx_ir.Value(name="")
        copy = self._values.get(id(value))
        if copy is None:
            copy = self._values[id(value)] = onnx_ir.Value(
                name=value.name, shape=value.shape, type=value.type, const_value=value.const_value
            )
        return copy


def _has_graph(attribute: onnx_ir.Attr) -> bool:
    return attribute.type in (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS)


def _captured(node: onnx_ir.Node) -> Iterator[onnx_ir.Value]:
    """Values of outer graphs that bodies of a node read."""
    for attribute in node.attributes.values():
        if not _has_graph(attribute):
            continue
        single = attribute.type == onnx_ir.AttributeType.GRAPH
        for graph in [attribute.as_graph()] if single else list(attribute.as_graphs()):
            for inner in graph.all_nodes():
                yield from (v for v in inner.inputs if v is not None and v.graph is not graph)
