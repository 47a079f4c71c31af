"""How long the lists are that shape inference would carry along: counted before it does.

With data propagation ONNX's inference keeps a list for every small tensor that certain operators
read, whatever its type: its elements, or one unknown entry for each element of any other list of
known length.  So an Add of two vectors of four million floats takes 700 MB, and a Concat of a list
with itself doubles it: sixty nodes ask for 2**60 entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod
from typing import Any

import onnx.defs
import onnx_ir

MAX_PROPAGATED = 1 << 16
"""Entries of one list.  Shapes have a dozen; where a model's lists are longer, they are not carried
along, and folding (which counts too) finds what can be known."""
_RANK = 64
"""At least the entries of any shape."""
_SIZED_BY_DATA = frozenset(
    {"Reshape", "Expand", "ConstantOfShape", "Range", "Tile", "Pad", "OneHot", "Resize", "Upsample",
     "CenterCropPad", "AffineGrid", "HannWindow", "HammingWindow", "BlackmanWindow"}
)  # fmt: skip
"""What they make has the length that a value says, which propagation may find out."""
_INDICES = frozenset({int(onnx_ir.DataType.INT32), int(onnx_ir.DataType.INT64)})
_RANK_FROM_LENGTH = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
"""Input whose length is the rank of the result, or a lower bound of it."""

Lengths = Mapping[str, "int | None"]
"""By value: its elements where it is a scalar or a list of known length, 0 where it has another
rank, None where it is a list of unknown length.  Absent: not even that is known."""


@dataclass(frozen=True, slots=True)
class _Step:
    kind: str
    reads: list[str]
    makes: list[str]
    own: int
    """Entries that it makes of nothing."""


def may_propagate(model: Any) -> bool:
    """Whether inference of this ModelProto may keep the elements of lists.

    Types of values that the model states are read, so it should have been inferred without
    propagation first.
    Cost: linear in nodes and names.
    """
    graph = model.graph
    lengths: dict[str, int | None] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            lengths[value.name] = _length(
                [d.dim_value if d.HasField("dim_value") else None for d in dims]
            )
    for tensor in graph.initializer:
        lengths[tensor.name] = _stored(list(tensor.dims), tensor.data_type)
    return _longest(_steps(graph), lengths) <= MAX_PROPAGATED


def may_propagate_in(graph: onnx_ir.Graph) -> bool:
    """The same question of a parsed graph."""
    lengths: dict[str, int | None] = {}
    made = (value for node in graph.all_nodes() for value in node.outputs)
    for value in (*graph.inputs, *made):
        if value.name and value.shape is not None:
            lengths[value.name] = _length([d if isinstance(d, int) else None for d in value.shape])
    for name, value in graph.initializers.items():
        if value.const_value is not None:
            tensor = value.const_value
            lengths[name] = _stored(list(tensor.shape.numpy()), int(tensor.dtype))
    return _longest(_parsed_steps(graph), lengths) <= MAX_PROPAGATED


def _stored(dims: list[int], data_type: int) -> int:
    """Of a constant: those of other types are weights, which nobody carries."""
    return prod(dims) if data_type in _INDICES and len(dims) <= 1 else 0


def _length(dims: list[int | None]) -> int | None:
    if len(dims) > 1:
        return 0
    return dims[0] if dims else 1


@lru_cache(maxsize=1024)
def _carries(kind: str) -> bool:
    """Whether the operator has lists carried along."""
    try:
        return bool(onnx.defs.get_schema(kind).has_data_propagation_function)
    except onnx.defs.SchemaError:
        return False


def _longest(steps: Iterable[_Step], lengths: Lengths) -> float:
    """An upper bound of the longest list that is read or made by what has lists carried along."""
    carried: dict[str, float] = {}
    longest: float = 0

    def size(name: str) -> float:
        return max(carried.get(name, 0), lengths.get(name) or 0)

    for step in steps:
        given = [size(name) for name in step.reads]
        joined = sum(given) if step.kind == "Concat" else max(given, default=0)
        made = max(step.own, joined)
        if step.kind in _SIZED_BY_DATA and not _has_rank_above_one(step, lengths):
            made = inf
        for name in step.makes:
            known = lengths.get(name)
            # Of a list of unknown length inference may still learn the length.
            carried[name] = made if known is None else known
        if _carries(step.kind):
            longest = max(longest, *given, joined if step.kind == "Concat" else 0)
    return longest


def _has_rank_above_one(step: _Step, lengths: Lengths) -> bool:
    place = _RANK_FROM_LENGTH.get(step.kind)
    if place is None or place >= len(step.reads):
        return False
    return (lengths.get(step.reads[place]) or 0) > 1


def _steps(graph: Any) -> Iterator[_Step]:
    for node in graph.node:
        own = _RANK if node.op_type == "Shape" else 0
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _steps(inner)
            own = max(own, prod(attribute.t.dims) if attribute.HasField("t") else 0)
        yield _Step(node.op_type, list(node.input), list(node.output), own)


def _parsed_steps(graph: onnx_ir.Graph) -> Iterator[_Step]:
    for node in graph.all_nodes():
        reads = [value.name or "" for value in node.inputs if value is not None]
        made = [value.name or "" for value in node.outputs]
        yield _Step(node.op_type, reads, made, _RANK if node.op_type == "Shape" else 0)
