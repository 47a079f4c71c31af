"""Look at a serialized model without parsing it: find big weights, damage, and depth.

Protocol buffers are parsed by copying.  A model of 400 MB would need that much memory twice, only
to be read once later.  So the bytes of large initializers are cut out first and stay in the file's
memory map; what is parsed is the rest, usually a few hundred kilobytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from worker.compiler.errors import ModelError
from worker.compiler.frontend.limits import Limits

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MODEL_GRAPH, _GRAPH_NODE, _GRAPH_INITIALIZER, _TENSOR_RAW = 7, 1, 5, 9
_NODE_ATTRIBUTE, _ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS = 5, 6, 11
_MODEL_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
_CUT_FROM_BYTES = 4096
_MAX_FIELDS = 2_000_000


class WireError(ValueError):
    """The bytes are not a protocol buffer."""


class Truncated(WireError):
    """A field announces more bytes than there are."""


class Field(NamedTuple):
    """One field: its number and type, where its key starts, and its value's extent."""

    number: int
    wire_type: int
    start: int
    value: int
    end: int


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A model without its big weights."""

    stripped: bytes
    extents: dict[int, tuple[int, int]]
    """Position among the main graph's initializers -> (offset, bytes) of the data cut out."""


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
        if shift > 63:
            raise WireError("a number is too long")
    raise Truncated("a number is cut off")


def fields(data: memoryview, at: int, end: int) -> Iterator[Field]:
    """The fields of the message in `data[at:end]`.

    Raises:
        WireError: the bytes are not a message; Truncated when they only stop too early.
    """
    while at < end:
        start = at
        key, at = _varint(data, at, end)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise WireError("field number 0")
        match wire_type:
            case 0:
                value = at
                _, at = _varint(data, at, end)
            case 1:
                value, at = at, at + 8
            case 2:
                length, value = _varint(data, at, end)
                at = value + length
            case 5:
                value, at = at, at + 4
            case _:
                raise WireError(f"wire type {wire_type}")
        if at > end:
            raise Truncated(f"field {number} ends {at - end} bytes after the end")
        yield Field(number, wire_type, start, value, at)


def _encoded(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _message(number: int, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    size = sum(len(part) for part in parts)
    return [_encoded(number << 3 | _BYTES) + _encoded(size), *parts]


def strip(data: memoryview, limits: Limits) -> Skeleton:
    """Cut the data of large initializers out of a serialized model.

    Raises:
        ModelError: TW-MODEL-001 not a model, TW-MODEL-002 truncated, TW-MODEL-014 too many nodes.

    Cost: linear in the number of fields of model and graph, not in the size of the weights.
    """
    top: list[Field] = []
    try:
        for field in fields(data, 0, len(data)):
            if _MODEL_FIELDS.get(field.number, field.wire_type) != field.wire_type:
                raise WireError(f"field {field.number} has the wrong type")
            top.append(field)
            if len(top) > _MAX_FIELDS:
                raise WireError("too many fields")
    except Truncated as error:
        known = bool(top) and all(field.number in _MODEL_FIELDS for field in top)
        raise ModelError(
            "TW-MODEL-002" if known else "TW-MODEL-001",
            f"the file stops too early: {error}" if known else "the file is not an ONNX model",
            actual=len(data),
        ) from None
    except WireError as error:
        raise ModelError(
            "TW-MODEL-001", f"the file is not an ONNX model: {error}", actual=len(data)
        ) from None
    graphs = [field for field in top if field.number == _MODEL_GRAPH]
    if not any(field.number in _MODEL_FIELDS for field in top):
        raise ModelError("TW-MODEL-001", "the file is not an ONNX model: no known field")
    if len(graphs) != 1:
        return Skeleton(bytes(data), {})
    parts: list[bytes | memoryview] = []
    extents: dict[int, tuple[int, int]] = {}
    try:
        for field in top:
            if field.number == _MODEL_GRAPH:
                inner = _strip_graph(data, field, extents, limits)
                parts += _message(_MODEL_GRAPH, inner)
            else:
                parts.append(data[field.start : field.end])
    except WireError as error:
        raise ModelError(
            "TW-MODEL-001", f"the model's graph is damaged: {error}", actual=len(data)
        ) from None
    return Skeleton(b"".join(parts), extents)


def _strip_graph(
    data: memoryview, graph: Field, extents: dict[int, tuple[int, int]], limits: Limits
) -> list[bytes | memoryview]:
    parts: list[bytes | memoryview] = []
    num_nodes = position = 0
    kept_from = graph.value
    for count, field in enumerate(fields(data, graph.value, graph.end)):
        num_nodes += field.number == _GRAPH_NODE
        if num_nodes > limits.max_nodes or count > _MAX_FIELDS:
            raise ModelError(
                "TW-MODEL-014",
                f"the graph has more than {limits.max_nodes} nodes",
                limit=limits.max_nodes,
                actual=num_nodes,
            )
        if field.number != _GRAPH_INITIALIZER or field.wire_type != _BYTES:
            continue
        if field.end - field.value >= _CUT_FROM_BYTES:
            raw = [f for f in fields(data, field.value, field.end) if f.number == _TENSOR_RAW]
            if len(raw) == 1 and raw[0].wire_type == _BYTES:
                cut = raw[0]
                rest = [data[field.value : cut.start], data[cut.end : field.end]]
                parts.append(data[kept_from : field.start])
                parts += _message(_GRAPH_INITIALIZER, list(rest))
                kept_from = field.end
                extents[position] = (cut.value, cut.end - cut.value)
        position += 1
    parts.append(data[kept_from : graph.end])
    return parts


def nesting_depth(data: memoryview, stop_at: int) -> int:
    """Depth of graphs inside graphs (1 for a flat model), counted no further than `stop_at`.

    Works where the parser gives up, so that the user is told the real reason.
    """
    deepest = 0
    stack: list[tuple[int, int, int]] = []
    try:
        stack = [(f.value, f.end, 1) for f in fields(data, 0, len(data)) if f.number == _MODEL_GRAPH
                 and f.wire_type == _BYTES]  # fmt: skip
    except WireError:
        return 0
    while stack and deepest < stop_at:
        start, end, depth = stack.pop()
        deepest = max(deepest, depth)
        for path in _inner_graphs(data, start, end):
            stack.append((*path, depth + 1))
    return deepest


def _inner_graphs(data: memoryview, start: int, end: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    try:
        for node in fields(data, start, end):
            if node.number != _GRAPH_NODE or node.wire_type != _BYTES:
                continue
            for attribute in fields(data, node.value, node.end):
                if attribute.number != _NODE_ATTRIBUTE or attribute.wire_type != _BYTES:
                    continue
                found += [
                    (f.value, f.end)
                    for f in fields(data, attribute.value, attribute.end)
                    if f.number in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS) and f.wire_type == _BYTES
                ]
    except WireError:
        return found
    return found
