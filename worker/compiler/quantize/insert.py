"""Insert conversion nodes into an ONNX graph, named after the user's nodes and marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import onnx_ir

from worker.compiler.frontend.edit import Names, add_constant
from worker.compiler.partition.annotate import INSERTED


class Inserter:
    """Fresh names and new nodes of one graph.

    New nodes are called `<user's node>/<verb>_<k>`; every new value has its type and shape.
    """

    def __init__(self, graph: onnx_ir.Graph) -> None:
        self._graph = graph
        self._names = Names(graph)
        self._node_names = {node.name for node in graph.all_nodes()}
        self._next: dict[str, int] = {}

    def value_name(self, base: str) -> str:
        """`base`, or `base` with a number, that no value has."""
        return self._names.fresh(base)

    def constant(
        self, base: str, array: npt.NDArray[Any], dtype: onnx_ir.DataType | None = None
    ) -> onnx_ir.Value:
        """A new initializer."""
        return add_constant(self._graph, self._names.fresh(base), array, dtype)

    def node(
        self,
        op_type: str,
        verb: str,
        owner: onnx_ir.Node,
        inputs: Sequence[onnx_ir.Value],
        output: str,
        dtype: onnx_ir.DataType,
        **attributes: int,
    ) -> onnx_ir.Node:
        """A node that maps inputs[0] element by element; not yet part of the graph.

        Args:
            owner: the user's node that it is named after.
            output: exact name of its result, see `value_name`.
            dtype: of its result.
        """
        made = onnx_ir.node(op_type, inputs, attributes=attributes)
        made.name = self._node_name(f"{owner.name}/{verb}")
        made.metadata_props[INSERTED] = "1"
        result = made.outputs[0]
        result.name = output
        result.type = onnx_ir.TensorType(dtype)
        shape = inputs[0].shape
        result.shape = None if shape is None else onnx_ir.Shape(shape)
        return made

    def _node_name(self, base: str) -> str:
        count = self._next.get(base, 0)
        while f"{base}_{count}" in self._node_names:
            count += 1
        self._next[base] = count + 1
        name = f"{base}_{count}"
        self._node_names.add(name)
        return name


def take_over(
    graph: onnx_ir.Graph,
    old: onnx_ir.Value,
    new: onnx_ir.Value,
    uses: Sequence[tuple[onnx_ir.Node, int]],
) -> None:
    """Let `uses` of `old`, and the graph's outputs, read `new` instead."""
    for node, k in uses:
        node.replace_input_with(k, new)
    for k, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[k] = new


def drop_unused(graph: onnx_ir.Graph, values: Sequence[onnx_ir.Value]) -> None:
    """Remove initializers among `values` that nothing reads any more."""
    for value in values:
        name = value.name or ""
        known = graph.initializers.get(name)
        if known is value and not value.uses() and not value.is_graph_output():
            graph.initializers.pop(name)
