"""`regions/<k>/graph.json`: one region as a graph of ONNX operators, for a vendor's graph engine.

The documents and their checks; region_export.py makes them, FORMATS.md describes every field.
Source: BYOC section 3.3, option 1 (standard graph representation).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from worker.compiler.package.archive import damaged
from worker.compiler.package.manifest import decode

GRAPH_FORMAT_VERSION = 1

Scalar: TypeAlias = int | float | str


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor that lies in one of the bundle's safetensors members."""

    member: str
    tensor: str
    """Its name there."""
    sha256: str
    """Of its bytes, row-major and little-endian."""
    dtype: str
    shape: tuple[int, ...]


class Quantization(msgspec.Struct, frozen=True):
    """How an integer entry stands for real numbers: real = (stored - zero_point) * scale."""

    scale: int
    """Entry id."""
    zero_point: int | None
    """Entry id; None: zero."""
    axis: int | None
    """Dimension the parameters run along; None: one pair for the whole tensor."""
    scale_values: tuple[float, ...] | None
    """The scale where it is a constant."""
    zero_point_values: tuple[int, ...] | None


class Entry(msgspec.Struct, frozen=True):
    """One value; its position in the table is its id."""

    id: int
    name: str
    role: str
    """`input`, `constant`, `intermediate` or `output`."""
    dtype: str
    shape: tuple[int, ...]
    stored: StoredTensor | None = None
    """Where a constant's value is."""
    quantization: Quantization | None = None


class Attribute(msgspec.Struct, frozen=True):
    """One attribute; `type` is ONNX's name of the attribute type, in lower case."""

    name: str
    type: str
    value: Scalar | tuple[Scalar, ...] | StoredTensor
    """Floats that JSON has no number for are the strings `inf`, `-inf` and `nan`."""


class Node(msgspec.Struct, frozen=True):
    """One operator; its position in the list is its id."""

    id: int
    name: str
    op_type: str
    domain: str
    """Empty for ONNX's own operators."""
    attributes: tuple[Attribute, ...]
    inputs: tuple[int | None, ...]
    """Entry ids; None where an optional input is left out."""
    outputs: tuple[int | None, ...]
    composite: int | None
    """The composite it is a part of."""


class CompositeRow(msgspec.Struct, frozen=True):
    """Nodes that the target runs as one operator."""

    id: int
    name: str
    kind: str
    """`pattern` or `cluster`."""
    intrinsic: str | None
    nodes: tuple[int, ...]


class LayoutRow(msgspec.Struct, frozen=True):
    """What laying out did to one tensor of the compiled kernels; the graph itself is ONNX's."""

    entry: int | None
    """None for tensors that exist only in the kernels."""
    tensor: str
    from_layout: str
    to_layout: str
    kind: str
    reason: str


class RegionGraph(msgspec.Struct, frozen=True):
    """A region, whole."""

    format_version: int
    region: int
    target: str
    opsets: dict[str, int]
    """By domain; ONNX's own is the empty string."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    entries: tuple[Entry, ...]
    nodes: tuple[Node, ...]
    """In execution order."""
    composites: tuple[CompositeRow, ...]
    layouts: tuple[LayoutRow, ...]


def decode_region_graph(data: bytes, name: str = "graph.json") -> RegionGraph:
    """Read and check a region's graph.

    Raises:
        InputError: TW-RUN-001 when it is not such a document, or its ids do not fit together.
    """
    graph = decode(data, RegionGraph, name)
    if graph.format_version != GRAPH_FORMAT_VERSION:
        raise damaged(
            f"{name} has format {graph.format_version}, this version reads {GRAPH_FORMAT_VERSION}"
        )
    _check_ids([entry.id for entry in graph.entries], "entry", name)
    _check_ids([node.id for node in graph.nodes], "node", name)
    _check_ids([composite.id for composite in graph.composites], "composite", name)
    _check_references(graph, name)
    _check_order(graph, name)
    return graph


def _check_ids(found: Sequence[int], what: str, name: str) -> None:
    for position, number in enumerate(found):
        if number != position:
            raise damaged(f"{name}: {what} {number} stands at position {position}")


def _check_references(graph: RegionGraph, name: str) -> None:
    used: list[tuple[str, int, int]] = [
        ("entry", k, len(graph.entries)) for k in (*graph.inputs, *graph.outputs)
    ]
    for node in graph.nodes:
        used += [
            ("entry", k, len(graph.entries)) for k in (*node.inputs, *node.outputs) if k is not None
        ]
        if node.composite is not None:
            used.append(("composite", node.composite, len(graph.composites)))
    for entry in graph.entries:
        if entry.quantization is not None:
            parameters = (entry.quantization.scale, entry.quantization.zero_point)
            used += [("entry", k, len(graph.entries)) for k in parameters if k is not None]
        if (entry.role == "constant") != (entry.stored is not None):
            raise damaged(f"{name}: entry {entry.id} is {entry.role} and its value is not so")
    used += [("node", k, len(graph.nodes)) for c in graph.composites for k in c.nodes]
    used += [("entry", r.entry, len(graph.entries)) for r in graph.layouts if r.entry is not None]
    for what, number, count in used:
        if not 0 <= number < count:
            raise damaged(f"{name} names {what} {number} of {count}")


def _check_order(graph: RegionGraph, name: str) -> None:
    """Every value is defined once, before it is read."""
    known = {e.id for e in graph.entries if e.role in ("input", "constant")}
    if set(graph.inputs) != {e.id for e in graph.entries if e.role == "input"}:
        raise damaged(f"{name}: the inputs and the roles of entries disagree")
    for node in graph.nodes:
        early = [k for k in node.inputs if k is not None and k not in known]
        if early:
            raise damaged(f"{name}: node {node.id} reads entry {early[0]} before it is written")
        made = [k for k in node.outputs if k is not None]
        again = [k for k in made if k in known]
        if again:
            raise damaged(f"{name}: node {node.id} writes entry {again[0]} again")
        known.update(made)
    missing = [k for k in graph.outputs if k not in known]
    if missing:
        raise damaged(f"{name}: nothing writes output entry {missing[0]}")
