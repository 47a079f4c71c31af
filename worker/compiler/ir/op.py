"""Tensors, accesses and operators: the nouns of the algebra.

A `TensorOp` means: for every point p of its domain, in any order over PARALLEL axes,

    write[write.index(p)]  reduce=  body(reads[0][index(p)], reads[1][index(p)], ...)

where `reduce` is None for plain assignment.  A read outside its tensor yields the access's `fill`.
Source: 2-architecture.md "The operator algebra".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from worker.compiler.errors import VerifyError
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.scalar import Scalar, slots_read


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named, statically shaped tensor; rank 0 has shape ()."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def num_elems(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.num_elems * self.dtype.size_bytes


class Reduce(StrEnum):
    ADD = "add"
    MUL = "mul"
    MAX = "max"
    MIN = "min"

    def identity(self, dtype: DType) -> float | int:
        """The neutral element for `dtype` (inf for floats, extreme values for integers)."""
        if self is Reduce.ADD:
            return 0
        if self is Reduce.MUL:
            return 1
        if dtype.is_float:
            return float("-inf") if self is Reduce.MAX else float("inf")
        if dtype is DType.BOOL:
            return 0 if self is Reduce.MAX else 1
        bits = dtype.bits
        if dtype.is_signed:
            return -(1 << (bits - 1)) if self is Reduce.MAX else (1 << (bits - 1)) - 1
        return 0 if self is Reduce.MAX else (1 << bits) - 1


@dataclass(frozen=True, slots=True)
class Access:
    """How an operator touches one tensor: one affine index per tensor dimension."""

    tensor: str
    index: tuple[Affine, ...]
    fill: float | int | None = None
    """Value read outside the tensor; None means that every index is inside (checked)."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an operator comes from: names of the user's ONNX nodes and their op type."""

    nodes: tuple[str, ...]
    op_type: str


@dataclass(frozen=True, slots=True)
class TensorOp:
    """An operator over an affine iteration domain.  Read slot k is `reads[k]`."""

    name: str
    domain: tuple[Axis, ...]
    reads: tuple[Access, ...]
    write: Access
    body: Scalar
    reduce: Reduce | None
    origin: Origin
    instruction: str = ""
    """Intrinsic that the target's pattern table has run it; empty: none."""

    def __hash__(self) -> int:
        # Operators are keys of caches on hot paths; the body need not be walked to tell them apart.
        return hash((self.name, self.write.tensor, *(a.extent for a in self.domain)))

    def axis(self, name: str) -> Axis:
        """The axis called `name`; KeyError if there is none."""
        for axis in self.domain:
            if axis.name == name:
                return axis
        raise KeyError(name)

    @property
    def parallel_axes(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.domain if a.kind is AxisKind.PARALLEL)

    @property
    def reduce_axes(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.domain if a.kind is AxisKind.REDUCE)

    @property
    def num_points(self) -> int:
        return prod(a.extent for a in self.domain)

    @property
    def has_lookup(self) -> bool:
        return any(e.has_lookup for access in self.reads for e in access.index)

    def input_names(self) -> tuple[str, ...]:
        """Tensors read, in slot order, each once."""
        return tuple(dict.fromkeys(access.tensor for access in self.reads))


def check_op(op: TensorOp, tensors: Mapping[str, Tensor]) -> None:
    """Check one operator against its tensors.

    Raises:
        VerifyError: rank mismatch, unknown axis, write through a REDUCE axis, missing reduce,
            unread slot numbers, a write or fill-less read that can leave its tensor.
    """

    def fail(rule: str, message: str) -> VerifyError:
        return VerifyError("express", op.name, rule, message)

    names = [a.name for a in op.domain]
    if len(set(names)) != len(names):
        raise fail("unique-axes", f"axis names repeat: {names}")
    if any(a.extent < 1 for a in op.domain):
        raise fail("extent", "every axis needs extent >= 1")
    reduce_names = {a.name for a in op.reduce_axes}
    if reduce_names and op.reduce is None:
        raise fail("reduce", "REDUCE axes without a reduce function")
    box = {a.name: (0, a.extent - 1) for a in op.domain}
    for slot, access in enumerate((*op.reads, op.write)):
        is_write = slot == len(op.reads)
        where = "write" if is_write else f"read {slot}"
        if access.tensor not in tensors:
            raise fail("tensor", f"{where}: unknown tensor {access.tensor!r}")
        shape = tensors[access.tensor].shape
        if len(access.index) != len(shape):
            raise fail("rank", f"{where}: {len(access.index)} indices for rank {len(shape)}")
        for dim, expr in enumerate(access.index):
            unknown = [v for v in expr.variables() if v not in box]
            if unknown:
                raise fail("axes", f"{where}: index {dim} uses unknown axes {unknown}")
            if is_write and (expr.has_lookup or reduce_names.intersection(expr.variables())):
                raise fail("write", f"index {dim} uses a REDUCE axis or a lookup")
            if expr.has_lookup:
                continue
            low, high, _ = expr.bounds(box)
            if (is_write or access.fill is None) and (low < 0 or high >= shape[dim]):
                raise fail("inside", f"{where}: index {dim} spans [{low}, {high}] of {shape[dim]}")
    used = slots_read(op.body)
    if used and used[-1] >= len(op.reads):
        raise fail("slots", f"body reads slot {used[-1]} of {len(op.reads)}")
