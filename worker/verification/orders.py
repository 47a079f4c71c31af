"""Legal orders of a program's instructions: any that its streams and tokens allow.

An instruction takes effect after the one before it in its stream, and after those that had
signalled a token it waits for.  Nothing else holds it back.  Between its beginning and its effect
others may go on: what it will overwrite is undefined by then.
"""

from __future__ import annotations

import numpy as np

from worker.compiler.isa.program import UnitProgram

_FEW_STREAMS = 12
"""Of 16 orders the other ways keep four."""
_MOST_AHEAD = 16
"""Instructions by which others begin ahead of the program's order: a few iterations of a loop."""


def legal_order(unit: UnitProgram, before: list[list[int]], seed: int) -> list[int]:
    """One order of events: 2 * i, instruction i begins; 2 * i + 1, it takes effect.

    Some events happen as early as they can, each with nothing but what has to come before it.  In
    the first orders the effects of `first_streams`, in the program's order: of two instructions
    that nothing orders each comes first once where every stream is first by itself, and elsewhere
    unless an earlier one of its kind asks for the other.  Then in turn: events one by one, drawn;
    the program's order, but that everything begins a few instructions ahead; drawn again; and
    stream by stream, the streams drawn.
    `before`: `isa.order.predecessors`.  Cost: linear in instructions and predecessors, and sorting.
    """
    rng = np.random.default_rng(seed)
    drawn: list[int] = rng.permutation(2 * len(before)).tolist()
    order: list[int] = []
    done = bytearray(2 * len(before))
    for target in _targets(unit, rng, seed):
        waiting = [target]
        while waiting:
            last = waiting[-1]
            if done[last]:
                waiting.pop()
                continue
            first = [last - 1] if last % 2 else [2 * i + 1 for i in before[last // 2]]
            missing = [event for event in first if not done[event]]
            if missing:
                waiting += sorted(missing, key=drawn.__getitem__)
            else:
                waiting.pop()
                done[last] = 1
                order.append(last)
    return order


def first_streams(unit: UnitProgram) -> list[list[int]]:
    """Streams that are first in the first orders: each by itself where there are few, else those of
    a kind of engine together."""
    if len(unit.streams) <= _FEW_STREAMS:
        return [[number] for number in range(len(unit.streams))]
    kinds: dict[str, list[int]] = {}
    for number, stream in enumerate(unit.streams):
        kinds.setdefault(stream.engine, []).append(number)
    return list(kinds.values())


def _targets(unit: UnitProgram, rng: np.random.Generator, seed: int) -> list[int]:
    """Every effect, and perhaps beginnings, in the order in which they are wanted."""
    stream = unit.instructions["stream"]
    firsts = first_streams(unit)
    turn = seed - len(firsts)
    if turn < 0:
        wanted = np.argsort(~np.isin(stream, firsts[seed]), kind="stable")
    elif turn % 4 == 1:
        place = np.arange(2 * len(stream)) // 2
        place[::2] -= int(rng.integers(1, _MOST_AHEAD))
        events: list[int] = np.argsort(place, kind="stable").tolist()
        return events
    elif turn % 4 == 3:
        rank = rng.permutation(len(unit.streams))
        wanted = np.argsort(rank[stream], kind="stable")
    else:
        wanted = rng.permutation(2 * len(stream))
        return list(map(int, wanted))
    return [2 * i + 1 for i in wanted.tolist()]
