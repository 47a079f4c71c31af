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
from worker.compiler.frontend.ops.emitter import Emitter
from worker.compiler.frontend.ops.node import express_node
from worker.compiler.frontend.ops.qcluster import express_cluster
from worker.compiler.frontend.ops.refusal import Refusal
from worker.compiler.frontend.qdq import QdqCluster, members_of
from worker.compiler.ir.graph import Graph
from worker.compiler.rejection import Rejection


@dataclass(frozen=True, slots=True)
class Expressed:
    """A region in the algebra."""

    graph: Graph
    constants: Mapping[str, Callable[[], npt.NDArray[Any]]]
    """Storage-type array of each of `graph.constants`, read or computed when called."""
    together: tuple[tuple[str, ...], ...] = ()
    """Names of operators that should be one kernel, in order: a sum and its rescaling."""


def express_region(
    nodes: Sequence[ir.Node],
    outputs: Sequence[str],
    opset: int,
    clusters: Sequence[QdqCluster] = (),
) -> Expressed:
    """Express `nodes` (topologically sorted), whose values `outputs` are needed outside.

    Tensors keep the ONNX value names; intermediates of a node that needs several operators are
    named after its first output plus a suffix.  Weights are not read, except small parameters.
    `clusters` (of `find_clusters`, those that `cluster_rejection` accepts) become integer
    operators; a dequantisation is computed in memory only if something else reads it too.

    Raises:
        InternalError: a node or cluster that would be rejected was put into the region.

    Cost: linear in the number of nodes.
    """
    reserved = [
        str(value.name)
        for node in nodes
        for value in (*node.inputs, *node.outputs)
        if value is not None and value.name
    ]
    emitter = Emitter(dict.fromkeys(reserved))
    cluster_of = {cluster.core: cluster for cluster in clusters}
    inside = _absorbed(nodes, outputs, clusters)
    together: list[tuple[str, ...]] = []
    for k, node in enumerate(nodes):
        try:
            if k in cluster_of:
                members = members_of(nodes, cluster_of[k])
                names = express_cluster(members, opset, emitter)
                together += [names] if names else []
            elif k not in inside:
                express_node(node, opset, emitter)
        except Refusal as refusal:
            why = refusal.rejection
            raise InternalError(
                "TW-INT-001",
                f"node {node.name!r} cannot be expressed: {why.code}: {why.sentence}",
                stage="express",
                node=node.name,
            ) from None
    return _finish(emitter, tuple(outputs), tuple(together))


def _absorbed(
    nodes: Sequence[ir.Node], outputs: Sequence[str], clusters: Sequence[QdqCluster]
) -> frozenset[int]:
    """Positions that clusters compute: all of theirs but dequantisations read elsewhere too."""
    position = {id(node): k for k, node in enumerate(nodes)}
    readers: dict[int, set[int]] = {}
    for cluster in clusters:
        for k in cluster.nodes:
            readers.setdefault(k, set()).add(cluster.core)
    wanted = set(outputs)
    absorbed: set[int] = set()
    for k, cores in readers.items():
        node = nodes[k]
        if node.op_type == "DequantizeLinear":
            value = node.outputs[0]
            used_at = {position.get(id(user.node)) for user in value.uses()}
            if value.name in wanted or any(at is not None and at not in cores for at in used_at):
                continue
        absorbed.add(k)
    return frozenset(absorbed)


def rejection(node: ir.Node, opset: int) -> Rejection | None:
    """Why `node` cannot be expressed, or None when it can.

    Cost: that of expressing the node alone.
    """
    emitter = Emitter(v.name for v in (*node.inputs, *node.outputs) if v is not None and v.name)
    try:
        express_node(node, opset, emitter)
    except Refusal as refusal:
        return refusal.rejection
    return None


def _finish(
    emitter: Emitter, outputs: tuple[str, ...], together: tuple[tuple[str, ...], ...]
) -> Expressed:
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
    values = MappingProxyType({n: emitter.constants[n] for n in constants})
    return Expressed(graph, values, together)
