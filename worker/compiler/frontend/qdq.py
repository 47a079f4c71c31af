"""Find quantised clusters: DequantizeLinear -> core -> optional Relu/Clip -> QuantizeLinear.

Q/DQ nodes around float operators are how a model says "these are integers".  A cluster is the set
of nodes that an integer device runs as one operator.  Its dequantisations are free: a
DequantizeLinear node that several operators read belongs to the cluster of each of them, and is
computed in memory only when something outside all clusters reads it too.  All other nodes belong to
one cluster at most.  A QuantizeLinear that reads a dequantisation directly is a cluster too: a
change of parameters between integers, its own core.
Source: BYOC section 3.1 (composite operators), on ONNX's QDQ convention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir

from worker.compiler.frontend.ops.emitter import Emitter
from worker.compiler.frontend.ops.qcluster import express_cluster
from worker.compiler.frontend.ops.qcluster_call import (
    ACTIVATIONS,
    CONTRACTIONS,
    CORES,
    Chain,
    Members,
)
from worker.compiler.frontend.ops.refusal import Refusal
from worker.compiler.rejection import Rejection

_QUANTIZED = frozenset(
    {onnx_ir.DataType.INT8, onnx_ir.DataType.UINT8, onnx_ir.DataType.INT16, onnx_ir.DataType.UINT16}
)
_DATA_INPUTS = {"Clip": 1, "Pad": 1, "Resize": 1, "Upsample": 1, "Pow": 1}
"""Cores whose later inputs are parameters, which no quantisation precedes."""


@dataclass(frozen=True, slots=True)
class QdqCluster:
    """One cluster; positions refer to the node list that it was found in."""

    nodes: tuple[int, ...]
    """All positions, ascending: dequantisations (also shared ones), core, activation, Q."""
    core: int
    """Where the cluster's operators stand in execution order."""
    op_type: str
    """Of the core."""


def find_clusters(nodes: Sequence[onnx_ir.Node], outputs: Sequence[str]) -> tuple[QdqCluster, ...]:
    """The clusters of `nodes` (topologically sorted), in order of their cores.

    `outputs` are values needed outside; one of them inside a chain stops it, as does a second
    reader of the core's or the activation's result.  Whether a cluster can be expressed is asked
    of `cluster_rejection`.  Cost: linear in nodes and edges.
    """
    position = {id(node): k for k, node in enumerate(nodes)}
    wanted = frozenset(outputs)
    found = []
    for k, node in enumerate(nodes):
        if not _is_standard(node) or node.op_type not in (*CORES, "QuantizeLinear"):
            continue
        sources = _sources(node, nodes, position)
        chains = _chains(node, position, wanted)
        if sources is None or chains is None:
            continue
        members = {k, *sources.values()}
        for chain in chains:
            members.update(chain)
        found.append(QdqCluster(tuple(sorted(members)), k, node.op_type))
    return tuple(found)


def members_of(nodes: Sequence[onnx_ir.Node], cluster: QdqCluster) -> Members:
    """The cluster's nodes by role.  `nodes` is the list it was found in."""
    position = {id(nodes[k]): k for k in cluster.nodes}
    core = nodes[cluster.core]
    sources = _sources(core, nodes, position) or {}
    chains = _chains(core, position, frozenset()) or ()
    return Members(
        core,
        {k: nodes[at] for k, at in sources.items()},
        tuple(
            Chain(nodes[chain[0]] if len(chain) > 1 else None, nodes[chain[-1]]) for chain in chains
        ),
    )


def cluster_rejection(
    nodes: Sequence[onnx_ir.Node], cluster: QdqCluster, opset: int
) -> Rejection | None:
    """Why the cluster has no integer form, or None when it has one.

    Cost: that of expressing the cluster alone; reads scales, zero points and biases, no weights.
    """
    values = [v for k in cluster.nodes for v in (*nodes[k].inputs, *nodes[k].outputs)]
    emitter = Emitter(v.name for v in values if v is not None and v.name)
    try:
        express_cluster(members_of(nodes, cluster), opset, emitter)
    except Refusal as refusal:
        return refusal.rejection
    return None


