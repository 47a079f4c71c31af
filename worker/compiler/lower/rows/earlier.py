"""What a later part of a sequence finds in a cache because earlier ones have moved it.

The last node that a leaf and those before it have in common is a Seq; in one iteration of the loops
around that, part k moves what part j < k has moved.  It is there if all lines that the parts j to k
move fit, with what fills of later parts are issued early.  Two cases:

- The tensor is made in this kernel: whatever is read has been written in front of it (the audit
  sees to that), by parts j to k - 1, which hold all of its writers.  Where loops around the
  sequence repeat, each must give writers and reader a slab of the tensor of their own.
- It comes from outside: a move in part j fetches all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from worker.compiler.ir.distinct import distinct
from worker.compiler.lower.rows.at_home import Use, crossed
from worker.compiler.schedule.nodes import Move
from worker.compiler.schedule.walk import Frame

Path = tuple[int, ...]


class Earlier:
    """The uses of one kernel, by where they stand.  `inner`: paths of nodes that are no Seq."""

    def __init__(self, uses: Iterable[Use], inner: Collection[str], capacity: int) -> None:
        self._uses = [(_path(use), use) for use in uses]
        self._inner = inner
        self._capacity = capacity
        self._of: dict[str, list[tuple[Path, Use]]] = {}
        for path, use in self._uses:
            self._of.setdefault(use.tensor.name, []).append((path, use))
        self._moved: dict[Path, dict[int, dict[str, tuple[int, int]]]] = {}
        self._early: dict[Path, dict[int, int]] = {}

    def hands(self, use: Use) -> bool:
        """Whether all that a leaf reads is there already.

        Cost: linear in the uses of the tensor, and in the parts between.
        """
        path, others = _path(use), self._of[use.tensor.name]
        writers = [(p, u) for p, u in others if u.is_write]
        if writers:
            place = _common([path, *(p for p, _ in writers)])
            first = self._first_part(path, place, [p for p, _ in writers])
            around = _around(use, place)
            return (
                first is not None
                and _is_in_place(use, around)
                and _have_own_slabs([use, *(u for _, u in writers)], around)
                and self._fits(place, first, path[len(place)])
            )
        for other_path, other in reversed(others):
            place = _common([path, other_path])
            first = self._first_part(path, place, [other_path])
            around = _around(use, place)
            are_in_place = _is_in_place(use, around) and _is_in_place(other, around)
            if first is not None and are_in_place and _reads_all(other, around):
                return self._fits(place, first, path[len(place)])
        return False

    def _first_part(self, path: Path, place: Path, others: Sequence[Path]) -> int | None:
        """First part of the Seq at `place` that one of the others is in, if all stand in front."""
        if ".".join(map(str, place)) in self._inner or len(place) == len(path):
            return None
        parts = [other[len(place)] for other in others]
        return min(parts) if max(parts) < path[len(place)] else None

    def _fits(self, place: Path, first: int, last: int) -> bool:
        """Whether what these parts move, and what is issued early, fits."""
        if place not in self._moved:
            self._gather(place)
        total = sum(n for part, n in self._early[place].items() if not first <= part <= last)
        seen: dict[str, int] = {}
        for part in range(last, first - 1, -1):
            for name, (count, whole) in self._moved[place].get(part, {}).items():
                before = seen.get(name, 0)
                seen[name] = min(before + count, whole)
                total += seen[name] - before
            if total > self._capacity:
                return False
        return True

    def _gather(self, place: Path) -> None:
        """Bytes of lines that each part of a Seq moves in one iteration around it, by tensor."""
        moved: dict[int, dict[str, tuple[int, int]]] = {}
        early: dict[int, int] = {}
        for path, use in self._uses:
            is_here = path[: len(place)] == place
            if use.early:
                part = path[len(place)] if is_here else -1
                early[part] = early.get(part, 0) + use.early * use.lines(use.cores)
            if not is_here:
                continue
            part, outside = path[len(place)], _around(use, place)
            inside = [f for f in use.leaf.frames if f.is_repeating and f not in outside]
            turning = [f for last in outside[-1:] for f in crossed(use.ahead, last)]
            times = 2 if any(use.varies(f) for f in turning) and _is_ahead(use, outside) else 1
            count = times * use.lines((*use.cores, *inside))
            of = moved.setdefault(part, {})
            of[use.tensor.name] = (
                min(of.get(use.tensor.name, (0, 0))[0] + count, use.whole), use.whole,
            )  # fmt: skip
        self._moved[place], self._early[place] = moved, early


def _path(use: Use) -> Path:
    return tuple(map(int, use.leaf.path.split(".")))


def _common(paths: Sequence[Path]) -> Path:
    """The longest path that all begin with."""
    low, high = min(paths), max(paths)
    size = 0
    while size < min(len(low), len(high)) and low[size] == high[size]:
        size += 1
    return low[:size]


def _around(use: Use, place: Path) -> list[Frame]:
    """Loops that repeat around a node, outermost first."""
    depth = len(place)
    return [f for f in use.leaf.frames if f.is_repeating and f.path.count(".") + 1 <= depth]


def _is_in_place(use: Use, outside: Sequence[Frame]) -> bool:
    """Whether all of it is issued in its own part, in its own iteration of the loops around."""
    return not use.early and not _is_ahead(use, outside)


def _is_ahead(use: Use, outside: Sequence[Frame]) -> bool:
    """Whether some of it is issued in an iteration before its own of the loops around."""
    return use.ahead is not None and any(f in outside for f in use.ahead.frames)


def _have_own_slabs(uses: Sequence[Use], around: Sequence[Frame]) -> bool:
    """Whether in every iteration of the loops around they move another slab of the tensor."""
    done: list[str] = []
    for frame in around:
        if frame.trip > 1 and not any(
            _is_slab(uses, frame, done, d) for d in range(len(uses[0].box))
        ):
            return False
        done.append(frame.var)
    return True


def _is_slab(uses: Sequence[Use], frame: Frame, done: Sequence[str], d: int) -> bool:
    """Whether dimension d of what they move advances by at least its width with a loop; the loops
    `done` around it move all of them alike."""
    spans = [use.box[d] for use in uses]
    if not all(span.start.is_linear for span in spans):
        return False
    fixed = (frame.var, *done)
    steps = {tuple(span.start.coeff(name) for name in fixed) for span in spans}
    if len(steps) > 1:
        return False
    lows, highs = [], []
    for use, span in zip(uses, spans, strict=True):
        ranges = {f.var: (0, 0 if f.var in fixed else f.trip - 1) for f in use.leaf.frames}
        low, high, _ = span.start.bounds(ranges)
        lows.append(low)
        highs.append(high + span.extent)
    return max(highs) - min(lows) <= abs(next(iter(steps))[0])


def _reads_all(use: Use, around: Sequence[Frame]) -> bool:
    """Whether a move touches a tensor as a whole in one iteration of the loops around; of what a
    compute has brought to it the hull alone is known."""
    if not isinstance(use.leaf.node, Move) or use.may_be_unread:
        return False
    if any(use.varies(f) for f in around if f.trip > 1):
        return False
    trips = {f.var: f.trip for f in use.leaf.frames}
    named: set[str] = set()
    for span, extent in zip(use.box, use.tensor.shape, strict=True):
        names = [name for name in span.start.variables() if trips[name] > 1]
        if not span.start.is_linear or named & set(names):
            return False
        named |= set(names)
        at = np.array([span.start.const])
        for name in names:
            at = np.add.outer(at, span.start.coeff(name) * np.arange(trips[name])).ravel()
        at = distinct(at)
        if at[0] > 0 or at[-1] + span.extent < extent or np.any(np.diff(at) > span.extent):
            return False
    return True
