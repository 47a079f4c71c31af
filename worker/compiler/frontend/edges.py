"""Give a stand-alone ONNX model other element types at its edge, by casts just inside."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

NARROW_INTEGERS: Mapping[int, int] = {
    onnx.TensorProto.INT4: onnx.TensorProto.INT8, onnx.TensorProto.UINT4: onnx.TensorProto.UINT8,
    onnx.TensorProto.INT2: onnx.TensorProto.INT8, onnx.TensorProto.UINT2: onnx.TensorProto.UINT8,
}  # fmt: skip
"""ONNX Runtime packs these; kernels and home memory hold one in a byte (decision 0020)."""


def recast_edges(model: onnx.ModelProto, kinds: Mapping[int, int]) -> None:
    """Retype inputs and outputs whose element type is a key of `kinds` to its value.

    Names stay: what the nodes call `v` becomes an inner value.  An output that is an input too
    stays one.  Edits `model`.

    Cost: linear in the nodes, sub-graphs included.
    """
    graph = model.graph
    given = {value.name for value in graph.input}
    taken = given | {name for node in graph.node for name in node.output}
    inner: dict[str, str] = {}
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    for value in (*graph.input, *(v for v in graph.output if v.name not in given)):
        kind = value.type.tensor_type.elem_type
        if kind not in kinds:
            continue
        name = f"{value.name}.inside"
        while name in taken:
            name += "_"
        inner[value.name] = name
        value.type.tensor_type.elem_type = kinds[kind]
        if value.name in given:
            before.append(onnx.helper.make_node("Cast", [value.name], [name], to=kind))
        else:
            after.append(onnx.helper.make_node("Cast", [name], [value.name], to=kinds[kind]))
    if not inner:
        return
    for value in graph.output:
        if value.name in given and value.name in inner:
            value.type.tensor_type.elem_type = kinds[value.type.tensor_type.elem_type]
    nodes = list(graph.node)
    for node in nodes:
        _rename(node, inner)
    del graph.node[:]
    graph.node.extend([*before, *nodes, *after])


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename what a node reads and writes, its sub-graphs' reads from outside included."""
    for values in (node.input, node.output):
        for k, name in enumerate(values):
            values[k] = names.get(name, name)
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            own = {v.name for v in (*graph.input, *graph.initializer)}
            own |= {name for inside in graph.node for name in inside.output}
            seen = {old: new for old, new in names.items() if old not in own}
            for inside in graph.node:
                _rename(inside, seen)
            for value in graph.output:
                value.name = seen.get(value.name, value.name)