def _sources(
    core: onnx_ir.Node, nodes: Sequence[onnx_ir.Node], position: Mapping[int, int]
) -> dict[int, int] | None:
    """Input position of the core -> position of its dequantisation; None: this is no cluster.

    Every input is dequantised or constant, at least one dequantised from computed integers, and
    both operands of a contraction are dequantised.
    """
    found: dict[int, int] = {}
    has_activation = False
    for k, value in enumerate(core.inputs):
        if value is None or not value.name:
            continue
        producer = value.producer()
        at = None if producer is None else position.get(id(producer))
        if at is not None and nodes[at].op_type == "DequantizeLinear":
            if not _is_dequantisation(nodes[at]):
                return None
            found[k] = at
            source = nodes[at].inputs[0]
            has_activation = has_activation or (source is not None and not _is_constant(source))
        elif not _is_constant(value):
            return None
    if not has_activation or any(k >= _DATA_INPUTS.get(core.op_type, k + 1) for k in found):
        return None
    if core.op_type in CONTRACTIONS and not {0, 1} <= found.keys():
        return None
    return found


def _chains(
    core: onnx_ir.Node, position: Mapping[int, int], wanted: frozenset[str]
) -> list[tuple[int, ...]] | None:
    """Per used output of the core: (activation,) quantisation; None when one has no such chain."""
    if core.op_type == "QuantizeLinear":
        return [(position[id(core)],)] if _is_quantisation(core) else None
    chains = []
    for value in core.outputs:
        if not value.name or not (value.uses() or value.is_graph_output() or value.name in wanted):
            continue
        chain = _chain(value, position, wanted)
        if chain is None:
            return None
        chains.append(chain)
    return chains or None


def _chain(
    value: onnx_ir.Value, position: Mapping[int, int], wanted: frozenset[str]
) -> tuple[int, ...] | None:
    user = _only_reader(value, position, wanted)
    if user is None:
        return None
    chain: tuple[int, ...] = ()
    is_activation = user.op_type in ACTIVATIONS and _is_standard(user)
    if is_activation and all(_is_constant(v) for v in user.inputs[1:] if v is not None):
        chain = (position[id(user)],)
        user = _only_reader(user.outputs[0], position, wanted)
    if user is None or not _is_quantisation(user):
        return None
    return (*chain, position[id(user)])


def _only_reader(
    value: onnx_ir.Value, position: Mapping[int, int], wanted: frozenset[str]
) -> onnx_ir.Node | None:
    """The one node of the list that reads `value`, as its first input, when nothing else does."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output() or value.name in wanted:
        return None
    (use,) = uses
    return use.node if use.idx == 0 and id(use.node) in position else None


def _is_constant(value: onnx_ir.Value | None) -> bool:
    return value is not None and value.const_value is not None


def _is_standard(node: onnx_ir.Node) -> bool:
    """Whether the node is of ONNX's own domain: others reuse its names."""
    return node.domain in ("", "ai.onnx")


def _is_quantisation(node: onnx_ir.Node) -> bool:
    return (
        node.op_type == "QuantizeLinear"
        and _is_standard(node)
        and node.outputs[0].dtype in _QUANTIZED
        and all(_is_constant(v) for v in node.inputs[1:] if v is not None)
    )


def _is_dequantisation(node: onnx_ir.Node) -> bool:
    """From small integers, or from a constant of wide ones (a bias)."""
    source = node.inputs[0]
    has_constants = all(_is_constant(v) for v in node.inputs[1:] if v is not None)
    if source is None or not has_constants or not _is_standard(node):
        return False
    dtype = source.dtype
    if dtype is None and source.const_value is not None:
        dtype = source.const_value.dtype
    return dtype in _QUANTIZED or (dtype == onnx_ir.DataType.INT32 and _is_constant(source))
