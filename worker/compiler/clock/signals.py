"""How long a token's signals take: between the engines of a core, and between cores.

A token that instructions of several cores signal or wait for is a flag where all of them can see
it: one core sets it, another one looks at it (the machine's `signal_cycles`).  Between the engines
of one core it is a wire or an event register (`engine_signal_cycles`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.isa.loops import Loops, last_counters
from worker.compiler.jit import loop_for

Ints = npt.NDArray[np.int64]
_STEPS = 4
"""What one wait or signal takes, in steps of a usual loop (`jit.INTERPRETED_STEPS`)."""


def token_delays(
    stream: npt.NDArray[np.int32],
    core: Ints,
    uses: tuple[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]], ...],
    loops: Loops,
    num_tokens: int,
    signal_cycles: tuple[int, int],
) -> Ints:
    """[tokens, at least one] Cycles from a finish to when those who wait for the token see it.

    `stream` [rows]; `core` [streams]; `uses`: pointers and tokens of waits and of signals;
    `signal_cycles`: between engines of one core, and between cores, never less than the former.
    Cost: linear in them, in loops over cores and tokens as often as these run.
    """
    delay: Ints = np.zeros(max(num_tokens, 1), dtype=np.int64)
    within, across = signal_cycles
    if not within and (not across or len(core) == 0 or core.min() == core.max()):
        return delay
    owner: Ints = np.full(len(delay), -1, dtype=np.int64)
    last = last_counters(loops)
    if len(last) == 0:
        last = np.zeros((len(stream), 0), dtype=np.int64)
    counter: Ints = np.zeros(max(loops.depth, 1), dtype=np.int64)
    steps = loops.stride["stream"]
    if len(steps) == 0:
        steps = np.zeros((len(stream), 0), dtype=np.int32)
    for (pointer, token), moves in zip(uses, (loops.wait_stride, loops.signal_stride), strict=True):
        if not len(moves):
            moves = np.zeros((len(token), 0), dtype=np.int32)
        loop_for(_meet, _STEPS * len(token))(
            stream, core, pointer, token, last, steps, moves, counter, owner, delay, within, across
        )
    return delay


def _meet(
    stream: Any, core: Any, pointer: Any, token: Any, last: Any, step_stream: Any, step_token: Any,
    counter: Ints, owner: Ints, delay: Ints, within: int, across: int,
) -> None:  # fmt: skip
    """Note the first stream of every token; tokens that meet another one take their time."""
    depth = last.shape[1]
    for k in range(len(stream)):
        for w in range(pointer[k], pointer[k + 1]):
            for d in range(depth):
                counter[d] = 0
            while True:
                t = token[w]
                s = stream[k]
                for d in range(depth):
                    t += counter[d] * step_token[w, d]
                    s += counter[d] * step_stream[k, d]
                if owner[t] < 0:
                    owner[t] = s
                elif core[owner[t]] != core[s]:
                    delay[t] = max(within, across)
                elif owner[t] != s:
                    delay[t] = max(delay[t], within)
                d = depth - 1
                while d >= 0:
                    if step_token[w, d] != 0 or step_stream[k, d] != 0:
                        counter[d] += 1
                        if counter[d] <= last[k, d]:
                            break
                        counter[d] = 0
                    d -= 1
                if d < 0:
                    break
