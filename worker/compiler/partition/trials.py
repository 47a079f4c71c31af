"""Trial expressions: can the algebra say a node?  Nodes that are alike are tried once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

import onnx_ir

from worker.compiler.frontend.express import rejection
from worker.compiler.rejection import Rejection

_SMALL = 16
"""Constants with more elements count as alike only if they are the same array."""

Operand: TypeAlias = "tuple[Hashable, ...]"


class Trials:
    """Answers `rejection` for the nodes of one model.

    Only acceptance is shared between nodes that are alike, for a refusal names its node's values.
    Two nodes are alike when everything an expression may depend on is equal: operator,
    attributes, types and shapes, which inputs are constants, the values of small constants, which
    inputs are the same value, and which outputs are used.

    Cost: one expression per kind of node; building a key is linear in operands.
    """

    def __init__(self, nodes: Sequence[onnx_ir.Node], opset: int) -> None:
        self._nodes = nodes
        self._opset = opset
        self._answers: dict[int, Rejection | None] = {}
        self._accepted: set[Hashable] = set()

    def rejection(self, k: int) -> Rejection | None:
        """Why the node at position `k` cannot be expressed, or None when it can."""
        if k not in self._answers:
            self._answers[k] = self._ask(self._nodes[k])
        return self._answers[k]

    def _ask(self, node: onnx_ir.Node) -> Rejection | None:
        key = kind_of(node)
        if key is not None and key in self._accepted:
            return None
        found = rejection(node, self._opset)
        if found is None and key is not None:
            self._accepted.add(key)
        return found


def kind_of(node: onnx_ir.Node) -> Hashable | None:
    """What nodes that are alike have in common; None: the node is compared with no other."""
    attributes: list[Hashable] = []
    for name, attribute in sorted(node.attributes.items()):
        match attribute.type:
            case _ if attribute.is_ref():
                return None
            case onnx_ir.AttributeType.INT | onnx_ir.AttributeType.FLOAT:
                value: Hashable = attribute.value
            case onnx_ir.AttributeType.STRING:
                value = attribute.value
            case onnx_ir.AttributeType.INTS | onnx_ir.AttributeType.FLOATS:
                value = tuple(attribute.value)
            case _:
                return None
        attributes.append((name, attribute.type, value))
    operands: list[Hashable] = []
    first: dict[str, int] = {}
    for k, source in enumerate(node.inputs):
        if source is None or not source.name:
            operands.append(None)
            continue
        seen = _operand(source)
        if seen is None:
            return None
        operands.append((first.setdefault(source.name, k), seen))
    for result in node.outputs:
        seen = _operand(result)
        if seen is None:
            return None
        is_used = bool(result.name) and (bool(result.uses()) or result.is_graph_output())
        operands.append((is_used, seen))
    return (node.domain, node.op_type, tuple(attributes), len(node.inputs), tuple(operands))


def _operand(value: onnx_ir.Value) -> Operand | None:
    """Type, shape and constant of a value; None where a dimension is not known."""
    constant = value.const_value
    if value.type is not None and not isinstance(value.type, onnx_ir.TensorType):
        return None
    if constant is not None:
        shape = tuple(constant.shape.numpy())
        if constant.size > _SMALL or constant.dtype == onnx_ir.DataType.STRING:  # text has no bytes
            return (value.dtype, constant.dtype, shape, id(constant))
        return (value.dtype, constant.dtype, shape, constant.tobytes())
    if value.shape is None:
        return (value.dtype, None)
    dims = tuple(value.shape.dims)
    if not all(isinstance(d, int) for d in dims):
        return None
    return (value.dtype, dims)
