"""Cycles of the clock that goes by readiness: iterations that run as earlier ones did are copied.

The state, when all in front of an iteration of a loop have run: how far the streams are ahead, what
is waited for, and every time that still matters, from the present one on.  Two equal states are
followed by the same, so all iterations of the loop but the last few are skipped in multiples of
those between the two.  States are kept across runs of a loop, and of loops that are alike: where
one begins in the middle of a cycle that is known, its first state is the only one needed.
Source: R. P. Brent, An improved Monte Carlo factorization algorithm (1980), for which state is kept
when no more are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from worker.compiler.clock.alike import alike
from worker.compiler.clock.readiness import (
    ACTIVATION,
    BY,
    DEPTHS,
    DONE,
    ENTRY,
    FIRST_SIGNAL,
    HEAD,
    IN_LOG,
    ITERATION,
    KNOWN,
    LAST,
    LATEST,
    LATEST_BY,
    LEVEL,
    LOOP,
    MARK_TAIL,
    MARKS,
    MISSING,
    NEVER,
    NEXT_ROW,
    NOW,
    READY,
    RUN,
    SENDER,
    SENDER_AT,
    SENT,
    SIGNALS,
    TAIL,
    TIME,
)
from worker.compiler.isa.program import UnitProgram
from worker.compiler.jit import loop_for

Ints = npt.NDArray[np.int64]

MOST_STATES = 48
"""Kept of a loop; a cycle that is longer is found by the last of them alone."""
PATIENCE = 4
"""Runs of a loop in which nothing is found before only some look: the 8th, the 16th, ..
A state costs about what a few hundred instructions do; without this, loops whose iterations never
repeat before they end would be asked for one at each."""
_STEPS = 2
"""What one number of a state takes, in steps of a usual loop (`jit.INTERPRETED_STEPS`)."""


class Arrays(NamedTuple):
    """What the clock keeps (`readiness.by_readiness`), as far as states are made of it."""

    ring: Ints
    signals: Ints
    tokens: Ints
    marks: Ints
    head: Ints
    earliest: Ints
    stream_stamp: Ints
    port_stamp: Ints
    stream_free: Ints
    port_free: Ints
    open_loop: Ints
    counter: Ints
    activation: Ints
    done_with: Ints
    crossed: Ints
    place: Ints
    totals: Ints


@dataclass(slots=True)
class _State:
    """When and where a state was."""

    run: int
    iteration: int
    now: int
    entry: int
    totals: Ints
    cycle: _Cycle | None = None


@dataclass(frozen=True, slots=True)
class _Cycle:
    """What lies between two equal states."""

    period: int
    """Iterations."""
    began: int
    """Instructions in front of it."""
    ended: int
    began_at: int
    ended_at: int
    totals: Ints
    """What it adds to them."""


@dataclass(slots=True)
class _Search:
    """What is known of loops that are alike."""

    states: dict[bytes, _State] = field(default_factory=dict)
    last: bytes = b""
    """The one that is replaced when there are too many."""
    power: int = 1
    """States until then."""
    since: int = 0
    idle: int = 0
    """Runs in a row in which nothing was found."""
    tried: int = -1
    """The run that looks."""


class Cycles:
    """The states of one program's run."""

    def __init__(
        self, program: UnitProgram, steps: npt.NDArray[np.bool_], may_jump: npt.NDArray[np.bool_]
    ) -> None:
        """`steps`: loops whose iterations use other streams, ports or tokens; `may_jump`: those
        whose iterations may be skipped."""
        self._first: list[int] = program.loops.table["first"].tolist()
        self._trip: list[int] = program.loops.table["trip"].tolist()
        self._wait_ptr = program.wait_ptr
        self._steps = steps
        self._like: list[int] = alike(program, may_jump).tolist()
        self._searches = {like: _Search() for like in self._like}
        self.copies: list[tuple[int, ...]] = []

    def look(self, at: Arrays) -> None:
        """At the states of all loops of which an iteration begins, inner ones first; skip
        iterations where one is known."""
        for depth in range(int(at.place[DEPTHS]) - 1, -1, -1):
            run, iteration = at.crossed[depth].tolist()
            at.crossed[depth, 0] = -1
            if run < 0:
                continue
            loop = int(at.open_loop[depth])
            search = self._searches[self._like[loop]]
            if not _is_tried(search, run):
                at.done_with[loop] = run
                continue
            cycle, state = self._find(search, run, iteration, self._state(at, depth, iteration), at)
            if cycle is None:
                continue
            search.idle = 0
            at.done_with[loop] = run
            laps = (self._trip[loop] - 2 - int(at.counter[depth])) // cycle.period
            if laps > 0 and cycle.ended_at > cycle.began_at:
                self._copy(at, cycle, state, laps)
                _move(at, cycle, laps, depth)
                at.crossed[:depth, 0] = -1
                return

    def _state(self, at: Arrays, depth: int, iteration: int) -> bytes:
        place = at.place
        known = int(place[KNOWN] - place[TAIL])
        room = 4 + len(at.counter) + 3 * len(at.stream_free) + 2 * len(at.port_free)
        room += 5 * len(at.tokens) + 4 * known + 3 * len(at.signals)
        state = np.empty(room, dtype=np.int64)
        size = loop_for(take_state, _STEPS * (room - 3 * len(at.signals)))(
            at.ring, at.signals, at.tokens, at.head, at.stream_stamp, at.port_stamp,
            at.stream_free, at.port_free, at.open_loop, at.counter, place, self._steps,
            self._wait_ptr, self._first[at.open_loop[depth]], depth, iteration, state,
        )  # fmt: skip
        return state[:size].tobytes()

    def _find(
        self, search: _Search, run: int, iteration: int, key: bytes, at: Arrays
    ) -> tuple[_Cycle | None, _State]:
        """The cycle that the present state is in, if one is known, and that state in it."""
        here = _State(run, iteration, int(at.place[NOW]), int(at.place[ENTRY]), at.totals.copy())
        state = search.states.get(key)
        if state is None:
            _keep(search, key, here)
            return None, here
        if state.cycle is None and state.run == run:
            between = here.totals - state.totals
            cycle = _Cycle(
                iteration - state.iteration, state.entry, here.entry, state.now, here.now, between
            )
            for each in search.states.values():
                if each.run == run and each.iteration >= state.iteration:
                    each.cycle = cycle
        elif state.cycle is None:
            search.states[key] = here
        return state.cycle, state

    def _copy(self, at: Arrays, cycle: _Cycle, state: _State, laps: int) -> None:
        """The rest of the cycle from where the state is in it, its beginning, and whole ones."""
        number, now = at.place[[ENTRY, NOW]].tolist()
        length, moved = cycle.ended - cycle.began, cycle.ended_at - cycle.began_at
        behind, end = number + laps * length, now + laps * moved
        parts: list[tuple[int, int, int, int]] = []
        if number != cycle.ended:
            parts = [
                (state.entry, cycle.ended, state.now, cycle.ended_at),
                (cycle.began, state.entry, cycle.began_at, state.now),
            ]
        for first, last, since, until in parts:
            if last > first:
                self._add(at, number, last - first, number - first, now - since, now, until - since)
                number, now = number + last - first, now + until - since
        if number < behind:
            self._add(at, number, behind - number, length, moved, now, end - now)

    def _add(
        self, at: Arrays, put: int, many: int, back: int, moved: int, when: int, lasts: int
    ) -> None:
        self.copies.append((put, many, back, moved, int(at.place[IN_LOG]), when, lasts))


