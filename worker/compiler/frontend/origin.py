"""Which of the user's nodes a node was made from."""

from __future__ import annotations

import onnx_ir

ORIGIN = "origin"
"""Entry of a node's `meta`: the name of the user's node whose function body it is part of."""


def origin_of(node: onnx_ir.Node) -> str | None:
    """The user's name of a node, or of the node that it was made from."""
    found = node.meta.get(ORIGIN, node.name)
    return str(found) if found else None
