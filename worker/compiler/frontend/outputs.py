"""Graph outputs that no node computes."""

from __future__ import annotations

import onnx_ir

from worker.compiler.frontend.edit import Names, constant_of


def compute_outputs(model: onnx_ir.Model) -> None:
    """Give every output that is a constant a node of its own, under the output's name.

    A constant is no data entry of a program unless a kernel reads it; what a node computes is.
    Outputs that are inputs stay as they are: the runtime keeps what it was fed.
    """
    graph = model.graph
    names: Names | None = None
    for position, value in enumerate(graph.outputs):
        if constant_of(value) is None or value.name is None:
            continue
        names = names or Names(graph)
        name = value.name
        node = onnx_ir.node("Identity", [value], name=f"{name}/output")
        (result,) = node.outputs
        result.type, result.shape = value.type, value.shape
        graph.initializers.pop(name)
        graph.outputs[position] = result
        value.name = names.fresh(f"{name}_constant")
        graph.register_initializer(value)
        result.name = name
        graph.append(node)