def _is_tried(search: _Search, run: int) -> bool:
    """Whether states of this run of a loop are asked for."""
    if search.tried != run:
        search.idle += 1
        if search.idle > PATIENCE and search.idle & (search.idle - 1):
            return False
        search.tried = run
    return True


def _keep(search: _Search, key: bytes, state: _State) -> None:
    """Remember a state.  Once there are many only the last is replaced, less and less often."""
    if len(search.states) >= MOST_STATES:
        search.since += 1
        if search.since < search.power or search.states[search.last].cycle is not None:
            return
        search.since = 0
        search.power *= 2
        del search.states[search.last]
    search.states[key] = state
    search.last = key


def _move(at: Arrays, cycle: _Cycle, laps: int, depth: int) -> None:
    """All times that still matter, and the numbers of what they are of, by some laps."""
    place, now = at.place, int(at.place[NOW])
    by, size = laps * (cycle.ended_at - cycle.began_at), laps * (cycle.ended - cycle.began)
    tail, known, signals = place[[TAIL, KNOWN, SIGNALS]].tolist()
    slots = np.arange(tail, known) & (len(at.ring) - 1)
    oldest = at.ring[tail & (len(at.ring) - 1), FIRST_SIGNAL] if tail < known else signals
    sent = np.arange(oldest, signals) & (len(at.signals) - 1)
    run = at.activation[depth]
    _later(at.stream_free, at.stream_stamp, slice(None), now, by, size)
    _later(at.port_free, at.port_stamp, slice(None), now, by, size)
    _later(at.tokens[:, LATEST], at.tokens[:, LATEST_BY], slice(None), now, by, size)
    _later(at.ring[:, READY], at.ring[:, SENDER], slots, now, by, size)
    _later(at.signals[:, TIME], at.signals[:, BY], sent, now, by, size)
    at.earliest[(at.earliest >= now) & (at.earliest < NEVER)] += by
    marks = np.arange(place[MARK_TAIL], place[MARKS]) & (len(at.marks) - 1)
    own = marks[(at.marks[marks, LOOP] == depth) & (at.marks[marks, ACTIVATION] == run)]
    at.marks[own, ITERATION] += laps * cycle.period
    at.counter[depth] += laps * cycle.period
    at.totals[:] += laps * cycle.totals
    place[ENTRY] += size


