"""Numbers for sets of elements: equal sets of one dimension of one tensor have one number.

Most sets are single intervals, and a schedule over large tensors has a million of them, so these
are told apart as arrays: by where they begin and how long they are, in one integer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from worker.compiler.audit.sets import Pattern, Patterns
from worker.compiler.ir.distinct import distinct, distinct_where
from worker.compiler.schedule.grid import Ints

Dimension = tuple[str, int]
"""(tensor, dimension)."""

_FEW = 64
"""Codes that are looked up one by one, at 0.2 us, and not sorted first, which takes 15 us."""
_LENGTH = (1 << 32) - 1


class Known:
    """A number for each code that was met."""

    def __init__(self) -> None:
        self.codes: Ints = np.zeros(0, dtype=np.int64)
        """Ascending."""
        self.numbers: Ints = np.zeros(0, dtype=np.int64)

    def of(self, codes: Ints, new: Callable[[Ints], Ints]) -> Ints:
        """The numbers of ascending codes; `new` gives those of codes that are not known yet."""
        at = np.searchsorted(self.codes, codes)
        is_known = np.zeros(len(codes), dtype=np.bool_)
        inside = at < len(self.codes)
        is_known[inside] = self.codes[at[inside]] == codes[inside]
        found = np.empty(len(codes), dtype=np.int64)
        found[is_known] = self.numbers[at[is_known]]
        if not is_known.all():
            fresh = ~is_known
            found[fresh] = new(codes[fresh])
            self.codes = np.insert(self.codes, at[fresh], codes[fresh])
            self.numbers = np.insert(self.numbers, at[fresh], found[fresh])
        return found


class NumberedSets:
    """Sets by number."""

    def __init__(self, patterns: Patterns) -> None:
        self.patterns = patterns
        self.count = 0
        self._few: dict[tuple[Dimension, tuple[int, int]], dict[int, int]] = {}
        self._many: dict[tuple[Dimension, tuple[int, int]], Known] = {}
        self._intervals: dict[Dimension, Known] = {}
        self._others: dict[tuple[Dimension, Pattern], int] = {}
        """Sets of no interval or several."""

    def numbers(self, of: Dimension, start: Ints, kind: Ints, clip: tuple[int, int]) -> Ints:
        """The number of each set (`sets`), as far as it lies inside `clip`."""
        code = (start.astype(np.int64) << 32) + (kind.astype(np.int64) + (1 << 31))
        if code.size > _FEW:
            codes, where = distinct_where(code)
            many: Ints = self._found(of, clip, codes)[where]
            return many.reshape(code.shape)
        values = code.ravel().tolist()
        few = self._few.setdefault((of, clip), {})
        fresh = sorted({value for value in values if value not in few})
        if fresh:
            found = self._found(of, clip, np.array(fresh, dtype=np.int64))
            few.update(zip(fresh, found.tolist(), strict=True))
        return np.array([few[value] for value in values], dtype=np.int64).reshape(code.shape)

    def pieces(self) -> tuple[Ints, dict[Dimension, tuple[Ints, Ints]], dict[Dimension, Ints]]:
        """(pointer, intervals, edges) of all sets so far.

        Set k has the intervals pointer[k] : pointer[k + 1]; of each dimension, the numbers of its
        intervals and [n, 2] their ends, and where any of them begins or ends, ascending.
        """
        counts = np.ones(self.count, dtype=np.int64)
        for (_, pattern), number in self._others.items():
            counts[number] = len(pattern)
        pointer: Ints = np.concatenate([[0], np.cumsum(counts)])
        places: dict[Dimension, list[Ints]] = {}
        ends: dict[Dimension, list[Ints]] = {}
        for of, known in self._intervals.items():
            low = known.codes >> 32
            places[of] = [pointer[known.numbers]]
            ends[of] = [np.stack([low, low + (known.codes & _LENGTH)], axis=1)]
        for (of, pattern), number in self._others.items():
            places.setdefault(of, []).append(np.arange(pointer[number], pointer[number + 1]))
            ends.setdefault(of, []).append(np.array(pattern, dtype=np.int64).reshape(-1, 2))
        intervals = {of: (np.concatenate(places[of]), np.concatenate(ends[of])) for of in places}
        return pointer, intervals, {of: distinct(both) for of, (_, both) in intervals.items()}

    def _found(self, of: Dimension, clip: tuple[int, int], codes: Ints) -> Ints:
        known = self._many.setdefault((of, clip), Known())
        return known.of(codes, lambda fresh: self._new(of, clip, fresh))

    def _new(self, of: Dimension, clip: tuple[int, int], codes: Ints) -> Ints:
        first, kinds = codes >> 32, (codes & _LENGTH) - (1 << 31)
        low: Ints = np.maximum(first, clip[0])
        high: Ints = np.minimum(first + kinds, clip[1])
        found = np.empty(len(codes), dtype=np.int64)
        is_one = (kinds > 0) & (low < high)
        found[is_one] = self._single(of, low[is_one], high[is_one])
        for k in np.flatnonzero(~is_one).tolist():
            start, pattern = int(first[k]), []
            for begin, end in self.patterns.intervals(int(kinds[k])):
                begin, end = max(start + begin, clip[0]), min(start + end, clip[1])
                if begin < end:
                    pattern.append((begin, end))
            if len(pattern) == 1:
                found[k] = self._single(of, *np.array(pattern, dtype=np.int64).T)[0]
                continue
            key = of, tuple(pattern)
            if key not in self._others:
                self._others[key] = self._take(1)
            found[k] = self._others[key]
        return found

    def _single(self, of: Dimension, low: Ints, high: Ints) -> Ints:
        known = self._intervals.setdefault(of, Known())
        codes, where = distinct_where((low << 32) + (high - low))
        fresh = known.of(codes, lambda new: self._take(len(new)) + np.arange(len(new)))
        found: Ints = fresh[where]
        return found

    def _take(self, how_many: int) -> int:
        """The first of so many numbers that nothing has yet."""
        self.count += how_many
        return self.count - how_many
