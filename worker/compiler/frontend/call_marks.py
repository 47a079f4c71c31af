"""Prepare a model's functions for being inlined: defaults, opsets, and whose body a node is of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from hashlib import sha256
from typing import Any

import onnx

from worker.compiler.errors import ModelError
from worker.compiler.frontend.calls import CALL, Call, CallValue, call_text
from worker.compiler.frontend.convert_opset import changes_of
from worker.compiler.machine.operator import foreign_name

_STANDARD = ("", "ai.onnx")
_ATTRIBUTE = onnx.AttributeProto
_NUMBERED = re.compile(r"__\d+$")
_MOST_ELEMENTS = 64
"""Of a list attribute that rules can ask for."""


def give_defaults(proto: onnx.ModelProto) -> None:
    """Write the default of every attribute that a call leaves out at the call.

    The inliner drops them, and with them the attributes of the body that refer to them.
    """
    bodies = {(f.domain, f.name, f.overload): f for f in proto.functions if f.attribute_proto}
    if not bodies:
        return
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        for node in nested_nodes(nodes):
            function = bodies.get((node.domain, node.op_type, node.overload))
            if function is not None:
                given = {attribute.name for attribute in node.attribute}
                node.attribute.extend(a for a in function.attribute_proto if a.name not in given)


def nested_nodes(nodes: Any) -> Iterator[Any]:
    """The nodes, and those of graphs inside them."""
    stack = [nodes]
    while stack:
        for node in stack.pop():
            yield node
            for attribute in node.attribute:
                stack += [graph.node for graph in attribute.graphs]
                if attribute.HasField("g"):
                    stack.append(attribute.g.node)


def opset_of_function(function: onnx.FunctionProto) -> int | None:
    """The opset of ONNX that a body is written in; None: it uses none."""
    found = [o.version for o in function.opset_import if o.domain in _STANDARD]
    return found[0] if found else None


def changed_operator(function: onnx.FunctionProto, opset: int) -> str | None:
    """An operator of the body whose form in `opset` is another than in the body's own opset."""
    own = opset_of_function(function)
    if own is None or own == opset:
        return None
    between = range(min(own, opset) + 1, max(own, opset) + 1)
    for node in nested_nodes(function.node):
        if node.domain in _STANDARD and any(v in between for v in changes_of(node.op_type)):
            changed: str = node.op_type
            return changed
    return None


def align_opsets(proto: onnx.ModelProto) -> None:
    """Let bodies be of the model's opset, where their operators have the same form there.

    Raises:
        ModelError: TW-MODEL-022 at a call of a body that means something else in that opset.
    """
    opset = next((o.version for o in proto.opset_import if o.domain in _STANDARD), None)
    if opset is None:
        return  # refused with the model's versions
    for function in proto.functions:
        changed = changed_operator(function, opset)
        if changed is not None:
            raise ModelError(
                "TW-MODEL-022",
                f"{foreign_name(function.domain, function.name)} is defined in opset"
                f" {opset_of_function(function)} by {changed}, which has another form in the"
                f" model's opset {opset}",
                node=caller_of(proto, function), limit=opset, actual=opset_of_function(function),
            )  # fmt: skip
        for entry in function.opset_import:
            if entry.domain in _STANDARD:
                entry.version = opset


def caller_of(proto: onnx.ModelProto, function: onnx.FunctionProto) -> str | None:
    """The first call in the main graph."""
    key = (function.domain, function.name)
    for node in nested_nodes(proto.graph.node):
        if (node.domain, node.op_type) == key:
            return str(node.name or node.op_type)
    return None


def definition_digests(
    functions: Mapping[str, onnx.FunctionProto], names: Sequence[str] | None = None
) -> dict[str, str]:
    """What bodies compute, by name: equal whatever their values and nodes are called.

    `names`: those that are asked for; None: all.  None may lead back to itself, and calls inside
    calls are few, as the front end or a document's limit has it.
    """
    found: dict[str, str] = {}

    def digest(name: str) -> str:
        if name not in found:
            function = functions[name]
            names: dict[str, str] = {"": ""}
            for value in function.input:
                names.setdefault(value, f"v{len(names)}")
            rows: list[Any] = []
            for node in function.node:
                inputs = [names.setdefault(v, f"v{len(names)}") for v in node.input]
                outputs = [names.setdefault(v, f"v{len(names)}") for v in node.output]
                rows.append([what(node, function), inputs, outputs, _settings(node.attribute)])
            text = json.dumps(
                [len(function.input), [names.get(v, v) for v in function.output],
                 sorted(function.attribute), _settings(function.attribute_proto), rows]
            )  # fmt: skip
            found[name] = sha256(text.encode()).hexdigest()[:16]
        return found[name]

    def what(node: Any, function: onnx.FunctionProto) -> str:
        called = foreign_name(node.domain, node.op_type)
        if called in functions:
            return digest(called)
        own = opset_of_function(function) or 0
        forms = [v for v in changes_of(node.op_type) if v <= own]
        return f"{node.domain}:{node.op_type}:{max(forms, default=0)}"

    for name in functions if names is None else names:
        digest(name)
    return found


