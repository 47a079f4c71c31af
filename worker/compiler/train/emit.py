"""Nodes that a training step adds to a graph: named after the user's node, typed at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir

from worker.compiler.errors import InternalError
from worker.compiler.frontend.edit import Names, add_constant
from worker.compiler.frontend.shapes import infer_node, is_static

FLOATS = (onnx_ir.DataType.FLOAT, onnx_ir.DataType.DOUBLE)
"""Types that are trained in: with fewer bits, updates of a step are lost to rounding."""


def dims(value: onnx_ir.Value) -> tuple[int, ...]:
    """The static shape of a value."""
    if not is_static(value) or value.shape is None:
        raise InternalError("TW-INT-003", f"training: {value.name!r} has no static shape")
    return value.shape.numpy()


def replace(graph: onnx_ir.Graph, node: onnx_ir.Node, made: Sequence[onnx_ir.Value | None]) -> None:
    """Let `made` stand for the outputs of `node`, which leaves; None for outputs that are unread.

    An output of the graph keeps its name.
    """
    for old, new in zip(node.outputs, made, strict=True):
        if new is None:
            continue
        name, is_output = old.name, old.is_graph_output()
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        if is_output:
            old.name, new.name = None, name
    graph.remove(node, safe=True)


class Emitter:
    """Appends nodes to the main graph of a simplified model.

    A node that serves the user's node N is called `N/gradient/Op`, its values likewise; constants
    of one content are made once.
    """

    def __init__(self, graph: onnx_ir.Graph, opset: int) -> None:
        self.graph = graph
        self._opset = opset
        self._names = Names(graph)
        self._constants: dict[tuple[str, tuple[int, ...], bytes], onnx_ir.Value] = {}
        self._scope = "step"

    def begin(self, scope: str) -> None:
        """From here on, nodes are called `scope/Op`."""
        self._scope = scope

    def fresh(self, name: str) -> str:
        """`name`, or with the first free number: no value is called like it."""
        return self._names.fresh(name)

    def op(
        self, op_type: str, *inputs: onnx_ir.Value | None, name: str = "", **attributes: Any
    ) -> onnx_ir.Value:
        """A new node with one output."""
        return self.ops(op_type, inputs, 1, attributes, name)[0]

    def ops(
        self,
        op_type: str,
        inputs: Sequence[onnx_ir.Value | None],
        count: int,
        attributes: Mapping[str, Any],
        name: str = "",
    ) -> Sequence[onnx_ir.Value]:
        """A new node with `count` outputs, whose types and shapes are inferred."""
        label = self.fresh(name or f"{self._scope}/{op_type}")
        node = onnx_ir.node(op_type, inputs, attributes, num_outputs=count, name=label)
        for k, value in enumerate(node.outputs):
            value.name = label if k == 0 else self.fresh(f"{label}:{k}")
        self.graph.append(node)
        infer_node(node, self._opset)
        for value in node.outputs:
            dims(value)
        return node.outputs

    def constant(self, array: np.ndarray[Any, Any]) -> onnx_ir.Value:
        """An initializer with these values, shared by all that ask for the same."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.fresh(f"step/constant_{len(self._constants)}")
            self._constants[key] = add_constant(self.graph, name, array)
        return self._constants[key]

    def ints(self, *values: int) -> onnx_ir.Value:
        """A constant of int64, one-dimensional."""
        return self.constant(np.array(values, np.int64))

    def real(self, number: float, like: onnx_ir.Value) -> onnx_ir.Value:
        """A scalar constant of the type of `like`."""
        assert like.dtype is not None
        return self.constant(np.array(number, like.dtype.numpy()))

    def reshape(self, value: onnx_ir.Value, shape: Sequence[int]) -> onnx_ir.Value:
        """`value` in another shape, itself where it has that already."""
        if dims(value) == tuple(shape):
            return value
        return self.op("Reshape", value, self.ints(*shape))

    def transpose(self, value: onnx_ir.Value, order: Sequence[int]) -> onnx_ir.Value:
        """`value` with its axes in another order, itself where that is their order already."""
        if list(order) == list(range(len(order))):
            return value
        return self.op("Transpose", value, perm=list(order))

    def total(
        self, value: onnx_ir.Value, axes: Sequence[int], *, keep: bool = True
    ) -> onnx_ir.Value:
        """The sum along `axes`."""
        if not axes:
            return value
        return self.op("ReduceSum", value, self.ints(*axes), keepdims=int(keep))

    def expand(self, value: onnx_ir.Value, shape: Sequence[int]) -> onnx_ir.Value:
        """`value` broadcast to `shape`."""
        return value if dims(value) == tuple(shape) else self.op(
            "Expand", value, self.ints(*shape)
        )  # fmt: skip

    def zeros(self, like: onnx_ir.Value) -> onnx_ir.Value:
        """Zeros of the type and shape of `like`."""
        return self.expand(self.real(0, like), dims(like))

    def pad(
        self, value: onnx_ir.Value, before: Sequence[int], after: Sequence[int]
    ) -> onnx_ir.Value:
        """`value` with zeros around it; negative counts cut off instead."""
        shape = dims(value)
        cut = [max(-b, 0) for b in before], [max(-a, 0) for a in after]
        if any(cut[0]) or any(cut[1]):
            ends = [n - a for n, a in zip(shape, cut[1], strict=True)]
            value = self.slice(value, cut[0], ends)
        put = [max(b, 0) for b in before] + [max(a, 0) for a in after]
        return self.op("Pad", value, self.ints(*put)) if any(put) else value

    def slice(
        self,
        value: onnx_ir.Value,
        starts: Sequence[int],
        ends: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> onnx_ir.Value:
        """Elements from `starts` to before `ends`, non-negative, of each axis by `steps`."""
        shape = dims(value)
        steps = steps or [1] * len(shape)
        cuts = [
            (d, start, end, step)
            for d, (start, end, step) in enumerate(zip(starts, ends, steps, strict=True))
            if (start, end, step) != (0, shape[d], 1)
        ]
        if not cuts:
            return value
        axes, first, past, by = zip(*cuts, strict=True)
        parameters = (self.ints(*first), self.ints(*past), self.ints(*axes), self.ints(*by))
        return self.op("Slice", value, *parameters)

    def unbroadcast(self, value: onnx_ir.Value, shape: Sequence[int]) -> onnx_ir.Value:
        """Sum `value` over what a tensor of `shape` was repeated along to become as large."""
        have = dims(value)
        lead = len(have) - len(shape)
        axes = [
            d for d, extent in enumerate(have)
            if d < lead or (shape[d - lead] == 1 and extent != 1)
        ]  # fmt: skip
        return self.reshape(self.total(value, axes, keep=False), shape)
