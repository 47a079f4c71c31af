"""Cut a host region out of a model, as a stand-alone ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir

from worker.compiler.errors import InternalError
from worker.compiler.frontend.edges import NARROW_INTEGERS, recast_edges
from worker.compiler.frontend.exact_products import multiply_exactly
from worker.compiler.frontend.model import OnnxModel

_IR_VERSION_CEILING = 11
"""Older runtimes refuse newer files; nothing in a slice needs more, except newer opsets."""
_NEWEST_OPSET_OF_CEILING = 23


def host_submodel(
    model: OnnxModel, nodes: Sequence[onnx_ir.Node], inputs: Sequence[str], outputs: Sequence[str]
) -> bytes:
    """Serialise `nodes` (in execution order) with the initializers they read.

    `inputs` and `outputs` are value names; values of the outer graph that sub-graphs capture are
    added to the inputs.  Dynamic dimensions stay open.  Integers of 4 and 2 bits come and go as
    bytes.  Same region, same bytes.

    Raises:
        InternalError: an output is not defined inside the region.
    """
    read = captured(nodes)
    values: dict[str, onnx_ir.Value] = {v.name: v for v in read if v.name}
    for node in nodes:
        values.update((v.name, v) for v in node.outputs if v.name)
    produced = {v.name for node in nodes for v in node.outputs if v.name}
    initializers = model.ir.graph.initializers
    wanted = list(dict.fromkeys((*inputs, *(v.name or "" for v in read))))
    outside = [name for name in wanted if name and name not in produced]
    proto = slice_model(
        model,
        "host",
        {n: initializers[n].const_value for n in outside if n in initializers and n in values},
    )
    for name in outside:
        if name not in initializers:
            declare(proto.graph.input.add(), name, values.get(name))
    for name in outputs:
        if name not in produced and name not in initializers and name not in wanted:
            raise InternalError(
                "TW-INT-001", f"output {name!r} is not defined in the host region", stage="package"
            )
        declare(proto.graph.output.add(), name, values.get(name))
    for node in nodes:
        onnx_ir.serde.serialize_node_into(proto.graph.node.add(), node)
    recast_edges(proto, NARROW_INTEGERS)
    return bytes(multiply_exactly(proto).SerializeToString(deterministic=True))


def slice_model(
    model: OnnxModel, name: str, stored: Mapping[str, onnx_ir.TensorProtocol | None]
) -> onnx.ModelProto:
    """A model of the same operator sets with these initializers and no node yet."""
    proto = onnx.ModelProto()
    newer = model.opset > _NEWEST_OPSET_OF_CEILING
    proto.ir_version = model.ir.ir_version if newer else min(
        max(model.ir.ir_version, 8), _IR_VERSION_CEILING)  # fmt: skip
    for domain, version in sorted(model.ir.opset_imports.items()):
        proto.opset_import.add(domain=domain, version=version)
    proto.graph.name = name
    for key, tensor in stored.items():
        if tensor is not None:
            target = proto.graph.initializer.add()
            onnx_ir.serde.serialize_tensor_into(target, tensor)
            target.name = key
    return proto


def declare(target: onnx.ValueInfoProto, name: str, value: onnx_ir.Value | None) -> None:
    """Name a value, with its type where one is known."""
    target.name = name
    if value is None or value.type is None:
        return
    target.type.CopyFrom(onnx_ir.serde.serialize_value(value).type)
    # Names of unknown dimensions mean nothing outside the model they come from.
    for dim in target.type.tensor_type.shape.dim:
        if dim.WhichOneof("value") == "dim_param":
            dim.Clear()


def captured(nodes: Sequence[onnx_ir.Node]) -> list[onnx_ir.Value]:
    """Values the region reads and does not define, sub-graphs' captures included, each once."""
    inner: set[onnx_ir.Value] = {v for node in nodes for v in node.outputs}
    reads: dict[onnx_ir.Value, None] = {}
    stack = list(reversed(nodes))
    while stack:
        node = stack.pop()
        reads.update((v, None) for v in node.inputs if v is not None)
        for attribute in node.attributes.values():
            graphs: Sequence[onnx_ir.Graph] = ()
            if attribute.type == onnx_ir.AttributeType.GRAPH:
                graphs = (attribute.as_graph(),)
            elif attribute.type == onnx_ir.AttributeType.GRAPHS:
                graphs = attribute.as_graphs()
            for graph in graphs:
                inner.update(graph.inputs)
                inner.update(graph.initializers.values())
                inner.update(v for each in graph for v in each.outputs)
                stack += reversed(list(graph))
                reads.update((v, None) for v in graph.outputs)
    return [v for v in reads if v not in inner]