def _settings(attributes: Any) -> list[list[str]]:
    rows = []
    for attribute in attributes:
        copy = onnx.AttributeProto()
        copy.CopyFrom(attribute)
        copy.ClearField("doc_string")
        rows.append([attribute.name, copy.SerializeToString(deterministic=True).hex()])
    return sorted(rows)


def mark_calls(proto: onnx.ModelProto, whole: AbstractSet[str]) -> None:
    """Give each call in the main graph of an operator of `whole` a body of its own, marked.

    Cost: linear in the model with these calls written out.
    """
    calls = [
        node
        for node in proto.graph.node
        if node.domain not in _STANDARD and foreign_name(node.domain, node.op_type) in whole
    ]
    bodies = {(f.domain, f.name, f.overload): f for f in proto.functions}
    calls = [node for node in calls if (node.domain, node.op_type, node.overload) in bodies]
    if not calls:
        return
    digests = definition_digests(
        {foreign_name(f.domain, f.name): f for f in proto.functions if not f.overload},
        [foreign_name(node.domain, node.op_type) for node in calls if not node.overload],
    )
    maker = _Maker(proto, bodies)
    for number, node in enumerate(calls):
        op = foreign_name(node.domain, node.op_type)
        body = bodies[node.domain, node.op_type, node.overload]
        call = Call(
            op, number, node.name or f"{node.op_type}_{number}", call_attributes(node.attribute),
            digests.get(op, ""), len(body.input), len(body.output),
        )  # fmt: skip
        inputs = {name: k for k, name in enumerate(body.input)}
        outputs = {name: k for k, name in enumerate(body.output)}
        node.op_type = maker.copy(body, call, inputs, outputs)
        node.overload = ""


def restore_names(proto: onnx.ModelProto) -> None:
    """Take the inliner's number off the names of marked nodes, as far as they stay different."""
    taken = {node.name for node in proto.graph.node}
    for node in proto.graph.node:
        if any(entry.key == CALL for entry in node.metadata_props):
            name = _NUMBERED.sub("", node.name)
            if name not in taken:
                taken.add(name)
                node.name = name


class _Maker:
    """Copies of bodies, each for one call."""

    def __init__(self, proto: onnx.ModelProto, bodies: Mapping[Any, onnx.FunctionProto]) -> None:
        self._proto = proto
        self._bodies = bodies
        self._count = 0

    def copy(
        self,
        body: onnx.FunctionProto,
        call: Call,
        inputs: Mapping[str, int],
        outputs: Mapping[str, int],
    ) -> str:
        """The op type of a copy whose nodes, and those of what they call, are marked.

        `inputs`, `outputs`: operands and results of the call, by their names in the body.
        """
        made = onnx.FunctionProto()
        made.CopyFrom(body)
        self._count += 1
        made.name, made.overload = f"{body.name}#{self._count}", ""
        for k, node in enumerate(made.node):
            reads = {p: inputs[v] for p, v in enumerate(node.input) if v in inputs}
            makes = {p: outputs[v] for p, v in enumerate(node.output) if v in outputs}
            inner = self._bodies.get((node.domain, node.op_type, node.overload))
            if inner is not None:
                node.op_type = self.copy(
                    inner, call,
                    {name: reads[p] for p, name in enumerate(inner.input) if p in reads},
                    {name: makes[p] for p, name in enumerate(inner.output) if p in makes},
                )  # fmt: skip
                node.overload = ""
                continue
            node.name = f"{call.name}/{node.name or f'{node.op_type}_{k}'}"
            text = call_text(
                replace(call, inputs=tuple(sorted(reads.items())),
                        outputs=tuple(sorted(makes.items())))
            )  # fmt: skip
            node.metadata_props.add(key=CALL, value=text)
        self._proto.functions.append(made)
        return made.name


def call_attributes(attributes: Any) -> dict[str, CallValue]:
    """The attributes of a call that rules can ask for: numbers, text and short lists of them."""
    found: dict[str, CallValue] = {}
    for attribute in attributes:
        match attribute.type:
            case _ATTRIBUTE.INT:
                found[attribute.name] = int(attribute.i)
            case _ATTRIBUTE.FLOAT:
                found[attribute.name] = float(attribute.f)
            case _ATTRIBUTE.STRING:
                found[attribute.name] = attribute.s.decode(errors="replace")
            case _ATTRIBUTE.INTS if len(attribute.ints) <= _MOST_ELEMENTS:
                found[attribute.name] = tuple(map(int, attribute.ints))
            case _ATTRIBUTE.FLOATS if len(attribute.floats) <= _MOST_ELEMENTS:
                found[attribute.name] = tuple(map(float, attribute.floats))
            case _ATTRIBUTE.STRINGS if len(attribute.strings) <= _MOST_ELEMENTS:
                found[attribute.name] = tuple(s.decode(errors="replace") for s in attribute.strings)
    return found
