"""Boxes that several iterations or several instructions write together.

All bounds are inclusive ranges per dimension, broadcastable over the loops of whoever asks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from worker.compiler.ir.affine import Affine, Var
from worker.compiler.ir.distinct import distinct
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.schedule.grid import Ints, Range, coordinates
from worker.compiler.schedule.nodes import Box, Span
from worker.compiler.schedule.walk import Frame


def spread(box: Box, free: dict[str, Frame]) -> Box | None:
    """The box that all iterations of the free loops write together, or None when it has gaps."""
    used: set[str] = set()
    spans: list[Span] = []
    for span in box:
        names = [v for v in span.start.variables() if v in free and free[v].trip > 1]
        rest = {v: 0 for v in span.start.variables() if v in free and free[v].trip == 1}
        start = span.start.substitute(rest) if rest else span.start
        if not names:
            spans.append(Span(start, span.extent))
            continue
        if used.intersection(names) or any(start.coeff(v) == 0 for v in names):
            return None
        used.update(names)
        moving = Affine(tuple((a, c) for a, c in start.terms if _named(a, names)), 0)
        fixed = start - moving
        if set(fixed.variables()) & set(names):
            return None
        reached = _joined_up(moving, span.extent, free)
        if reached is None:
            offsets = distinct(affine_values(moving, coordinates([free[v] for v in names])))
            if np.any(np.diff(offsets) > span.extent):
                return None
            reached = int(offsets[0]), int(offsets[-1])
        low, high = reached
        spans.append(Span(fixed + low, high - low + span.extent))
    return tuple(spans)


def _joined_up(moving: Affine, extent: int, free: dict[str, Frame]) -> tuple[int, int] | None:
    """The least and greatest of starts whose spans join up, as their strides say: none steps over
    what the smaller ones fill.  None where that does not say it."""
    if not moving.is_linear:
        return None
    low = high = 0
    for name in sorted(moving.variables(), key=lambda v: abs(moving.coeff(v))):
        step, times = moving.coeff(name), free[name].trip - 1
        if abs(step) > high - low + extent:
            return None
        low, high = low + min(step * times, 0), high + max(step * times, 0)
    return low, high


def has_holes(expr: Affine, box: dict[str, Range]) -> bool:
    """Whether an index skips positions while its axes run through `box`, in some iteration.

    An index with // or % is taken to have none: its operator writes single steps (`tiling`).
    """
    if not expr.is_linear:
        return False
    reached: Ints = np.ones((), dtype=np.int64)
    for name in sorted(expr.variables(), key=lambda n: abs(expr.coeff(n))):
        low, high = box[name]
        step, width = abs(expr.coeff(name)), high - low + 1
        if np.any((step > reached) & (width > 1)):
            return True
        reached = reached + step * np.maximum(width - 1, 0)
    return False


def _named(atom: object, names: Sequence[str]) -> bool:
    return isinstance(atom, Var) and atom.name in names


def covered(wanted: list[Range], hulls: list[list[Range]], empty: Ints | None) -> bool:
    """True when, at every iteration, the union of the hulls holds the wanted box.

    Hulls join to larger ones as long as some touch along one dimension and are equal in the others
    (a grid of pieces becomes rows, rows become one); a single hull must then hold the box, or
    several that follow each other along one dimension and cover the others.
    """
    void: Ints = np.zeros((), dtype=bool) if empty is None else empty
    for low, high in wanted:
        void = void | (high < low)
    if not wanted:
        return bool(hulls) or bool(np.all(void))
    if _chained(wanted, hulls, void):
        return True
    joined = _joined(wanted, hulls)
    return len(joined) < len(hulls) and _chained(wanted, joined, void)


def _chained(wanted: list[Range], hulls: Sequence[Sequence[Range]], void: Ints) -> bool:
    """Hulls that cover all but one dimension follow each other along that one."""
    for along in range(len(wanted)):
        low, high = wanted[along]
        reached: Ints = low
        for _ in hulls:
            for hull in hulls:
                usable: Ints = np.ones((), dtype=bool)
                for dim, (first, last) in enumerate(hull):
                    if dim != along:
                        usable = usable & (first <= wanted[dim][0]) & (last >= wanted[dim][1])
                usable = usable & (hull[along][0] <= reached)
                reached = np.where(usable, np.maximum(reached, hull[along][1] + 1), reached)
            if np.all((reached > high) | void):
                return True
        if len(hulls) == 1:
            return False
    return bool(np.all(void))


def _joined(wanted: list[Range], hulls: list[list[Range]]) -> list[tuple[Range, ...]]:
    """The wanted parts of the hulls, pairs that make one box joined until none is left."""
    found = [
        tuple(
            (np.maximum(first, low), np.minimum(last, high))
            for (first, last), (low, high) in zip(hull, wanted, strict=True)
        )
        for hull in hulls
    ]
    before = len(found) + 1
    while len(found) < before:
        before = len(found)
        for along in range(len(wanted)):
            kept: list[tuple[Range, ...]] = []
            # Neighbours follow each other when their starts ascend.
            for hull in sorted(found, key=lambda h: int(np.min(h[along][0]))):
                for k, other in enumerate(kept):
                    if (union := _union(hull, other, along)) is not None:
                        kept[k] = union
                        break
                else:
                    kept.append(hull)
            found = kept
    return found


def _union(a: Sequence[Range], b: Sequence[Range], along: int) -> tuple[Range, ...] | None:
    """Both boxes as one, when they are equal but for one dimension, where they touch."""
    for dim, ((low, high), (other_low, other_high)) in enumerate(zip(a, b, strict=True)):
        if dim != along and not (np.all(low == other_low) and np.all(high == other_high)):
            return None
    (low, high), (other_low, other_high) = a[along], b[along]
    if np.any(np.maximum(low, other_low) > np.minimum(high, other_high) + 1):
        return None
    whole = np.minimum(low, other_low), np.maximum(high, other_high)
    return (*a[:along], whole, *a[along + 1 :])
