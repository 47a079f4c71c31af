"""A model with operators as what ONNX defines them by, for ONNX Runtime: how far that is from them.

A kernel of its own may round less than its definition does: ONNX Runtime's Attention with a softcap
of 1e38 is a hundred times as exact as the Tanh of subnormal numbers that ONNX defines it by.  What
is compiled from the definition is as right as that, so the reference's own error is its distance
from it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import onnx

from worker.compiler.frontend.expand import may_be_expanded
from worker.compiler.frontend.functions import written_out
from worker.verification.float64_bodies import body_of
from worker.verification.value_types import Untyped, inferred, types_of

_PREFIX = "tilewright/defined/"


def by_definition(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto | None:
    """The model with `names` (values that nodes make) as its outputs, and the operators of its main
    graph that compilation takes by their definition as that.

    It shares messages with `model`.  None where there are none, or types are not known.
    Cost: linear in the nodes; weights stay where they are.
    """
    model = written_out(model)
    if not any(node.domain == "" and may_be_expanded(node.op_type) for node in model.graph.node):
        return None
    try:
        types = types_of(inferred(model))
    except Untyped:
        return None
    walk = _Walk(types, {entry.domain: entry.version for entry in model.opset_import}.get("", 1))
    for node in model.graph.node:
        walk.take(node)
    if not walk.expanded:
        return None
    made = {name for node in model.graph.node for name in node.output}
    del model.graph.node[:], model.graph.output[:], model.graph.value_info[:]
    model.graph.node.extend(walk.nodes)
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name in made
    )
    return model


@dataclass(slots=True)
class _Walk:
    types: dict[str, onnx.TypeProto]
    version: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    expanded: int = 0
    numbers: Iterator[int] = field(default_factory=count)

    def take(self, node: onnx.NodeProto) -> None:
        """Add a node, or those that it stands for."""
        body = None
        if node.domain == "" and may_be_expanded(node.op_type):
            body = body_of(node, self.types, self.version, self._fresh)
        if body is None:
            self.nodes.append(node)
            return
        self.expanded += 1
        self.types.update(body.types)
        for inner in body.nodes:
            self.take(inner)

    def _fresh(self) -> str:
        return f"{_PREFIX}{next(self.numbers)}"
