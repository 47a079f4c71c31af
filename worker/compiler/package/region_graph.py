"""`regions/<k>/graph.json`: one region as a graph of ONNX operators, for a vendor's graph engine.

The documents and their checks; region_export.py makes them, FORMATS.md describes every field.
Source: BYOC section 3.3, option 1 (standard graph representation).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

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
