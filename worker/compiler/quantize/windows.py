"""A contraction as a product of matrices: what its weights meet, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]


def is_product(node: onnx_ir.Node, weights: Array) -> bool:
    """Whether `rows_of` and `matrix_of` know the node, with constant weights as second operand."""
    if node.op_type == "Conv":
        auto_pad = node.attributes.get("auto_pad")
        return auto_pad is None or auto_pad.as_string() == "NOTSET"
    if weights.ndim != 2:
        return False
    if node.op_type == "MatMul":
        return True
    return node.op_type == "Gemm" and (
        _number(node, "alpha") == 1.0 and _number(node, "beta") == 1.0 and not _flag(node, "transA")
    )


def groups_of(node: onnx_ir.Node) -> int:
    """Independent products side by side."""
    found = node.attributes.get("group") if node.op_type == "Conv" else None
    return 1 if found is None else found.as_int()


def matrix_of(node: onnx_ir.Node, weights: Array) -> Array:
    """Weights as [channels of the result, elements that each sums up]."""
    if node.op_type == "Conv":
        return weights.reshape(weights.shape[0], -1)
    return weights if node.op_type == "Gemm" and _flag(node, "transB") else weights.T


def weights_of(node: onnx_ir.Node, matrix: Array, like: Array) -> Array:
    """The inverse of `matrix_of`."""
    if node.op_type == "Conv":
        return matrix.reshape(like.shape)
    return matrix if node.op_type == "Gemm" and _flag(node, "transB") else matrix.T


def rows_of(node: onnx_ir.Node, x: Array, y: Array, weights: Array, most: int) -> tuple[F64, F64]:
    """(operand [groups, rows, elements summed up], result [rows, channels]) at up to `most` places
    of the result, spread evenly."""
    if node.op_type != "Conv":
        flat, made = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        at = _spread(len(flat), most)
        return flat[at][None].astype(np.float64), made[at].astype(np.float64)
    rank = x.ndim - 2
    strides = _numbers(node, "strides") or [1] * rank
    dilations = _numbers(node, "dilations") or [1] * rank
    pads = _numbers(node, "pads") or [0] * 2 * rank
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    spatial = y.shape[2:]
    at = _spread(len(x) * int(np.prod(spatial)), most)
    sample, *places = np.unravel_index(at, (len(x), *spatial))
    kernel = weights.shape[2:]

    def laid(values: Array, axis: int) -> Array:
        shape = [1] * (rank + 2)
        shape[axis] = len(values)
        return values.reshape(shape)

    index: list[Array] = [laid(sample, 0), laid(np.arange(x.shape[1]), 1)]
    for d in range(rank):
        step = np.arange(kernel[d]) * dilations[d]
        index.append(laid(places[d], 0) * strides[d] + laid(step, d + 2))
    windows = padded[tuple(index)].astype(np.float64)
    groups = groups_of(node)
    operand: F64 = windows.reshape(len(at), groups, -1).transpose(1, 0, 2)
    result: F64 = np.moveaxis(y, 1, -1)[(sample, *places)].astype(np.float64)
    return operand, result


def _spread(count: int, most: int) -> Array:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _numbers(node: onnx_ir.Node, name: str) -> Sequence[int]:
    found = node.attributes.get(name)
    return [] if found is None else list(found.as_ints())


def _number(node: onnx_ir.Node, name: str) -> float:
    found = node.attributes.get(name)
    return 1.0 if found is None else found.as_float()


def _flag(node: onnx_ir.Node, name: str) -> bool:
    found = node.attributes.get(name)
    return found is not None and bool(found.as_int())
