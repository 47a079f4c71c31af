"""How long the lists are that shape inference would carry along: counted before it does.

With data propagation ONNX's inference keeps the elements of small lists.  A Concat of a list with
itself doubles it: sixty nodes ask for 2**60 entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any, TypeAlias

import onnx_ir

MAX_PROPAGATED = 1 << 16
"""Entries of one list.  Shapes have a dozen; where a model's lists are longer, they are not carried
along, and folding (which counts too) finds what can be known."""
_RANK = 64
"""At least the entries of any shape."""

_Step: TypeAlias = "tuple[str, list[str], list[str], int]"
"""Operator, names read, names made, entries that it makes of nothing."""


def may_propagate(model: Any) -> bool:
    """Whether inference of this ModelProto may keep the elements of lists.

    Cost: linear in nodes and names.
    """
    known = {tensor.name: prod(tensor.dims) for tensor in model.graph.initializer}
    return _longest(_steps(model.graph), known) <= MAX_PROPAGATED


def may_propagate_in(graph: onnx_ir.Graph) -> bool:
    """The same question of a parsed graph."""
    known = {
        name: prod(value.const_value.shape.numpy())
        for name, value in graph.initializers.items()
        if value.const_value is not None
    }
    return _longest(_parsed_steps(graph), known) <= MAX_PROPAGATED


def _longest(steps: Iterable[_Step], known: Mapping[str, int]) -> int:
    """An upper bound of the longest list joined: only Concat makes more than it is given."""
    sizes = dict(known)
    longest = 0
    for kind, reads, makes, own in steps:
        given = [sizes.get(name, 0) for name in reads]
        size = max(own, sum(given) if kind == "Concat" else max(given, default=0))
        sizes.update(dict.fromkeys(makes, size))
        if kind == "Concat":
            longest = max(longest, size)
    return longest


def _steps(graph: Any) -> Iterator[_Step]:
    for node in graph.node:
        own = _RANK if node.op_type == "Shape" else 0
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _steps(inner)
            own = max(own, prod(attribute.t.dims) if attribute.HasField("t") else 0)
        yield node.op_type, list(node.input), list(node.output), own


def _parsed_steps(graph: onnx_ir.Graph) -> Iterator[_Step]:
    for node in graph.all_nodes():
        reads = [value.name or "" for value in node.inputs if value is not None]
        made = [value.name or "" for value in node.outputs]
        yield node.op_type, reads, made, _RANK if node.op_type == "Shape" else 0
