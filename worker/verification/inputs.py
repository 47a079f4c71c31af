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
_INDEXERS = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"})


def _index_limit(value: onnx_ir.Value) -> int | None:
    """Smallest dimension indexed by anything that carries `value`'s elements."""
    limits: list[int] = []
    seen: set[int] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for use in current.uses():
            node, slot = use.node, use.idx
            if node.op_type in _INDEXERS and slot == 1:
                shape = static_shape(node.inputs[0])
                axis = node.attributes.get("axis")
                if shape:
                    limits.append(shape[axis.as_int() if axis is not None else 0])
            elif node.op_type in _CARRIERS or (node.op_type in _INDEXERS and slot == 0):
                stack.extend(node.outputs)
    return min(limits) if limits else None


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