def _later(times: Ints, whose: Ints, where: Any, now: int, by: int, size: int) -> None:
    is_alive = times[where] >= now
    times[where] += by * is_alive
    whose[where] += size * is_alive


def take_state(
    ring: Ints, signals: Ints, tokens: Ints, head: Ints, stream_stamp: Ints, port_stamp: Ints,
    stream_free: Ints, port_free: Ints, open_loop: Ints, counter: Ints, place: Ints,
    loop_steps: npt.NDArray[np.bool_], wait_ptr: Ints, begins: int, depth: int, iteration: int,
    state: Ints,
) -> int:  # fmt: skip
    """Fill `state` with numbers that are equal where what follows is; returns how many.

    Which instructions and signals are known follows from how far the program was read.
    """
    ring_mask, signal_mask = len(ring) - 1, len(signals) - 1
    entry, now, tail, known = place[ENTRY], place[NOW], place[TAIL], place[KNOWN]
    next_signal, level = place[SIGNALS], place[LEVEL]
    state[0] = place[NEXT_ROW] - begins
    state[1] = known - tail
    state[2] = counter[depth] - iteration
    state[3] = place[MARKS] - place[MARK_TAIL]
    size = 4
    for e in range(level):
        state[size] = level
        if e > depth or (e < depth and loop_steps[open_loop[e]]):
            state[size] = counter[e]
        size += 1
    for c in range(len(stream_free)):
        state[size] = head[c] - tail if head[c] >= 0 else -1
        state[size + 1] = max(stream_free[c] - now, -1)
        state[size + 2] = entry - stream_stamp[c] if stream_free[c] >= now else 0
        size += 3
    for c in range(len(port_free)):
        state[size] = max(port_free[c] - now, -1)
        state[size + 1] = entry - port_stamp[c] if port_free[c] >= now else 0
        size += 2
    for t in range(len(tokens)):
        if tokens[t, LATEST] >= now or tokens[t, HEAD] >= 0:
            state[size] = t
            state[size + 1] = max(tokens[t, LATEST] - now, -1)
            state[size + 2] = entry - tokens[t, LATEST_BY] if tokens[t, LATEST] >= now else 0
            state[size + 3] = next_signal - tokens[t, HEAD] if tokens[t, HEAD] >= 0 else -1
            state[size + 4] = next_signal - tokens[t, LAST] if tokens[t, HEAD] >= 0 else -1
            size += 5
    for n in range(tail, known):
        q = n & ring_mask
        state[size] = -1 if ring[q, DONE] else ring[q, MISSING]
        size += 1
        if ring[q, DONE] == 0 and ring[q, READY] >= now:
            state[size - 1] = -2 - ring[q, MISSING]
            state[size] = ring[q, READY] - now
            state[size + 1] = entry - ring[q, SENDER]
            state[size + 2] = ring[q, SENDER_AT] - wait_ptr[ring[q, RUN]]
            size += 3
    oldest = next_signal
    if tail < known:
        oldest = ring[tail & ring_mask, FIRST_SIGNAL]
    for n in range(oldest, next_signal):
        z = n & signal_mask
        state[size] = signals[z, SENT]
        size += 1
        if signals[z, SENT] == 1 and signals[z, TIME] >= now:
            state[size - 1] = 3
            state[size] = signals[z, TIME] - now
            state[size + 1] = entry - signals[z, BY]
            size += 2
    return size
