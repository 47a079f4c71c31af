"""Values that have no right answer: where ONNX leaves open what an operator gives.

Floats that no integer holds: our kernels convert them to the nearest integer, what is not a number
to 0; ONNX Runtime gives whatever the processor does, on x86 the lowest integer.
Maxima of numbers and of what is none: our kernels give NaN, ONNX Runtime one or the other, by the
order in which its kernel happens to compare.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir

Array = npt.NDArray[Any]

CONVERSIONS = "the elements that differ are floats that no integer holds, which ONNX leaves open"
MAXIMA = "the elements that differ are maxima of numbers and of NaN, which ONNX leaves open"
_COMPARING = frozenset(
    {"Clip", "GlobalMaxPool", "Max", "MaxPool", "MaxRoiPool", "Min", "ReduceMax", "ReduceMin",
     "Relu", "TopK"}
)  # fmt: skip
_MULTIPLYING = frozenset({"Conv", "ConvTranspose", "Div", "Gemm", "MatMul", "Mul"})
"""What makes NaN of an infinite operand and a zero."""
_WIDTH = 4
"""Bytes of the narrowest integers that are judged by this: narrower ones are compared as floats."""
_PIECE = 1 << 20
"""Elements of a constant that are looked at at a time."""


class LeftOpen:
    """Which values of some graphs may differ without a fault.  Cost: linear in the nodes."""

    def __init__(self, graphs: Iterable[onnx_ir.Graph]) -> None:
        self._graphs = tuple(graphs)
        self._converted: set[str] = set()
        self._compared: set[str] = set()
        self._factors: set[str] = set()
        for graph in self._graphs:
            for node in graph.all_nodes():
                made = [value.name for value in node.outputs if value.name]
                if _converts(node):
                    self._converted.update(made)
                read = [value.name for value in node.inputs if value is not None and value.name]
                if node.op_type in _MULTIPLYING:
                    self._factors.update(read)
                if node.op_type in _COMPARING or any(name in self._compared for name in read):
                    self._compared.update(made)

    def reason(self, name: str, have: Array, want: Array) -> str:
        """Why the difference of a value says nothing; empty where it does."""
        if have.shape != want.shape or have.dtype != want.dtype:
            return ""
        if name in self._converted and _are_nearest(have, want):
            return CONVERSIONS
        return ""

    def without_maxima(self, name: str, have: Array, want: Array) -> tuple[Array, Array] | None:
        """Both with 0 where one alone is NaN, if these elements are left open; None: they are not.

        They are not where no constant, nor any element of what the reference made, is infinite or
        NaN: then a NaN is the kernels' own.  Minus infinity, which masks are made of, counts in
        factors only.
        """
        if name not in self._compared or have.shape != want.shape or have.dtype.kind != "f":
            return None
        alone = np.isnan(have) != np.isnan(want)
        if not alone.any() or not (_is_odd(want) or self._has_odd_constant):
            return None
        return np.where(alone, 0, have), np.where(alone, 0, want)

    @cached_property
    def _has_odd_constant(self) -> bool:
        for graph in self._graphs:
            for name, value in graph.initializers.items():
                tensor = value.const_value
                if tensor is None or not tensor.dtype.is_floating_point():
                    continue
                flat, is_factor = tensor.numpy().reshape(-1), name in self._factors
                for start in range(0, flat.size, _PIECE):
                    piece = flat[start : start + _PIECE].astype(np.float64)
                    if _is_odd(piece) or (is_factor and not np.isfinite(piece).all()):
                        return True
        return False


def _is_odd(values: Array) -> bool:
    """Whether an element is NaN or plus infinity."""
    return bool(np.any(np.isnan(values) | np.isposinf(values)))


def _converts(node: onnx_ir.Node) -> bool:
    """Whether a node makes integers of floats by converting them."""
    source = {"Cast": 0, "CastLike": 0, "Pow": 1}.get(node.op_type)
    if source is None or node.domain or source >= len(node.inputs):
        return False
    given, made = node.inputs[source], node.outputs[0]
    is_float = given is not None and given.dtype is not None and given.dtype.is_floating_point()
    return is_float and made.dtype is not None and made.dtype.is_integer()


def _are_nearest(have: Array, want: Array) -> bool:
    """Whether all integers that differ may be what no integer holds."""
    if have.dtype.kind not in "iu" or have.dtype.itemsize < _WIDTH:
        return False
    differ, limits = have != want, np.iinfo(have.dtype)
    ours, theirs = have[differ], want[differ]
    is_nearest = (ours == limits.min) | (ours == limits.max)
    return bool(np.all(is_nearest | ((ours == 0) & (theirs == limits.min))))
