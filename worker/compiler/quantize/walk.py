"""Values of a model one after the other, each computed from those before it.

The model may change behind the values that were asked for: what comes later sees the change.  A
value is kept until the last one that is computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx
import onnx_ir

from worker.compiler.frontend.edit import constant_of
from worker.compiler.quantize.session import Session

Array = npt.NDArray[Any]


class Walk:
    """Computes `wanted` values of `model`'s main graph in the order given, on every batch.

    Args:
        model: without control flow.
        wanted: results of nodes or inputs of the graph, in an order of execution.

    Cost: each step is a session and a run per batch of the nodes between the values kept so far and
        the next one; a chain is run about once in all.
    """

    def __init__(
        self,
        model: onnx_ir.Model,
        wanted: Sequence[onnx_ir.Value],
        batches: Sequence[Mapping[str, Array]],
    ) -> None:
        self._model = model
        self._wanted = list(wanted)
        self._batches = batches
        self._kept: dict[onnx_ir.Value, list[Array]] = {
            value: [batch[value.name or ""] for batch in batches]
            for value in model.graph.inputs
            if value.name in batches[0]
        }
        self._order = {node: k for k, node in enumerate(model.graph)}
        self._last_use = self._last_uses()

    def step(self, number: int) -> list[Array]:
        """Values of `wanted[number]`, one per batch; numbers ascend."""
        value = self._wanted[number]
        if value not in self._kept:
            nodes, sources = self._between(value, set(self._kept))
            session = Session(_part(self._model, nodes, sources, value))
            self._kept[value] = [
                session.run({s.name or "": self._kept[s][k] for s in sources})[0]
                for k in range(len(self._batches))
            ]
        found = self._kept[value]
        for kept in [v for v, last in self._last_use.items() if last <= number]:
            self._kept.pop(kept, None)
        return found

    def _last_uses(self) -> dict[onnx_ir.Value, int]:
        known, last = set(self._kept), dict.fromkeys(self._kept, -1)
        for number, value in enumerate(self._wanted):
            if value not in known:
                _, sources = self._between(value, known)
                last.update(dict.fromkeys(sources, number))
            known.add(value)
            last[value] = number
        return last

    def _between(
        self, value: onnx_ir.Value, known: set[onnx_ir.Value]
    ) -> tuple[list[onnx_ir.Node], list[onnx_ir.Value]]:
        """Nodes that compute `value` from known ones, in order, and the known ones."""
        nodes: dict[onnx_ir.Node, None] = {}
        sources: dict[onnx_ir.Value, None] = {}
        stack = [value]
        while stack:
            current = stack.pop()
            producer = current.producer()
            if current in known:
                sources[current] = None
            elif producer is not None and producer not in nodes:
                nodes[producer] = None
                stack.extend(v for v in producer.inputs if v is not None)
        return sorted(nodes, key=lambda n: self._order.get(n, -1)), list(sources)


def _part(
    model: onnx_ir.Model,
    nodes: Sequence[onnx_ir.Node],
    sources: Sequence[onnx_ir.Value],
    value: onnx_ir.Value,
) -> onnx_ir.Model:
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.append(onnx.OperatorSetIdProto(domain=domain, version=version))
    proto.graph.name = "part"
    constants: dict[str, onnx_ir.Value] = {}
    for node in nodes:
        proto.graph.node.append(onnx_ir.serde.serialize_node(node))
        for operand in node.inputs:
            if operand is not None and constant_of(operand) is not None:
                constants[operand.name or ""] = operand
    read = [*sources, *constants.values()]
    proto.graph.input.extend(onnx_ir.serde.serialize_value(source) for source in read)
    proto.graph.output.append(onnx_ir.serde.serialize_value(value))
    part = onnx_ir.serde.deserialize_model(proto)
    for twin in list(part.graph.inputs):
        constant = constants.get(twin.name or "")
        if constant is not None:
            part.graph.inputs.remove(twin)
            twin.const_value = constant.const_value
            part.graph.register_initializer(twin)
    return part
