"""Operators that ONNX defines by others, for those of them that have no kernel in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from worker.compiler.frontend.expand import function_model


@dataclass(frozen=True, slots=True)
class Body:
    """Nodes in the place of one."""

    nodes: Sequence[onnx.NodeProto]
    types: Mapping[str, onnx.TypeProto]
    """Of the values between them."""


def body_of(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], version: int,
    fresh: Callable[[], str],
) -> Body | None:  # fmt: skip
    """What a node of the standard domain stands for in an opset, between its own inputs and
    outputs; None where there is no body, or one that means something else in this opset.

    `types`: of the model's values; `fresh` gives new names.
    """
    if any(name and name not in types for name in node.input):
        return None
    kinds = [types[name] if name else onnx.TypeProto() for name in node.input]
    found = function_model(node, kinds, version)
    if found is None or not _means_the_same(found, version):
        return None
    try:
        inferred = onnx.shape_inference.infer_shapes(found).graph
    except onnx.shape_inference.InferenceError:
        return None
    names = {"": ""}
    graph = found.graph
    names.update(zip((v.name for v in graph.input), filter(None, node.input), strict=False))
    given = dict(names)
    nodes: list[onnx.NodeProto] = []
    for made, wanted in zip(graph.output, filter(None, node.output), strict=True):
        if made.name in given:
            nodes.append(onnx.NodeProto(op_type="Identity", input=[given[made.name]],
                                        output=[wanted]))  # fmt: skip
        else:
            names[made.name] = wanted
    for inner in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        for name in inner.output:
            names.setdefault(name, "" if not name else fresh())
        copy.input[:] = [names[name] for name in inner.input]
        copy.output[:] = [names[name] for name in inner.output]
        nodes.append(copy)
    learned = (*inferred.value_info, *inferred.output)
    return Body(nodes, {names[v.name]: v.type for v in learned if v.HasField("type")})


def _means_the_same(body: onnx.ModelProto, version: int) -> bool:
    """Whether every operator of a body is the same one in another opset."""
    versions = {entry.domain: entry.version for entry in body.opset_import}
    own = versions.get("", version)
    try:
        return all(
            node.domain == ""
            and onnx.defs.get_schema(node.op_type, own, "").since_version
            == onnx.defs.get_schema(node.op_type, version, "").since_version
            for node in body.graph.node
        )
    except onnx.defs.SchemaError:
        return False
