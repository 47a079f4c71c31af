"""Seeded model inputs that respect what the graph does with them.

Floats are standard normal.  Integers that reach a Gather as indices stay inside the gathered
dimension (token ids, embedding rows).  Integers that are only computed with have the whole range of
their type; divisors and shifts are small and positive.  Others are 0 or 1: what decides shapes, and
wide integers that become floats or conditions (masks, type ids).  Booleans are fair coins.  The
same seed gives the same bytes on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir

from worker.compiler.errors import ModelError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.work import static_shape

SYNTHETIC_BATCHES = 2
"""Batches of random inputs, from seeds on, that stand in for calibration data."""
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


_COMPUTING = frozenset(
    {"Add", "Sub", "Mul", "Neg", "Abs", "Sign", "Max", "Min", "Clip", "Sum", "Equal", "Greater",
     "Less", "GreaterOrEqual", "LessOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot",
     "Identity", "Transpose", "Concat", "Flatten", "MatMulInteger", "ConvInteger"}
)  # fmt: skip
"""All that they are given are numbers."""
_COMPUTING_FIRST = frozenset(
    {"Reshape", "Squeeze", "Unsqueeze", "Slice", "Split", "Expand", "Tile", "Pad", "ReduceSum",
     "ReduceMax", "ReduceMin", "Div", "Mod", "BitShift", "DequantizeLinear", "DepthToSpace"}
)  # fmt: skip
"""Only their first input is a number; the others are shapes, divisors, shifts, scales."""
_SMALL_SECOND = frozenset({"Div", "Mod", "BitShift"})
_NARROW_BYTES = 2
"""Integers up to this size that become floats are data (images), wider ones masks."""


def _range(value: onnx_ir.Value, dtype: np.dtype[Any]) -> tuple[int, int]:
    """Inclusive bounds of the integers that an input may hold, from what it is used for."""
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    seen: set[int] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for use in current.uses():
            kind, slot = use.node.op_type, use.idx
            if kind in _SMALL_SECOND and slot == 1:
                return 1, 7
            if kind in ("Div", "Mod"):
                low = max(low, int(limits.min) + 1)  # -1 has no quotient for the least
            if kind == "Where":
                is_number = slot > 0
            elif kind == "Cast":
                to = use.node.attributes["to"].as_int()
                wide = onnx_ir.DataType(to).is_floating_point() or to == onnx_ir.DataType.BOOL
                if wide and dtype.itemsize > _NARROW_BYTES:
                    return 0, 1
                if wide:
                    continue
                is_number = True
            else:
                is_number = kind in _COMPUTING or (kind in _COMPUTING_FIRST and slot == 0)
            if not is_number:
                return 0, 1
            if kind not in ("DequantizeLinear", "Equal", "Greater", "Less", "GreaterOrEqual",
                            "LessOrEqual"):  # fmt: skip
                stack.extend(use.node.outputs)
    return low, high


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
            low, high = _range(value, dtype) if limit is None else (0, limit - 1)
            drawn = dtype if dtype == np.uint64 else np.dtype(np.int64)
            arrays[value.name] = rng.integers(low, high, shape, drawn, endpoint=True).astype(dtype)
        else:
            arrays[value.name] = rng.standard_normal(shape, dtype=np.float32).astype(dtype)
    return arrays


def held_out(model: OnnxModel, seed: int) -> dict[str, npt.NDArray[Any]]:
    """Inputs that a calibration that drew its own from `seed` has not seen.

    Raises: as `seeded_inputs`.
    """
    return seeded_inputs(model, seed + SYNTHETIC_BATCHES)
