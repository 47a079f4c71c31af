"""What the iterations that the clock skipped add to a run: they are copies, moved in time.

The log of a run lacks them (`clock.copies`); what stands in it is at its true times.
"""

from __future__ import annotations

from bisect import bisect_right
from math import ceil

import numpy as np

from worker.compiler.clock.copies import BACK, LASTS, LOGGED, MANY, MOVED, PUT, WHEN, locate
from worker.compiler.clock.forward import COMPUTE
from worker.compiler.clock.run import Ints, Timing
from worker.compiler.isa.program import UnitProgram, port_numbers

_AT, _LENGTH, _COUNT, _MOVED = range(4)
"""Columns of `_jumps`."""


def compute_cycles(program: UnitProgram, run: Timing) -> int:
    """Cycles during which at least one compute engine is busy.

    Cost: sorting what was logged; where loops run side by side, sorting all that runs.
    """
    is_compute = program.instructions["opcode"] == COMPUTE
    place = np.flatnonzero(is_compute[run.row])
    if not len(place):
        return 0
    start = run.begin[place]
    end = start + program.instructions["cycles"][run.row[place]]
    if not len(run.copies):
        return _union(start, end)
    if not run.in_order:
        return _Covered(place, start, end, run.copies).in_all()
    found = _periodic(run, _jumps(run.copies), place, start, end)
    return _union(*spread(place, start, end, run.copies)) if found is None else found


def busy_cycles(program: UnitProgram, run: Timing, entry: int) -> int:
    """How long an instruction keeps its engine; all instances of a port are equally fast."""
    row = program.instructions[run.row[entry]]
    ports = [program.resources[r] for r in row["resource"].tolist() if r >= 0]
    needs = [0] * len(ports)
    for port, number in zip(ports, port_numbers(ports).tolist(), strict=True):
        needs[number] += ceil(int(row[port.counted]) / port.payload_per_cycle)
    return max(int(row["cycles"]), *needs, 0)


