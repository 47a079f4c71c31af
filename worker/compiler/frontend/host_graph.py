"""`host.onnx`: the user's model with one custom node in place of each accelerator region."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir

from worker.compiler.errors import InternalError
from worker.compiler.frontend.edges import NARROW_INTEGERS
from worker.compiler.frontend.exact_products import multiply_exactly
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.slice import captured, declare, slice_model

REGION_DOMAIN = "tilewright"
REGION_OPERATOR = "Region"
_MOST_BYTES = (1 << 31) - (1 << 22)
"""Of a model in one file; what is kept free is for everything but the weights."""


@dataclass(frozen=True, slots=True)
class RegionNode:
    """One accelerator region as a node: values by name, in the order of its data entries."""

    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """What takes one place in the order of execution."""

    position: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    nodes: tuple[onnx.NodeProto, ...]


def host_graph(
    model: OnnxModel, hosts: Sequence[int], regions: Sequence[RegionNode], digest: str
) -> bytes:
    """Serialise the model: nodes at positions `hosts` as they are, regions as custom nodes.

    Node `Region` of domain `tilewright` has the attributes `region` and `digest`.  Values keep
    names and types; a region takes and gives integers of 4 and 2 bits as bytes, by casts beside
    it.  Same model and digest, same bytes.  Empty where ONNX cannot say it: the host's weights
    are more than one file holds, or a 4-bit float goes into or comes out of a region.

    Raises:
        InternalError: the nodes depend on each other in a circle.
    Cost: linear in nodes; memory for the host's weights.
    """
    nodes = list(model.ir.graph)
    chosen = [nodes[k] for k in hosts]
    initializers = model.ir.graph.initializers
    values = {v.name: v for v in model.ir.graph.inputs if v.name}
    values |= {v.name: v for node in nodes for v in node.outputs if v.name}
    made = {v.name for node in chosen for v in node.outputs}
    made |= {name for region in regions for name in region.outputs}
    ends = [v.name or "" for v in model.ir.graph.outputs]
    wanted = dict.fromkeys(v.name or "" for v in captured(chosen))
    wanted |= dict.fromkeys(name for region in regions for name in region.inputs)
    wanted |= dict.fromkeys(ends)
    stored = {n: initializers[n].const_value for n in wanted if n in initializers and n not in made}
    if sum(t.nbytes for t in stored.values() if t is not None) > _MOST_BYTES:
        return b""
    pieces = [_host_piece(k, nodes[k]) for k in hosts]
    for region in regions:
        piece = _region_piece(region, values, len(nodes) + region.index, digest)
        if piece is None:
            return b""
        pieces.append(piece)
    proto = slice_model(model, "host", stored)
    proto.opset_import.add(domain=REGION_DOMAIN, version=1)
    for value in model.ir.graph.inputs:
        declare(proto.graph.input.add(), value.name or "", value)
    for name in ends:
        declare(proto.graph.output.add(), name, values.get(name))
    for piece in _ordered(pieces):
        proto.graph.node.extend(piece.nodes)
    for region in regions:
        # Nothing can infer what a custom node gives.
        for name in region.outputs:
            if name not in ends:
                declare(proto.graph.value_info.add(), name, values.get(name))
    return bytes(multiply_exactly(proto).SerializeToString(deterministic=True))


def _host_piece(position: int, node: onnx_ir.Node) -> _Piece:
    proto = onnx_ir.serde.serialize_node(node)
    reads = tuple(v.name or "" for v in captured([node]))
    return _Piece(position, reads, tuple(v.name or "" for v in node.outputs), (proto,))


def _region_piece(
    region: RegionNode, values: dict[str, onnx_ir.Value], position: int, digest: str
) -> _Piece | None:
    """The custom node, and the casts that make bytes of narrow integers."""
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    ends: list[list[str]] = []
    for side, names in enumerate((region.inputs, region.outputs)):
        ends.append([])
        for name in names:
            kind = values[name].dtype if name in values else None
            if kind is onnx_ir.DataType.FLOAT4E2M1:
                return None
            narrow = kind.value if kind is not None else 0
            if narrow not in NARROW_INTEGERS:
                ends[side].append(name)
                continue
            inner = f"{name}.region{region.index}"
            while inner in values:
                inner += "_"
            ends[side].append(inner)
            if side == 0:
                to = NARROW_INTEGERS[narrow]
                before.append(onnx.helper.make_node("Cast", [name], [inner], to=to))
            else:
                after.append(onnx.helper.make_node("Cast", [inner], [name], to=narrow))
    node = onnx.helper.make_node(
        REGION_OPERATOR, ends[0], ends[1], name=f"{REGION_DOMAIN}/region{region.index}",
        domain=REGION_DOMAIN, region=region.index, digest=digest,
    )  # fmt: skip
    return _Piece(position, region.inputs, region.outputs, (*before, node, *after))


def _ordered(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Every piece behind those that it reads from; of several that may come next, the first."""
    maker = {name: k for k, piece in enumerate(pieces) for name in piece.writes if name}
    needs = [{maker[n] for n in piece.reads if n in maker} - {k} for k, piece in enumerate(pieces)]
    users: list[list[int]] = [[] for _ in pieces]
    for k, needed in enumerate(needs):
        for other in needed:
            users[other].append(k)
    waits = [len(needed) for needed in needs]
    ready = [(piece.position, k) for k, piece in enumerate(pieces) if not waits[k]]
    heapq.heapify(ready)
    found: list[_Piece] = []
    while ready:
        _, k = heapq.heappop(ready)
        found.append(pieces[k])
        for user in users[k]:
            waits[user] -= 1
            if not waits[user]:
                heapq.heappush(ready, (pieces[user].position, user))
    if len(found) != len(pieces):
        raise InternalError(
            "TW-INT-001", "regions and host nodes depend on each other in a circle",
            stage="package",
        )  # fmt: skip
    return found
