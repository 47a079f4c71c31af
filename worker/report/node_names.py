"""How a kernel of many ONNX nodes is named in one line; the full list stands beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
SHOWN_NODES = 3


def node_span(names: Sequence[str]) -> str:
    """Give all of a few names, else the first, the last and how many: `a .. z (11 nodes)`."""
    if len(names) <= SHOWN_NODES:
        return ", ".join(names)
    return f"{names[0]} .. {names[-1]} ({len(names)} nodes)"


def kernel_op_type(first: str, nodes: Sequence[str], op_type_of: Mapping[str, str]) -> str:
    """Give the distinct ONNX operators of a kernel in order, e.g. `Conv+Relu`.

    `first` is the type of its first operator, or several joined by `+`, which `nodes` may not know
    (an inserted layout transform).  Conversions of number formats are left out where anything else
    is there.
    """
    kinds = dict.fromkeys(
        [*first.split("+"), *(op_type_of[name] for name in nodes if name in op_type_of)]
    )
    return "+".join([kind for kind in kinds if kind not in _CONVERSIONS] or kinds)


def short_op_type(op_type: str) -> str:
    """Give a joined operator type with at most three of its parts: `Conv+Relu+Add+4 more`."""
    parts = op_type.split("+")
    if len(parts) <= SHOWN_NODES:
        return op_type
    return "+".join([*parts[:SHOWN_NODES], f"{len(parts) - SHOWN_NODES} more"])
