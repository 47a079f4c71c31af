"""Small edits of an ONNX graph: fresh names, new constants, rewired outputs."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnx_ir


class Names:
    """Value names not used anywhere in the model."""

    def __init__(self, graph: onnx_ir.Graph) -> None:
        self._used: set[str] = {v.name for v in graph.inputs if v.name}
        self._used.update(graph.initializers)
        for node in graph.all_nodes():
            self._used.update(v.name for v in node.outputs if v.name)
        for inner in graph.subgraphs():
            self._used.update(v.name for v in inner.inputs if v.name)
            self._used.update(inner.initializers)

    def fresh(self, base: str) -> str:
        """`base`, or `base` with the first free number."""
        name, count = base, 0
        while name in self._used:
            count += 1
            name = f"{base}_{count}"
        self._used.add(name)
        return name


def add_constant(
    graph: onnx_ir.Graph, name: str, array: npt.NDArray[Any], dtype: onnx_ir.DataType | None = None
) -> onnx_ir.Value:
    """A new initializer holding `array`."""
    tensor = onnx_ir.tensor(array, dtype=dtype, name=name)
    return add_initializer(graph, name, tensor)


def add_initializer(graph: onnx_ir.Graph, name: str, tensor: Any) -> onnx_ir.Value:
    """A new initializer holding `tensor` (which may be lazy)."""
    value = onnx_ir.Value(
        name=name,
        shape=onnx_ir.Shape(tensor.shape.numpy()),
        type=onnx_ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


def constant_of(value: onnx_ir.Value | None) -> Any:
    """The tensor of a constant value, or None.  A graph input never counts."""
    if value is None or value.is_graph_input() or value.producer() is not None:
        return None
    return value.const_value


def is_graph(attribute: onnx_ir.Attr) -> bool:
    """Whether an attribute holds one graph: the body of a control-flow node."""
    return attribute.type == onnx_ir.AttributeType.GRAPH
