"""Positions in sequences, where the nodes that made the sequence say how long it is."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir

from worker.compiler.frontend.edit import constant_of
from worker.compiler.frontend.rules.site import Problem, Rule, Site
from worker.compiler.frontend.work import static_shape

_MOST_STEPS = 256
"""Nodes looked back at: the length of a sequence that more have changed is not known."""


def position(*, inserts: bool = False) -> Rule:
    """A constant position is one of the sequence's, or the place behind it where one inserts."""

    def check(site: Site) -> Iterator[Problem]:
        array = site.const("position")
        if array is None or array.size != 1 or array.dtype.kind not in "iu":
            return
        count = sequence_length(site.value(0))
        if count is None:
            return
        value, last = int(array.reshape(-1)[0]), count if inserts else count - 1
        if not -count <= value <= last:
            yield Problem(
                f"position {value} of a sequence of {count}", f"{-count} to {last}", value
            )

    return check


def sequence_length(value: onnx_ir.Value | None) -> int | None:
    """Tensors in a sequence, from the nodes that made it; None where they do not say."""
    more = 0
    for _ in range(_MOST_STEPS):
        node = None if value is None else value.producer()
        if node is None or node.domain != "":
            return None
        match node.op_type:
            case "SequenceConstruct":
                return more + len(node.inputs)
            case "SequenceEmpty":
                return more
            case "SplitToSequence":
                pieces = _pieces(node)
                return None if pieces is None else more + pieces
            case "SequenceInsert":
                more += 1
            case "SequenceErase":
                more -= 1
            case "Identity":
                pass
            case _:
                return None
        value = node.inputs[0] if node.inputs else None
    return None


def _pieces(node: onnx_ir.Node) -> int | None:
    shape = static_shape(node.inputs[0])
    axis = node.attributes.get("axis")
    place = axis.as_int() if axis is not None else 0
    if not shape or not -len(shape) <= place < len(shape):
        return None
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return shape[place]
    sizes = constant_of(node.inputs[1])
    if sizes is None:
        return None
    array = sizes.numpy()
    if array.ndim:
        return int(array.size)
    each = int(array.reshape(-1)[0])
    return None if each <= 0 else -(-shape[place] // each)
