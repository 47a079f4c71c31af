"""Which tensors of a region should be in the accelerator's layout, before asking whether they can.

Anchors (operators of the policy's op types) want their activations in it; a tensor that is read
and written at the same places by one operator follows the other, so that a chain of pointwise
operators between two anchors needs no conversion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.layout.roles import CHANNEL_OPS, Anchor, anchor_of
from worker.compiler.machine.layout_policy import LayoutPolicy

_LEAD = 2
"""Dimensions before space: batch and channels."""
_MAX_SPATIAL = 3


@dataclass(frozen=True, slots=True)
class Demand:
    """What the anchors of a region ask for."""

    anchors: Mapping[int, Anchor]
    """By position of the operator."""
    wanted: Mapping[str, int]
    """Activations of anchors: position of the first anchor that touches each."""
    following: frozenset[str]
    """Wanted tensors, and those inside the region that follow one."""
    foreign: tuple[int, ...]
    """Operators of the policy's op types whose tensors have no channels; left as they are."""


def find_demand(
    graph: Graph, policy: LayoutPolicy, composites: Sequence[tuple[str, ...]]
) -> Demand:
    """Anchors and what follows them.

    The members of a composite that holds an anchor are anchors where they work place by place:
    the accelerator runs them as one operator.

    Cost: linear in the region (union-find).
    """
    anchors: dict[int, Anchor] = {}
    foreign: list[int] = []
    constants = frozenset(graph.constants)
    position = {op.name: k for k, op in enumerate(graph.ops)}
    for k, op in enumerate(graph.ops):
        if op.origin.op_type not in policy.op_types:
            continue
        if op.origin.op_type not in CHANNEL_OPS:
            foreign.append(k)
        elif _has_channels(graph.tensors[op.write.tensor]):
            anchors[k] = anchor_of(op, graph.tensors, constants)
    for members in composites:
        places = [position[name] for name in members if name in position]
        if not any(k in anchors for k in places):
            continue
        for k in places:
            op = graph.ops[k]
            if k not in anchors and _is_place_by_place(op, graph):
                anchors[k] = anchor_of(op, graph.tensors, constants)
    wanted: dict[str, int] = {}
    for k in sorted(anchors):
        op = graph.ops[k]
        for name in (*(op.reads[s].tensor for s in anchors[k].activations), op.write.tensor):
            wanted.setdefault(name, k)
    return Demand(
        MappingProxyType(anchors), MappingProxyType(wanted), _followers(graph, wanted),
        tuple(foreign),
    )  # fmt: skip


def _has_channels(tensor: Tensor) -> bool:
    return _LEAD < len(tensor.shape) <= _LEAD + _MAX_SPATIAL


def _is_place_by_place(op: TensorOp, graph: Graph) -> bool:
    if not _has_channels(graph.tensors[op.write.tensor]):
        return False
    return any(_corresponds(r, op.write, graph.tensors) for r in op.reads)


def _corresponds(read: Access, write: Access, tensors: Mapping[str, Tensor]) -> bool:
    """Whether each dimension of the operand is the same dimension of the result.

    The indices are equal up to a constant (pointwise, concat, split, pad), or one of the two has
    a single element there (broadcast, a kept dimension of a reduction).
    """
    if len(read.index) != len(write.index):
        return False
    source, target = tensors[read.tensor].shape, tensors[write.tensor].shape
    return all(
        (a - b).is_const or 1 in (m, n)
        for a, b, m, n in zip(read.index, write.index, source, target, strict=True)
    )


def _followers(graph: Graph, wanted: Mapping[str, int]) -> frozenset[str]:
    """Wanted tensors and the tensors inside the region in a class with one."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        top = name
        while parent.setdefault(top, top) != top:
            top = parent[top]
        while parent[name] != top:
            parent[name], name = top, parent[name]
        return top

    fixed = {*graph.inputs, *graph.constants}
    for op in graph.ops:
        if not _has_channels(graph.tensors[op.write.tensor]):
            continue
        for read in op.reads:
            if read.tensor not in fixed and _corresponds(read, op.write, graph.tensors):
                parent[root(read.tensor)] = root(op.write.tensor)
    marked = {root(name) for name in wanted if name not in fixed}
    return frozenset(
        name
        for name in graph.tensors
        if name in wanted or (name not in fixed and root(name) in marked)
    )
