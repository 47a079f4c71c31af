"""Express ONNX nodes in the operator algebra, or say why not.

In: onnx_ir nodes of a simplified model (static shapes, constants known).  Out: a checked Graph
whose tensors carry the ONNX value names, and the constants' values on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from worker.compiler.errors import InternalError
from worker.compiler.frontend.ops.call import Call
from worker.compiler.frontend.ops.emitter import Emitter
from worker.compiler.frontend.ops.refusal import Refusal
from worker.compiler.frontend.ops.registry import CONTROL_FLOW, DATA_DEPENDENT, EXPRESSIONS
from worker.compiler.ir.graph import Graph
from worker.compiler.rejection import ReasonCode, Rejection


@dataclass(frozen=True, slots=True)
class Expressed:
    """A region in the algebra."""

    graph: Graph
    constants: Mapping[str, Callable[[], npt.NDArray[Any]]]
    """Storage-type array of each of `graph.constants`, read or computed when called."""


def express_region(nodes: Sequence[ir.Node], outputs: Sequence[str], opset: int) -> Expressed:
    """Express `nodes` (topologically sorted), whose values `outputs` are needed outside.

    Tensors keep the ONNX value names; intermediates of a node that needs several operators are
    named after its first output plus a suffix.  Weights are not read, except small parameters.

    Raises:
        InternalError: a node that `rejection` would refuse was put into the region.

    Cost: linear in the number of nodes.
    """
    reserved = [
        str(value.name)
        for node in nodes
        for value in (*node.inputs, *node.outputs)
        if value is not None and value.name
    ]
    emitter = Emitter(dict.fromkeys(reserved))
    for node in nodes:
        try:
            _express(node, opset, emitter)
        except Refusal as refusal:
            why = refusal.rejection
            raise InternalError(
                "TW-INT-001",
                f"node {node.name!r} cannot be expressed: {why.code}: {why.sentence}",
                stage="express",
                node=node.name,
            ) from None
    return _finish(emitter, tuple(outputs))


def rejection(node: ir.Node, opset: int) -> Rejection | None:
    """Why `node` cannot be expressed, or None when it can.

    Cost: that of expressing the node alone.
    """
    emitter = Emitter(v.name for v in (*node.inputs, *node.outputs) if v is not None and v.name)
    try:
        _express(node, opset, emitter)
    except Refusal as refusal:
        return refusal.rejection
    return None


def _express(node: ir.Node, opset: int, emitter: Emitter) -> None:
    if node.domain not in ("", "ai.onnx"):
        raise Refusal(
            ReasonCode.UNSUPPORTED_OP, f"operator {node.op_type} of domain {node.domain!r}"
        )
    if node.op_type in CONTROL_FLOW:
        raise Refusal(
            ReasonCode.CONTROL_FLOW, f"{node.op_type} is control flow and stays on the host"
        )
    if node.op_type in DATA_DEPENDENT:
        raise Refusal(ReasonCode.DATA_DEPENDENT, f"{node.op_type}: {DATA_DEPENDENT[node.op_type]}")
    function = EXPRESSIONS.get(node.op_type)
    if function is None:
        raise Refusal(
            ReasonCode.UNSUPPORTED_OP, f"{node.op_type} has no expression in the operator algebra"
        )
    call = Call(node, opset, emitter)
    function(call)
    call.attrs.finish()


def _finish(emitter: Emitter, outputs: tuple[str, ...]) -> Expressed:
    """Build the graph from what operators touch: parameters that became literals drop out."""
    used: dict[str, None] = {}
    for op in emitter.ops:
        used.update(dict.fromkeys(op.input_names()))
        used.setdefault(op.write.tensor)
    inputs = tuple(n for n in emitter.inputs if n in used or n in outputs)
    constants = tuple(n for n in emitter.constants if n in used)
    keep = {*used, *outputs}
    graph = Graph.build(
        tuple(emitter.ops),
        tuple(t for t in emitter.tensors.values() if t.name in keep),
        inputs,
        outputs,
        constants,
    )
    return Expressed(graph, MappingProxyType({n: emitter.constants[n] for n in constants}))
