"""Replace operators that ONNX defines by other operators with those, where we know only those.

Attention, RotaryEmbedding, losses, windows and what else is a function in the operator schemas need
no expression of their own.  A body that holds control flow stays a call: the host runs it.
Source: ONNX operator schemas, function bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
import onnx.defs
import onnx_ir

from worker.compiler.errors import ModelError
from worker.compiler.frontend.calls import inherit_call
from worker.compiler.frontend.contrib import MICROSOFT
from worker.compiler.frontend.convert_opset import convert_opset
from worker.compiler.frontend.edit import Names
from worker.compiler.frontend.evaluate_node import RANDOM
from worker.compiler.frontend.expand_qlinear import QLINEAR, qlinear_body
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.ops.registry import CONTROL_FLOW, EXPRESSIONS
from worker.compiler.frontend.origin import ORIGIN, origin_of

_NOT_EXPANDED = frozenset({*EXPRESSIONS, *CONTROL_FLOW, *RANDOM})
_OFF_BELOW_ZERO = frozenset({("Attention", "softcap")})
"""Attributes that ONNX's reference and ONNX Runtime take as absent when they are negative; the body
of the function takes them at their word."""
_BUILD_ERRORS = (
    onnx.defs.SchemaError, RuntimeError, ValueError, TypeError, IndexError, KeyError,
)  # fmt: skip


def may_be_expanded(op_type: str) -> bool:
    """Whether an operator of the standard domain gives way to its definition, if it has one."""
    return op_type not in _NOT_EXPANDED


def expand_functions(
    model: onnx_ir.Model, opset: int, chosen: Callable[[str], bool] = may_be_expanded
) -> int:
    """Expand what can be in the main graph, once; give the number of expanded nodes.

    `chosen` says of which operators of the standard domain: by default those that have no
    expression.
    A body is built for the types of its inputs, so a node waits until those are known.  Nodes of
    the body are called after the user's node.  A body may call functions again: call this until it
    gives 0, which it does, because schemas define functions by simpler ones.

    Raises:
        ModelError: TW-MODEL-014 at the node whose body makes the model too large.
    """
    graph = model.graph
    count = 0
    names: Names | None = None
    most = Limits().max_nodes
    for node in list(graph):
        if node.domain == MICROSOFT and node.op_type in QLINEAR:
            body = qlinear_body(node, opset)
        elif node.domain != "" or not chosen(node.op_type):
            continue
        else:
            body = _body(node, opset)
        if body is None:
            continue
        if len(graph) + len(body.graph) > most:
            raise ModelError(
                "TW-MODEL-014", f"the model has more than {most} nodes once functions are expanded",
                node=node.name, limit=most, actual=len(graph) + len(body.graph),
            )  # fmt: skip
        names = names or Names(graph)
        _put_in_place(graph, node, body.graph, names)
        count += 1
    return count


def _body(node: onnx_ir.Node, opset: int) -> onnx_ir.Model | None:
    """The function body of a node as a model in our opset, or None where there is none to use."""
    if not _is_function(node.op_type, opset):
        return None
    types = _input_types(node)
    if types is None:
        return None
    found = function_model(onnx_ir.serde.serialize_node(node), types, opset)
    if found is None:
        return None
    try:
        body = onnx_ir.serde.deserialize_model(found)
    except _BUILD_ERRORS:
        return None
    convert_opset(body)
    return body


def _is_function(op_type: str, opset: int) -> bool:
    try:
        schema: Any = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def function_model(
    node: onnx.NodeProto, types: Sequence[onnx.TypeProto], opset: int
) -> onnx.ModelProto | None:
    """The body of a call of an operator that ONNX defines by others; None where it has none, or one
    with control flow, or that the host alone can judge.

    `types` are those of its inputs, empty for absent ones.  Inputs and outputs of the body are
    those that the call has, in their order; it may be of an older opset than the call.
    """
    if not _is_function(node.op_type, opset):
        return None
    schema: Any = onnx.defs.get_schema(node.op_type, opset, "")
    call = onnx.NodeProto()
    call.CopyFrom(node)
    off = [a for a in call.attribute if (call.op_type, a.name) in _OFF_BELOW_ZERO and a.f < 0]
    for attribute in off:
        call.attribute.remove(attribute)
    given = {attribute.name for attribute in call.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type:
            call.attribute.append(attribute.default_value)
    try:
        function = _function(schema, call, types, opset)
        if (
            function is None
            or len(call.input) > len(function.input)
            or any(_has_graph(inner) for inner in function.node)
        ):
            return None
        made = {name for inner in function.node for name in inner.output} | {*function.input}
        if any(outer and n not in made
               for outer, n in zip(call.output, function.output, strict=False)):  # fmt: skip
            return None
        return _as_model(function, call, types)
    except _BUILD_ERRORS:
        return None  # the host runs the operator, or says what is wrong with it


def _input_types(node: onnx_ir.Node) -> list[onnx.TypeProto] | None:
    """Types of the inputs, empty for absent ones; None while one is unknown."""
    types: list[onnx.TypeProto] = []
    for value in node.inputs:
        if value is None or not value.name:
            types.append(onnx.TypeProto())
        elif value.type is None or value.shape is None:
            return None
        else:
            types.append(onnx_ir.serde.serialize_value(value).type)
    return types


def _function(
    schema: Any, node: onnx.NodeProto, types: Sequence[onnx.TypeProto], opset: int
) -> onnx.FunctionProto | None:
    function = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        given = [kind.SerializeToString() for kind in types]
        data = schema.get_context_dependent_function_with_opset_version(
            max(versions, default=opset), node.SerializeToString(), given
        )
    else:
        versions = [v for v in schema.function_opset_versions if v <= opset]
        data = schema.get_function_with_opset_version(max(versions, default=opset))
    function.ParseFromString(data)
    return function if function.node else None


def _has_graph(node: onnx.NodeProto) -> bool:
    return any(a.HasField("g") or a.graphs for a in node.attribute)


def _as_model(
    function: onnx.FunctionProto, call: onnx.NodeProto, types: Sequence[onnx.TypeProto]
) -> onnx.ModelProto:
    """The body of one call: attributes put in, absent inputs left out."""
    given = {a.name: a for a in call.attribute}
    absent = set(function.input[len(call.input) :])
    graph = onnx.GraphProto(name=call.op_type)
    for name, actual, kind in zip(function.input, call.input, types, strict=False):
        if actual:
            graph.input.add(name=name).type.CopyFrom(kind)
        else:
            absent.add(name)
    wanted = [inner for inner, outer in zip(function.output, call.output, strict=False) if outer]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    for inner in function.node:
        node = graph.node.add()
        node.CopyFrom(inner)
        del node.input[:], node.attribute[:]
        node.input.extend("" if name in absent else name for name in inner.input)
        for attribute in inner.attribute:
            if not attribute.ref_attr_name:
                node.attribute.append(attribute)
            elif attribute.ref_attr_name in given:
                node.attribute.append(given[attribute.ref_attr_name])
                node.attribute[-1].name = attribute.name
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION, graph=graph)
    model.opset_import.extend(function.opset_import)
    return model


def _hand_on_call(
    call: onnx_ir.Node, body: onnx_ir.Graph, results: Sequence[onnx_ir.Value]
) -> None:
    """Let the body remember the vendor's call that `call` itself is part of."""
    places = [k for k, value in enumerate(call.inputs) if value is not None and value.name]
    operands = {id(value): k for value, k in zip(body.inputs, places, strict=True)}
    made = dict(zip((k for k, v in enumerate(call.outputs) if v.name), results, strict=True))
    inherit_call(call, list(body), operands, made)


