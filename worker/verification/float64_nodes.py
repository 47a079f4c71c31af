"""Writing ONNX nodes one after the other, with names of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import onnx
from onnx import numpy_helper

PREFIX = "float64/"
"""Begins every name that the transformation makes."""


class Emitter:
    """Appends nodes to a list and gives the names of what they make."""

    def __init__(self, nodes: list[onnx.NodeProto], names: list[int]) -> None:
        """`names` has the number of names made so far; emitters of one model share it."""
        self._nodes = nodes
        self._names = names
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def fresh(self) -> str:
        """A name that no other value has."""
        self._names[0] += 1
        return f"{PREFIX}{self._names[0]}"

    def take(self, node: onnx.NodeProto) -> None:
        """Append a node as it is."""
        self._nodes.append(node)

    def node(self, op_type: str, inputs: Sequence[str], output: str = "", **ints: int) -> str:
        """Append a node of the standard domain with one output."""
        name = output or self.fresh()
        made = onnx.NodeProto(op_type=op_type, input=list(inputs), output=[name])
        for key, value in ints.items():
            made.attribute.add(name=key, type=onnx.AttributeProto.INT, i=value)
        self._nodes.append(made)
        return name

    def constant(self, value: npt.NDArray[Any]) -> str:
        """A constant, once per value."""
        key = str(value.dtype), value.shape, value.tobytes()
        if key not in self._constants:
            name = self._constants[key] = self.fresh()
            made = onnx.NodeProto(op_type="Constant", output=[name])
            made.attribute.add(
                name="value", type=onnx.AttributeProto.TENSOR, t=numpy_helper.from_array(value)
            )
            self._nodes.append(made)
        return self._constants[key]


def attribute(node: onnx.NodeProto, name: str) -> list[int]:
    """An integer or a list of integers; empty when it is not given."""
    for found in node.attribute:
        if found.name == name:
            return [found.i] if found.type == onnx.AttributeProto.INT else list(found.ints)
    return []
