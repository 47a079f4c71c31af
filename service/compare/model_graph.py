"""The model behind a run as nodes and edges, out of whatever document tells of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import msgspec


class Depth(IntEnum):
    """How much is known of a graph."""

    ORDER = 0
    """Names and operators, in the order of execution; that order stands for the edges."""
    EDGES = 1
    """Which node reads what another writes, too."""
    WHOLE = 2
    """Attributes, shapes, types and digests of weights, too."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the model."""

    dtype: str | None
    shape: tuple[int | str | None, ...] | None
    sha256: str | None = None
    """Of its bytes, where it is a constant."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the model as it was compiled, simplified."""

    name: str
    op_type: str
    inputs: tuple[str, ...] = ()
    """Names of tensors; empty where an optional input is left out."""
    outputs: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] | None = None
    """Name and value, as JSON; None: unknown, as everything of its tensors is."""


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """Nodes in topological order."""

    depth: Depth
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))


class _Tensor(msgspec.Struct):
    dtype: str | None = None
    shape: list[int | str | None] | None = None
    sha256: str | None = None


class _Node(msgspec.Struct):
    name: str
    op_type: str
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: dict[str, Any] | None = None


class _Graph(msgspec.Struct):
    """graph.json, of any version."""

    nodes: list[_Node]
    tensors: dict[str, _Tensor] | None = None


class _Stored(msgspec.Struct):
    sha256: str


class _Entry(msgspec.Struct):
    name: str
    dtype: str
    shape: list[int]
    stored: _Stored | None = None


class _Attribute(msgspec.Struct):
    name: str
    value: Any


class _RegionNode(msgspec.Struct):
    name: str
    op_type: str
    attributes: list[_Attribute]
    inputs: list[int | None]
    outputs: list[int | None]


class _Region(msgspec.Struct):
    """`regions/N/graph.json` of a bundle."""

    entries: list[_Entry]
    nodes: list[_RegionNode]


class _Placed(msgspec.Struct):
    node: str
    op_type: str


def graph_of(document: object) -> ModelGraph:
    """Read graph.json.

    Raises:
        msgspec.ValidationError: it has another shape.
    """
    told = msgspec.convert(document, _Graph)
    nodes = tuple(
        Node(n.name, n.op_type, tuple(n.inputs), tuple(n.outputs),
             None if n.attributes is None else _attributes(n.attributes.items()))
        for n in told.nodes
    )  # fmt: skip
    if told.tensors is None:
        return ModelGraph(Depth.EDGES, nodes)
    tensors = {name: _tensor(t.dtype, t.shape, t.sha256) for name, t in told.tensors.items()}
    return ModelGraph(Depth.WHOLE, nodes, MappingProxyType(tensors))


def graph_of_regions(documents: Sequence[object], placement: object) -> ModelGraph:
    """Join the graphs of a bundle's regions; of what runs on the host, names and operators only.

    Raises:
        msgspec.ValidationError: a document has another shape.
        IndexError: a region names an entry that it has not.
    """
    known: dict[str, Node] = {}
    tensors: dict[str, Tensor] = {}
    for document in documents:
        region = msgspec.convert(document, _Region)
        for entry in region.entries:
            digest = None if entry.stored is None else entry.stored.sha256
            tensors[entry.name] = _tensor(entry.dtype, entry.shape, digest)
        names = [entry.name for entry in region.entries]
        for node in region.nodes:
            known[node.name] = Node(
                node.name, node.op_type,
                tuple("" if k is None else names[k] for k in node.inputs),
                tuple("" if k is None else names[k] for k in node.outputs),
                _attributes((a.name, a.value) for a in node.attributes),
            )  # fmt: skip
    placed = msgspec.convert(placement, list[_Placed])
    nodes = [known.get(row.node, Node(row.node, row.op_type)) for row in placed]
    return ModelGraph(Depth.WHOLE, tuple(nodes), MappingProxyType(tensors))


def graph_of_placement(placement: object) -> ModelGraph:
    """Names and operators of a report's placement.

    Raises:
        msgspec.ValidationError: it has another shape.
    """
    rows = msgspec.convert(placement, list[_Placed])
    return ModelGraph(Depth.ORDER, tuple(Node(row.node, row.op_type) for row in rows))


def _tensor(
    dtype: str | None, shape: Sequence[int | str | None] | None, sha256: str | None
) -> Tensor:
    return Tensor(dtype, None if shape is None else tuple(shape), sha256)


def _attributes(pairs: Iterable[tuple[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Attributes by name; where a tensor is stored is no part of what it is."""
    return tuple(sorted((name, _text(value)) for name, value in pairs))


def _text(value: object) -> str:
    if isinstance(value, Mapping) and "sha256" in value:
        value = {key: value[key] for key in ("dtype", "shape", "sha256") if key in value}
    return json.dumps(value, sort_keys=True)