def _put_in_place(
    graph: onnx_ir.Graph, call: onnx_ir.Node, body: onnx_ir.Graph, names: Names
) -> None:
    """Move the nodes of `body` into `graph` in the place of `call`."""
    results = list(body.outputs)
    body.outputs.clear()
    _hand_on_call(call, body, results)
    present = [value for value in call.inputs if value is not None and value.name]
    for formal, actual in zip(body.inputs, present, strict=True):
        formal.replace_all_uses_with(actual)
        results = [actual if value is formal else value for value in results]
    constants = list(body.initializers.values())
    nodes = list(body)
    for number, node in enumerate(nodes):
        body.remove(node)
        node.name = f"{call.name}/{node.op_type}_{number}"
        node.meta[ORIGIN] = origin_of(call)
        for value in node.outputs:
            if value.name:
                value.name = names.fresh(f"{call.name}/{value.name}")
    graph.insert_before(call, nodes)
    for value in constants:
        body.initializers.pop(value.name or "")
        value.name = names.fresh(f"{call.name}/{value.name}")
        graph.register_initializer(value)
    for old, new in zip([v for v in call.outputs if v.name], results, strict=True):
        made = new
        if new.producer() not in nodes or new.is_graph_output():  # an input handed on, or twice
            copy = onnx_ir.node("Identity", [new], name=f"{call.name}/{old.name}")
            graph.insert_before(call, [copy])
            made = copy.outputs[0]
        made.type, made.shape = made.type or old.type, old.shape
        name, is_output = old.name, old.is_graph_output()
        old.replace_all_uses_with(made, replace_graph_outputs=True)
        if is_output:
            old.name = None
            made.name = name
    graph.remove(call, safe=True)
