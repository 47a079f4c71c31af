"""What one iteration of a leaf reads and writes, as sets of elements per dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from worker.compiler.audit.sets import Patterns, Sets, exact, hull
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.schedule.grid import Ints, Range, span_range
from worker.compiler.schedule.nodes import Compute
from worker.compiler.schedule.walk import Scope

_FAR = 1 << 40


@dataclass(frozen=True, slots=True)
class Touched:
    """Elements of one tensor, per iteration: a product of one set per dimension."""

    sets: tuple[Sets, ...]
    clip: tuple[tuple[int, int], ...]
    """Bounds that cut every set of a dimension."""


@dataclass(frozen=True, slots=True)
class Row:
    """One access of every instruction of a batch."""

    store: int
    entry: Ints
    """Number among all entries."""
    slot: Ints
    """Where the entry stands, among all slots."""
    tile: Touched | None
    """What the entry has room for; None: staging."""
    touched: Touched | None
    """None: the whole entry (staging)."""
    is_write: bool
    amount: Ints
    """Points that a write adds to each element; 0: it replaces them."""
    need: int = 0
    """Points that make an element whole."""
    is_own: bool = False
    """A recurrence: what the instruction itself writes counts as written."""
    is_copy: bool = False
    """An end of a Move: a sum may be copied before it is complete."""


def compute_box(op: TensorOp, compute: Compute, coords: Mapping[str, Ints]) -> dict[str, Range]:
    """Inclusive bounds per axis, cut to the domain; empty where high < low."""
    box: dict[str, Range] = {}
    for axis, span in zip(op.domain, compute.box, strict=True):
        low, high = span_range(span, coords)
        box[axis.name] = np.maximum(low, 0), np.minimum(high, axis.extent - 1)
    return box


def num_points(box: Mapping[str, Range]) -> Ints:
    """Points of a box."""
    points: Ints = np.ones((), dtype=np.int64)
    for low, high in box.values():
        points = points * np.maximum(high - low + 1, 0)
    return points


def whole(shape: Sequence[int]) -> Touched:
    """A tensor at home."""
    sets = tuple((np.zeros((), dtype=np.int64), np.array(size)) for size in shape)
    return Touched(sets, ((-_FAR, _FAR),) * len(sets))


def room(tile: Sequence[Range]) -> Touched:
    """The tile of a Place or Queue."""
    return Touched(_sets_of(tile), ((-_FAR, _FAR),) * len(tile))


def moved(box: Sequence[Range], shape: Sequence[int], *, is_cut: bool) -> Touched:
    """The box of a Move, cut to its tensor or whole."""
    bounds = tuple((0, size) if is_cut else (-_FAR, _FAR) for size in shape)
    return Touched(_sets_of(box), bounds)


def _sets_of(ranges: Sequence[Range]) -> tuple[Sets, ...]:
    return tuple((low, high - low + 1) for low, high in ranges)


def read(
    access: Access,
    box: Mapping[str, Range],
    scope: Scope | None,
    shape: Sequence[int],
    coords: Mapping[str, Ints],
    patterns: Patterns | None,
) -> Touched:
    """What a compute reads; `patterns`: without what its index skips, else the hull.

    A data-dependent index may read all that its storage holds of the tensor.  Padding is read from
    a Place (which must hold it), at home only what is inside.
    """
    sets: list[Sets] = []
    is_cut = scope is None or access.fill is None
    for d, (expr, size) in enumerate(zip(access.index, shape, strict=True)):
        if not expr.has_lookup:
            found = None if patterns is None else exact(expr, box, patterns)
            sets.append(hull(expr, box) if found is None else found)
        elif scope is None:
            sets.append((np.zeros((), dtype=np.int64), np.array(size)))
        else:
            tile = scope.tile[d]
            low = np.maximum(affine_values(tile.start, coords), 0)
            high = np.minimum(affine_values(tile.start, coords) + tile.extent, size)
            sets.append((low, high - low))
    return Touched(tuple(sets), tuple((0, n) if is_cut else (-_FAR, _FAR) for n in shape))


def written(access: Access, box: Mapping[str, Range], patterns: Patterns) -> Touched:
    """What a compute writes, exactly wherever that can be listed."""
    sets: list[Sets] = []
    for expr in access.index:
        found = exact(expr, box, patterns)
        sets.append(hull(expr, box) if found is None else found)
    return Touched(tuple(sets), ((-_FAR, _FAR),) * len(sets))


def contribution(op: TensorOp, box: Mapping[str, Range]) -> tuple[Ints, int]:
    """(points added to each element written, points that make one whole); (0, 0): replaced.

    Where several parallel points meet in an element, each counts for itself and they can't be
    counted by boxes: then the write replaces as far as the audit can tell.
    """
    if op.reduce is None or not _is_injective(op):
        return np.zeros((), dtype=np.int64), 0
    added: Ints = np.ones((), dtype=np.int64)
    for axis in op.reduce_axes:
        low, high = box[axis.name]
        added = added * np.maximum(high - low + 1, 0)
    return added, prod(axis.extent for axis in op.reduce_axes)


def _is_injective(op: TensorOp) -> bool:
    kept = {a.name: a.extent for a in op.domain if a.kind is not AxisKind.REDUCE and a.extent > 1}
    for expr in op.write.index:
        if not expr.is_linear:
            return False
        reach = 0
        for coeff, name in sorted((abs(expr.coeff(v)), v) for v in expr.variables()):
            if name not in kept:
                continue
            if coeff <= reach:
                return False
            reach += coeff * (kept.pop(name) - 1)
    return not kept
