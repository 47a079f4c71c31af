"""What the iterations that the timing loop skipped add to a run: they are copies, moved in time.

The log of a run lacks them (`forward.forward`); a jump in front of entry e stands for `count`
copies of the last `length` entries before it, the c-th moved by c times `moved` cycles, with all
jumps inside.  The entries behind it are at their true times.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from worker.compiler.clock.forward import COMPUTE
from worker.compiler.clock.run import Ints, Timing
from worker.compiler.isa.program import UnitProgram, port_numbers

_AT, _LENGTH, _COUNT, _MOVED = range(4)


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
    if not len(run.jumps):
        return _union(start, end)
    found = _periodic(run, place, start, end)
    return _union(*spread(place, start, end, run.jumps)) if found is None else found


def busy_cycles(program: UnitProgram, run: Timing, entry: int) -> int:
    """How long an instruction keeps its engine; all instances of a port are equally fast."""
    row = program.instructions[run.row[entry]]
    ports = [program.resources[r] for r in row["resource"].tolist() if r >= 0]
    needs = [0] * len(ports)
    for port, number in zip(ports, port_numbers(ports).tolist(), strict=True):
        needs[number] += ceil(int(row["bytes"]) / port.payload_per_cycle)
    return max(int(row["cycles"]), *needs, 0)


def spread(place: Ints, start: Ints, end: Ints, jumps: Ints) -> tuple[Ints, Ints]:
    """(starts, ends) of all intervals, skipped ones included; `place`: entries of those logged."""
    at, low, high = place[:0], start[:0], end[:0]
    before = 0
    for position, length, count, moved in jumps.tolist():
        some = slice(*np.searchsorted(place, [before, position]))
        at = np.concatenate([at, place[some]])
        low, high = np.concatenate([low, start[some]]), np.concatenate([high, end[some]])
        copied = at >= position - length
        shift = np.repeat(moved * np.arange(1, count + 1), copied.sum())
        at = np.concatenate([at, np.tile(at[copied], count)])
        low = np.concatenate([low, np.tile(low[copied], count) + shift])
        high = np.concatenate([high, np.tile(high[copied], count) + shift])
        before = position
    some = slice(int(np.searchsorted(place, before)), None)
    return np.concatenate([low, start[some]]), np.concatenate([high, end[some]])


def _union(start: Ints, end: Ints) -> int:
    """Length of the union of intervals."""
    starts, ends = np.sort(start), np.sort(end)
    # Sorted apart, the k-th interval of the union breaks where start k+1 lies past end k.
    gaps = np.maximum(starts[1:] - ends[:-1], 0).sum()
    return int(ends[-1] - starts[0] - gaps)


def _periodic(run: Timing, place: Ints, start: Ints, end: Ints) -> int | None:
    """Length of the union of all intervals, skipped ones included, without listing them.

    Every jump stands for a stretch of time, `count * moved` long, in which there is nothing but
    copies: it begins one iteration behind the first interval of the last one that was timed.
    Without these stretches the log is whole, at *reduced* times; inside one, the union has what the
    copies cover of a circle as long as an iteration, `count` times.  None where something else runs
    in a stretch, where two of them overlap, or where more than two iterations are under way.
    """
    jumps = run.jumps
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


@dataclass(slots=True)
class Repeats:
    """The instructions of one stream in the order in which they run, skipped ones included."""

    place: Ints
    """Its entries in the log."""
    jumps: Ints
    _ranges: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)

    def find(self, number: int) -> tuple[int, int]:
        """(entry of the log, cycles by which it is moved) of the number-th to run."""
        return self._find(-1, number, 0)

    def _find(self, jump: int, number: int, moved: int) -> tuple[int, int]:
        ends, parts = self._parts(jump)
        k = bisect_right(ends, number)
        number -= ends[k - 1] if k else 0
        part = parts[k]
        if part < 0:
            return int(self.place[-1 - part + number]), moved
        copy, number = divmod(number, self._size(part))
        return self._find(part, number, moved + (copy + 1) * int(self.jumps[part, _MOVED]))

    def _size(self, jump: int) -> int:
        """Instructions of one iteration that a jump skips."""
        if jump not in self._sizes:
            self._sizes[jump] = self._parts(jump)[0][-1]
        return self._sizes[jump]

    def _parts(self, jump: int) -> tuple[list[int], list[int]]:
        """(where each part of a skipped iteration ends, what it is: a jump, or -1 - the number of
        its first entry); of all that runs for -1."""
        if jump not in self._ranges:
            begin, end = 0, int(self.jumps[-1, _AT]) if len(self.jumps) else 0
            last = len(self.jumps)
            if jump >= 0:
                end = int(self.jumps[jump, _AT])
                begin, last = end - int(self.jumps[jump, _LENGTH]), jump
            ends: list[int] = []
            parts: list[int] = []
            total, at = 0, int(np.searchsorted(self.place, begin))
            tops = np.searchsorted(self.jumps[:last, _AT], [begin, end], side="right")
            for k in range(*tops.tolist()):  # copies of an outer one follow those inside
                stop = int(np.searchsorted(self.place, self.jumps[k, _AT]))
                for part, size in ((-1 - at, stop - at), (k, self._copies(k))):
                    if size:
                        total += size
                        ends.append(total)
                        parts.append(part)
                at = stop
            stop = len(self.place) if jump < 0 else int(np.searchsorted(self.place, end))
            if stop > at or not ends:
                ends.append(total + stop - at)
                parts.append(-1 - at)
            self._ranges[jump] = ends, parts
        return self._ranges[jump]

    def _copies(self, jump: int) -> int:
        return self._size(jump) * int(self.jumps[jump, _COUNT])
