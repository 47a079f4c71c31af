"""Which elements of a tensor a box of points touches, and what cutting an axis does to an operand.

All boxes here are inclusive integer intervals.  Source: the derived facts of 2-architecture.md;
`split_kind` gives GraphTurbo's SplitInfo its meaning (aligned, halo, broadcast) and Welder's
Propagate its step (`producer_box`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from worker.compiler.ir.affine import Affine, Interval
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.op import Access, Tensor, TensorOp


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bounding box an access touches."""

    box: tuple[Interval, ...]
    """One inclusive interval per tensor dimension; may leave the tensor (halo, padding)."""
    clipped: tuple[Interval, ...] | None
    """The part inside the tensor; None when nothing is."""
    exact: bool
    """True when every element of each interval's ends is attained per dimension."""

    @property
    def num_elems(self) -> int:
        """Elements of the clipped box."""
        if self.clipped is None:
            return 0
        total = 1
        for low, high in self.clipped:
            total *= high - low + 1
        return total


def footprint(access: Access, box: Mapping[str, Interval], shape: tuple[int, ...]) -> Footprint:
    """Bounding box of the elements `access` touches over `box` (inclusive, by axis name).

    Shapes: `shape` is the tensor's; the result has its rank.  A data-dependent index covers its
    whole dimension.  Cost: linear in the size of the index expressions.
    """
    intervals: list[Interval] = []
    clipped: list[Interval] = []
    exact = True
    empty = False
    for expr, extent in zip(access.index, shape, strict=True):
        if expr.has_lookup:
            low, high, ok = 0, extent - 1, False
        else:
            low, high, ok = expr.bounds(box)
        exact = exact and ok
        intervals.append((low, high))
        inside = (max(low, 0), min(high, extent - 1))
        empty = empty or inside[0] > inside[1]
        clipped.append(inside)
    return Footprint(tuple(intervals), None if empty else tuple(clipped), exact)


def full_box(op: TensorOp) -> dict[str, Interval]:
    """The operator's whole domain."""
    return {axis.name: (0, axis.extent - 1) for axis in op.domain}


def producer_box(op: TensorOp, tensor_box: tuple[Interval, ...]) -> dict[str, Interval] | None:
    """Smallest box of `op`'s domain that writes all of `tensor_box` (REDUCE axes whole).

    Returns None when the write map is not of the form "each dimension is at most one axis with a
    positive coefficient plus a constant", in which case the caller must take the whole domain.
    """
    box = full_box(op)
    for expr, (low, high) in zip(op.write.index, tensor_box, strict=True):
        if not expr.is_linear or len(expr.terms) > 1:
            return None
        if not expr.terms:
            continue
        name = expr.variables()[0]
        coeff = expr.coeff(name)
        if coeff < 1:
            return None
        first = -((expr.const - low) // coeff)  # ceil((low - const) / coeff)
        last = (high - expr.const) // coeff
        old = box[name]
        box[name] = (max(old[0], first), min(old[1], last))
        if box[name][0] > box[name][1]:
            return None
    return box


class SplitKind(StrEnum):
    """What each piece needs of an operand when an axis is cut into consecutive pieces."""

    ALIGNED = "aligned"
    """Its own disjoint slice."""
    HALO = "halo"
    """A slice that overlaps its neighbours'."""
    BROADCAST = "broadcast"
    """All of it."""
    PARTIAL = "partial"
    """Pieces produce partial results of it that must be combined (a REDUCE axis and the write)."""
    OPAQUE = "opaque"
    """Unknown: the index is not linear in the axis."""


@dataclass(frozen=True, slots=True)
class Split:
    kind: SplitKind
    dim: int | None
    """Tensor dimension that is cut (ALIGNED, HALO)."""
    step: int
    """Elements of that dimension per step of the axis."""
    halo_elems: int
    """Overlap of two neighbouring pieces along `dim`, per element row."""


def split_kind(op: TensorOp, slot: int, axis: str) -> Split:
    """What cutting `axis` does to read slot `slot`, or to the write when slot == len(reads)."""
    is_write = slot == len(op.reads)
    access = op.write if is_write else op.reads[slot]
    if is_write and op.axis(axis).kind is AxisKind.REDUCE:
        return Split(SplitKind.PARTIAL, None, 0, 0)
    touched: list[int] = []
    for dim, expr in enumerate(access.index):
        if expr.has_lookup:
            return Split(SplitKind.OPAQUE, None, 0, 0)
        if axis in expr.variables():
            if expr.coeff(axis) == 0 or not _only_plain(expr, axis):
                return Split(SplitKind.OPAQUE, None, 0, 0)
            touched.append(dim)
    if not touched:
        return Split(SplitKind.BROADCAST, None, 0, 0)
    if len(touched) > 1:
        return Split(SplitKind.OPAQUE, None, 0, 0)
    expr = access.index[touched[0]]
    step = abs(expr.coeff(axis))
    rest = full_box(op)
    rest[axis] = (0, 0)
    low, high, _ = expr.bounds(rest)
    overlap = max(0, high - low + 1 - step)
    kind = SplitKind.HALO if overlap else SplitKind.ALIGNED
    return Split(kind, touched[0], step, overlap)


def _only_plain(expr: Affine, axis: str) -> bool:
    """True when `axis` occurs only as a plain term, not inside // or %."""
    return expr.substitute({axis: 0}).terms == tuple(
        (atom, c) for atom, c in expr.terms if getattr(atom, "name", None) != axis
    )


def write_is_injective(op: TensorOp) -> bool:
    """True when distinct PARALLEL points provably write distinct elements.

    Sufficient test: ordering the axes of each linear dimension by coefficient, each coefficient
    exceeds what the smaller ones can reach, and every PARALLEL axis occurs in some dimension.
    """
    box = full_box(op)
    seen: set[str] = set()
    for expr in op.write.index:
        if not expr.is_linear:
            return False
        reach = 0
        for name in sorted(expr.variables(), key=lambda v: abs(expr.coeff(v))):
            coeff = abs(expr.coeff(name))
            if coeff <= reach:
                return False
            reach += coeff * box[name][1]
            seen.add(name)
    return all(a.name in seen or a.extent == 1 for a in op.parallel_axes)


def access_bytes(access: Access, box: Mapping[str, Interval], tensor: Tensor) -> int:
    """Bytes of the clipped footprint."""
    return footprint(access, box, tensor.shape).num_elems * tensor.dtype.size_bytes
