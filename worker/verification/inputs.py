"""Seeded model inputs that respect what the graph does with them.

Floats are standard normal.  Integers that reach a Gather as indices stay inside the gathered
dimension (token ids, embedding rows); other integers are 0 or 1 (masks, type ids); booleans are
fair coins.  The same seed gives the same bytes on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir

from worker.compiler.errors import ModelError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.work import static_shape

_CARRIERS = frozenset(
    {"Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Slice", "Split",
     "Expand", "Identity", "Concat", "Tile", "Add", "Where", "Max", "Min", "Clip"}
)  # fmt: skip
_VECTOR_INDEXERS = frozenset({"GatherND", "ScatterND"})
"""Their last index dimension addresses several data dimensions at once."""
_INDEXERS = frozenset({"Gather", "GatherElements", "ScatterElements"}) | _VECTOR_INDEXERS


def _index_limit(value: onnx_ir.Value) -> int | None:
    """Smallest dimension indexed by anything that carries `value`'s elements, less what constants
    add to them on the way (position ids that start at 2)."""
    limits: list[int] = []
    seen: set[tuple[int, int]] = set()
    stack = [(value, 0)]
    while stack:
        current, shift = stack.pop()
        if (id(current), shift) in seen:
            continue
        seen.add((id(current), shift))
        for use in current.uses():
            node, slot = use.node, use.idx
            if node.op_type in _INDEXERS and slot == 1:
                limits += [max(1, size - shift) for size in _indexed_sizes(node)]
            elif node.op_type in _CARRIERS or (node.op_type in _INDEXERS and slot == 0):
                reached = shift + _added(node)
                stack.extend((output, reached) for output in node.outputs)
    return min(limits) if limits else None


def _indexed_sizes(node: onnx_ir.Node) -> tuple[int, ...]:
    """Sizes of the data dimensions that one index of `node` must stay inside."""
    data, indices = static_shape(node.inputs[0]), static_shape(node.inputs[1])
    if not data:
        return ()
    if node.op_type in _VECTOR_INDEXERS:
        if not indices:
            return ()
        batch = node.attributes.get("batch_dims")
        first = batch.as_int() if batch is not None else 0
        return data[first : first + indices[-1]]
    axis = node.attributes.get("axis")
    return (data[axis.as_int() if axis is not None else 0],)


def _added(node: onnx_ir.Node) -> int:
    """The largest constant an Add adds to the elements it carries; 0 for other operators."""
    if node.op_type != "Add":
        return 0
    constants = [v.const_value for v in node.inputs if v is not None and v.const_value is not None]
    return max((int(np.max(c.numpy())) for c in constants if c.size), default=0)


def seeded_inputs(model: OnnxModel, seed: int) -> dict[str, npt.NDArray[Any]]:
    """One array per graph input (initializers excluded), in order, from one generator.

    Raises:
        ModelError: an input with unknown shape or a type without a numpy counterpart.
    """
    rng = np.random.default_rng(seed)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for value in model.ir.graph.inputs:
        shape = static_shape(value)
        if shape is None or value.dtype is None or value.name is None:
            raise ModelError("TW-MODEL-017", f"input {value.name!r} has no static shape")
        try:
            dtype = np.dtype(value.dtype.numpy())
        except TypeError as error:
            raise ModelError(
                "TW-MODEL-006", f"input {value.name!r} has type {value.dtype.name}"
            ) from error
        if dtype.kind == "b":
            arrays[value.name] = rng.integers(0, 2, shape).astype(bool)
        elif dtype.kind in "iu":
            limit = _index_limit(value)
            arrays[value.name] = rng.integers(0, limit or 2, shape).astype(dtype)
        else:
            arrays[value.name] = rng.standard_normal(shape, dtype=np.float32).astype(dtype)
    return arrays
