"""Collects the tensors, operators and constants of a region while its nodes are expressed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any, TypeAlias

import numpy.typing as npt

from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Tensor, TensorOp
from worker.compiler.ir.text import fresh_name
from worker.compiler.rejection import ReasonCode

Thunk: TypeAlias = "Callable[[], npt.NDArray[Any]]"
"""Gives a constant's array in storage type, on demand: weights stay on disk until needed."""

MAX_RANK = 8
"""Tensors of higher rank are refused: strided copies of the runtime nest no deeper."""


class Emitter:
    """Grows a graph.  Names are unique: a taken name gets a numeric suffix."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[TensorOp] = []
        self.inputs: list[str] = []
        self.constants: dict[str, Thunk] = {}
        self._tensor_names = set(reserved)
        self._op_names: set[str] = set()

    def external(self, name: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """A tensor that comes into the region (once)."""
        if name not in self.tensors:
            self.tensors[name] = _checked(Tensor(name, shape, dtype))
            self.inputs.append(name)
        return self.tensors[name]

    def model_constant(
        self, name: str, shape: tuple[int, ...], dtype: DType, thunk: Thunk
    ) -> Tensor:
        """A constant of the model under its own name (once)."""
        if name not in self.tensors:
            self.tensors[name] = _checked(Tensor(name, shape, dtype))
            self.constants[name] = thunk
        return self.tensors[name]

    def derived_constant(
        self, base: str, shape: tuple[int, ...], dtype: DType, thunk: Thunk
    ) -> Tensor:
        """A constant that the compiler computes, under a fresh name."""
        name = fresh_name(base, self._tensor_names)
        self.tensors[name] = _checked(Tensor(name, shape, dtype))
        self.constants[name] = thunk
        return self.tensors[name]

    def result(self, name: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """A tensor of the model that a node writes."""
        self.tensors[name] = _checked(Tensor(name, shape, dtype))
        return self.tensors[name]

    def intermediate(self, base: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """A tensor that exists only because a node became several operators."""
        name = fresh_name(base, self._tensor_names)
        self.tensors[name] = _checked(Tensor(name, shape, dtype))
        return self.tensors[name]

    def op_name(self, tensor: str) -> str:
        """A fresh operator name for a write to `tensor`."""
        return fresh_name(tensor, self._op_names)


def _checked(tensor: Tensor) -> Tensor:
    if len(tensor.shape) > MAX_RANK:
        raise Refusal(
            ReasonCode.RANK_LIMIT,
            f"tensor {tensor.name!r} has rank {len(tensor.shape)}; the limit is {MAX_RANK}",
        )
    if any(extent < 0 for extent in tensor.shape):
        raise shape_mismatch(f"tensor {tensor.name!r} would get the shape {tensor.shape}")
    if prod(tensor.shape) == 0:
        raise Refusal(
            ReasonCode.EMPTY_TENSOR, f"tensor {tensor.name!r} has no elements: {tensor.shape}"
        )
    return tensor
