"""Which call of a function a node was made from: what lets a rule speak of the call as a whole.

A call of a foreign operator gives way to its body before anything else looks at the model, so that
inference, quantisation, kernels and the host know one form only.  Where a machine's rules name the
operator, each node of the body remembers the call: its attributes, and which operands and results
of the node are those of the call.  Passes that merge nodes keep to one call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

import onnx_ir

CALL = "tilewright.call"
"""Key in a node's metadata."""

CallValue: TypeAlias = "int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]"
Ends: TypeAlias = "tuple[tuple[int, int], ...]"
"""(position at the node, position at the call), ascending."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a node of a body remembers."""

    op: str
    """`domain::op type`."""
    number: int
    """Of the call in the model."""
    name: str
    """The user's name of the call."""
    attributes: Mapping[str, CallValue]
    """Those given and those by default, as far as rules can ask for them."""
    definition: str
    """Digest of the body."""
    num_inputs: int
    num_outputs: int
    inputs: Ends = ()
    outputs: Ends = ()


def call_of(node: onnx_ir.Node) -> Call | None:
    """The call that a node was made from; None where no rule has a word for one."""
    text = node.metadata_props.get(CALL)
    return None if text is None else _read(text)


def number_of(node: onnx_ir.Node) -> int | None:
    """Of the call that a node was made from."""
    call = call_of(node)
    return None if call is None else call.number


def call_text(call: Call) -> str:
    """What a node's metadata say of `call`."""
    return json.dumps(
        {
            "op": call.op, "number": call.number, "name": call.name,
            "attributes": dict(call.attributes), "definition": call.definition,
            "ends": [call.num_inputs, call.num_outputs], "in": call.inputs, "out": call.outputs,
        },
        sort_keys=True, separators=(",", ":"),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _read(text: str) -> Call:
    """Made here and nowhere else: metadata of a file are dropped when it is read."""
    found = json.loads(text)
    attributes = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in found["attributes"].items()
    }
    num_inputs, num_outputs = found["ends"]
    return Call(
        found["op"], found["number"], found["name"], MappingProxyType(attributes),
        found["definition"], num_inputs, num_outputs,
        tuple((p, k) for p, k in found["in"]), tuple((p, k) for p, k in found["out"]),
    )  # fmt: skip


def inherit_call(
    node: onnx_ir.Node,
    made: Sequence[onnx_ir.Node],
    operands: Mapping[int, int],
    results: Mapping[int, onnx_ir.Value],
) -> None:
    """Let `made`, the nodes that take the place of `node`, remember the call it was made from.

    `operands`: by identity of a value that the new nodes read, its position among the inputs of
    `node`; `results`: the new values of its outputs, by position.
    """
    call = call_of(node)
    if call is None:
        return
    given, wanted = dict(call.inputs), dict(call.outputs)
    place = {id(value): wanted[k] for k, value in results.items() if k in wanted}
    for each in made:
        inputs = tuple(
            (k, given[operands[id(value)]])
            for k, value in enumerate(each.inputs)
            if value is not None and operands.get(id(value)) in given
        )
        outputs = tuple(
            (k, place[id(value)]) for k, value in enumerate(each.outputs) if id(value) in place
        )
        each.metadata_props[CALL] = call_text(replace(call, inputs=inputs, outputs=outputs))


def take_over_results(node: onnx_ir.Node, gone: onnx_ir.Node) -> None:
    """Let `node` make the first result that `gone`, of the same call, made."""
    call, other = call_of(node), call_of(gone)
    if call is None or other is None:
        return
    outputs = tuple(end for end in other.outputs if end[0] == 0)
    node.metadata_props[CALL] = call_text(replace(call, outputs=outputs))


def forget_calls(proto: Any) -> None:
    """Drop what the nodes of a file claim to remember."""
    stack = [proto.graph.node, *(function.node for function in proto.functions)]
    while stack:
        for node in stack.pop():
            for k in reversed(range(len(node.metadata_props))):
                if node.metadata_props[k].key == CALL:
                    del node.metadata_props[k]
            for attribute in node.attribute:
                stack += [graph.node for graph in attribute.graphs]
                if attribute.HasField("g"):
                    stack.append(attribute.g.node)