def spread(place: Ints, start: Ints, end: Ints, copies: Ints) -> tuple[Ints, Ints]:
    """(starts, ends) of all intervals, copies included; `place`: entries of those in the log."""
    runs = Repeats(place, copies)
    total, there = runs.total, 0
    low, high = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    for k in range(len(copies) + 1):
        stop = runs.logged[k] if k < len(copies) else len(place)
        at = (runs.first[k] if k < len(copies) else total) - (stop - there)
        low[at : at + stop - there], high[at : at + stop - there] = (
            start[there:stop],
            end[there:stop],
        )
        there = stop
        if k < len(copies) and runs.many[k]:
            number = np.arange(runs.many[k])
            source = runs.source[k] + number % runs.lap[k]
            moved = (number // runs.lap[k] + 1) * copies[k, MOVED]
            mine = slice(runs.first[k], runs.first[k] + runs.many[k])
            low[mine], high[mine] = low[source] + moved, high[source] + moved
    return low, high


def _union(start: Ints, end: Ints) -> int:
    """Length of the union of intervals."""
    starts, ends = np.sort(start), np.sort(end)
    # Sorted apart, the k-th interval of the union breaks where start k+1 lies past end k.
    gaps = np.maximum(starts[1:] - ends[:-1], 0).sum()
    return int(ends[-1] - starts[0] - gaps)


def _jumps(copies: Ints) -> Ints:
    """[.., 4] Iterations skipped by the pass in program order, by entries of the log: in front of
    which; how many it has of one; how many are skipped; cycles by which each moves."""
    first = [locate(copies, put - back)[0] for put, back in copies[:, [PUT, BACK]].tolist()]
    count = copies[:, MANY] // copies[:, BACK]
    return np.stack([copies[:, LOGGED], copies[:, LOGGED] - first, count, copies[:, MOVED]], axis=1)


def _periodic(run: Timing, jumps: Ints, place: Ints, start: Ints, end: Ints) -> int | None:
    """Length of the union of all intervals of a pass in program order, without listing them.

    Every jump stands for a stretch of time, `count * moved` long, in which there is nothing but
    copies: it begins one iteration behind the first interval of the last one that was timed.
    Without these stretches the log is whole, at *reduced* times; inside one, the union has what the
    copies cover of a circle as long as an iteration, `count` times.  None where something else runs
    in a stretch, where two of them overlap, or where more than two iterations are under way.
    """
    latest = np.concatenate([[0], np.maximum.accumulate(end)])
    earliest = np.append(np.minimum.accumulate(start[::-1])[::-1], np.iinfo(np.int64).max)
    total, done, added = 0, 0, np.zeros(len(jumps), dtype=np.int64)
    for k, (position, length, count, moved) in enumerate(jumps.tolist()):
        own = slice(*np.searchsorted(place, [position - length, position]))
        low, high = start[own], end[own]
        is_empty = own.start == own.stop
        if is_empty:
            low = high = run.begin[position - length : position]
        first = int(low.min()) + moved
        behind = first if is_empty else int(high.max())
        near = 0 if is_empty else 2 * length
        far = np.searchsorted(place, [position - near, position + near])
        if first < done or latest[far[0]] > first or earliest[far[1]] < behind + count * moved:
            return None
        done = first + count * moved
        if is_empty:
            continue
        if moved == 0 or high.max() - low.min() > 2 * moved:
            return None
        inside = np.flatnonzero(jumps[:k, _AT] > position - length).tolist()
        cut = np.zeros(len(low), dtype=np.int64)
        turn, inner = moved, 0
        for i in inside:
            skipped = int(jumps[i, _COUNT] * jumps[i, _MOVED])
            cut[place[own] >= jumps[i, _AT]] += skipped
            turn -= skipped
            inner += int(jumps[i, _COUNT] * added[i])
        added[k] = _on_circle(low - cut, high - cut, turn) + inner
        total += int(count * added[k])
    cut = np.zeros(len(place), dtype=np.int64)
    for position, _, count, moved in jumps.tolist():
        cut[np.searchsorted(place, position) :] += count * moved
    return total + _union(start - cut, end - cut)


def _on_circle(start: Ints, end: Ints, turn: int) -> int:
    """What intervals cover of a circle."""
    if np.any(end - start >= turn):
        return turn
    low, length = start % turn, end - start
    over = np.maximum(low + length - turn, 0)
    starts = np.concatenate([low, np.zeros(np.count_nonzero(over), dtype=np.int64)])
    ends = np.concatenate([low + length - over, over[over > 0]])
    return _union(starts, ends)


class _Covered:
    """Length of the union of all intervals up to some time, where the clock went by readiness.

    A copy then stands for a stretch of time in which there is nothing else, and an interval that
    reaches into it has its like in the stretch that is copied.  Without these stretches the log is
    whole, at reduced times.
    """

    def __init__(self, place: Ints, start: Ints, end: Ints, copies: Ints) -> None:
        self._when: list[int] = copies[:, WHEN].tolist()
        self._lasts: list[int] = copies[:, LASTS].tolist()
        self._moved: list[int] = copies[:, MOVED].tolist()
        skipped = np.concatenate([[0], np.cumsum(copies[:, LASTS])])
        cut = skipped[np.searchsorted(copies[:, LOGGED], place, side="right")]
        low, high = np.sort(start - cut), np.sort(end - cut)
        is_last = np.append(low[1:] > high[:-1], True)
        self._end = high[is_last]
        self._start = low[np.concatenate([[True], is_last[:-1]])]
        self._sum = np.concatenate([[0], np.cumsum(self._end - self._start)])
        self._skipped = skipped.tolist()
        self._before: list[int] = []
        """By copy: up to where it begins."""
        self._source: list[int] = []
        """Up to where the first lap of what it copies begins."""
        self._lap: list[int] = []
        self._gain: list[int] = []
        for k, (when, lasts, moved) in enumerate(
            zip(self._when, self._lasts, self._moved, strict=True)
        ):
            self._before.append(self._until(when, k))
            self._source.append(self._until(when - moved, k))
            self._lap.append(self._before[k] - self._source[k])
            self._gain.append(self._within(k, lasts))

    def in_all(self) -> int:
        return self._until(int(self._end[-1]) + self._skipped[-1], len(self._when))

    def _until(self, time: int, known: int) -> int:
        """`known`: copies that may be asked."""
        k = bisect_right(self._when, time, hi=known) - 1
        if k < 0:
            return self._reduced(time)
        inside = time - self._when[k]
        if inside < self._lasts[k]:
            return self._before[k] + self._within(k, inside)
        since = self._reduced(time - self._skipped[k + 1])
        return (
            self._before[k]
            + self._gain[k]
            + since
            - self._reduced(self._when[k] - self._skipped[k])
        )

    def _within(self, k: int, inside: int) -> int:
        """The first cycles of a copy."""
        laps, rest = divmod(inside, int(self._moved[k]))
        part = self._until(self._when[k] - self._moved[k] + rest, k) - self._source[k]
        return laps * self._lap[k] + part

    def _reduced(self, time: int) -> int:
        k = int(np.searchsorted(self._start, time, side="right"))
        over = max(int(self._end[k - 1]) - time, 0) if k else 0
        return int(self._sum[k]) - over


class Repeats:
    """Some of the instructions, those of one stream say, in the order in which they run, copies
    included.  By copy: `logged`, how many of them stand in the log in front of it; `first`, how
    many in all; `many`, how many it has; `lap`, how many in one lap; `source`, how many stand in
    front of what it copies."""

    def __init__(self, place: Ints, copies: Ints) -> None:
        """`place`: their entries in the log."""
        self._place = place
        self._copies = copies
        self.logged: list[int] = np.searchsorted(place, copies[:, LOGGED]).tolist()
        self.first: list[int] = []
        self.source: list[int] = []
        self.lap: list[int] = []
        self.many: list[int] = []
        for k, (put, many, back) in enumerate(copies[:, :MOVED].tolist()):
            self.first.append(self._before(put, k))
            self.source.append(self._before(put - back, k))
            self.lap.append(self.first[k] - self.source[k])
            self.many.append(self._within(k, many))
        self.total = len(place) + sum(self.many)

    def find(self, number: int) -> tuple[int, int]:
        """(entry of the log, cycles by which it is moved) of the number-th to run."""
        moved = 0
        while True:
            k = bisect_right(self.first, number) - 1
            if k < 0:
                return int(self._place[number]), moved
            inside = number - self.first[k]
            if inside >= self.many[k]:
                return int(self._place[self.logged[k] + inside - self.many[k]]), moved
            laps = inside // self.lap[k] + 1
            number -= laps * self.lap[k]
            moved += laps * int(self._copies[k, MOVED])

    def _before(self, number: int, known: int) -> int:
        """How many of them stand in front of instruction `number` of all; `known`: copies that may
        be asked."""
        k = int(np.searchsorted(self._copies[:known, PUT], number, side="right")) - 1
        if k < 0:
            return int(np.searchsorted(self._place, number))
        put, many, _, _, logged = self._copies[k, :WHEN].tolist()
        behind = number - put - many
        if behind < 0:
            return self.first[k] + self._within(k, number - put)
        here = int(np.searchsorted(self._place, logged + behind)) - self.logged[k]
        return self.first[k] + self.many[k] + here

    def _within(self, k: int, inside: int) -> int:
        """How many are among the first instructions of a copy."""
        put, _, back = map(int, self._copies[k, :MOVED])
        laps, rest = divmod(inside, back)
        return laps * self.lap[k] + self._before(put - back + rest, k) - self.source[k]
