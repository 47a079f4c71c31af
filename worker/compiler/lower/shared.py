"""Waits for addresses that several buffers use at different times.

Whatever starts a new value in a buffer waits until the values of all other buffers at its addresses
have been written and used.  In a unit of many layers hundreds of buffers share an address, so one
walk over the program remembers when each token was signalled last and which streams have waited for
it since: a stream is in order and need not wait again.
"""

from __future__ import annotations

import numpy as np

from worker.compiler.jit import loop_for
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.storage import Storages
from worker.compiler.lower.touches import Touches

Pairs = tuple[Ints, Ints]
"""(places in program order, tokens), equally long."""

_CHECKS_PER_STEP = 16
"""Checks of a token that take as long as a step of a usual loop (`jit.INTERPRETED_STEPS`)."""
_ROOM = 8
"""Waits per touch that one walk has room for; where there are more, a second one finds them."""
_REMEMBERED = 16
"""Streams remembered per token, by their number modulo this; few streams wait for one token."""


def shared_waits(
    touches: Touches, storages: Storages, stream: Ints, signals: Pairs, *, only_news: bool
) -> Pairs:
    """Waits for tokens of other buffers at the same addresses, signalled earlier, in their order.

    `stream` gives the stream of every instruction in program order; `signals` stand in program
    order.  With `only_news` most waits are left out before which nothing was signalled since the
    stream's last wait for the token.
    Cost: checks a token per touch and buffer at its addresses, a few nanoseconds each; memory
    linear in touches, signals and what is found.
    """
    none = np.zeros(0, dtype=np.int64)
    is_shared = touches.row >= 0
    if not is_shared.any():
        return none, none
    place, row = signals[0][is_shared], touches.row[is_shared]
    instance = touches.instance[is_shared]
    first, offset, step = storages.rows
    checks = int((first[row + 1] - first[row]).sum())
    loop = loop_for(sweep, checks // _CHECKS_PER_STEP)
    num_tokens = 2 * storages.count

    def run(most: int) -> tuple[int, Ints, Ints]:
        at, token = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
        last = np.full(num_tokens, -1, dtype=np.int64)
        waiter = np.full((num_tokens if only_news else 0, _REMEMBERED), -1, dtype=np.int32)
        waited = np.full_like(waiter, -1)
        number = loop(
            place, stream[place], row, instance, first, offset, step, *signals,
            last, waiter, waited, at, token,
        )  # fmt: skip
        return int(number), at[:number].copy(), token[:number].copy()

    # Mostly few of all waits are found; memory of room that stays empty is never touched.
    number, at, token = run(min(2 * checks, _ROOM * len(place)))
    if number > len(at):
        _, at, token = run(number)
    return at, token


def sweep(
    place: Ints, stream: Ints, row: Ints, instance: Ints,
    first: Ints, offset: Ints, step: Ints,
    signal_place: Ints, signal_token: Ints,
    last: Ints, waiter: Ints, waited: Ints, found_place: Ints, found_token: Ints,
) -> int:  # fmt: skip
    """Walk touches and signals in program order; fill the arrays found as far as they reach.

    Row r lists the storages offset + instance * step [first[r] : first[r + 1]] of other buffers;
    storage s has the tokens 2 s and 2 s + 1.  All given -1: `last` holds each token's last signal,
    `waiter` and `waited` [tokens, ways] who has waited for it where; with no tokens in them every
    wait is found.  Returns how many waits there are.
    """
    number = 0
    s = 0
    for k in range(len(place)):
        while s < len(signal_place) and signal_place[s] < place[k]:
            last[signal_token[s]] = signal_place[s]
            s += 1
        for j in range(first[row[k]], first[row[k] + 1]):
            other = offset[j] + instance[k] * step[j]
            for token in range(2 * other, 2 * other + 2):
                if last[token] < 0:
                    continue
                if len(waiter):
                    way = stream[k] % waiter.shape[1]
                    if waiter[token, way] == stream[k] and waited[token, way] > last[token]:
                        continue
                    waiter[token, way] = stream[k]
                    waited[token, way] = place[k]
                if number < len(found_place):
                    found_place[number] = place[k]
                    found_token[number] = token
                number += 1
    return number
