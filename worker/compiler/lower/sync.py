"""Tokens: which instructions wait for which.

Every storage (lower/storage.py) has two tokens.  `ready` is signalled by instructions that write
it, `free` by those that read it.  A reader waits for `ready`; a writer waits for `free` (the last
value has been used), for `ready` where writes may overlap, and for both tokens of every other scope
that uses the same addresses at another time.
As a token's time is the latest signal so far in program order, one pair per storage is enough:
program order tells which signals count.  Waits on tokens that nothing has signalled yet are
dropped, and so are signals nobody waits for.  In a unit of many layers dozens of buffers share an
address; there, waits that a stream repeats without anything new being signalled are dropped too
(27 times fewer tokens for 60 layers on 32 cores, the same times).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.jit import loop_for
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.shared import Pairs, shared_waits
from worker.compiler.lower.storage import Storages
from worker.compiler.lower.touches import WAITS_FREE, WAITS_READY, WRITES, Touches


@dataclass(frozen=True, slots=True)
class Tokens:
    """Shapes: wait_ptr, signal_ptr [n+1]; CSR lists parallel to the program."""

    wait_ptr: npt.NDArray[np.int32]
    wait_token: npt.NDArray[np.int32]
    signal_ptr: npt.NDArray[np.int32]
    signal_token: npt.NDArray[np.int32]
    num_tokens: int


_MANY_WAITS = 8
"""Waits per instruction from which repeated ones are dropped: addresses that many layers share."""


def synchronise(touches: Touches, storages: Storages, stream: Ints) -> Tokens:
    """Tokens of a program, whose instructions run in `stream` (one per instruction).

    Cost: linear in touches, times the streams that wait for a token where repeated waits are
    dropped, and sorting what is waited for there; `shared_waits`.
    """
    total, num_tokens = touches.count, 2 * storages.count
    place = touches.place
    signal = 2 * touches.storage + (touches.flags & WRITES == 0)
    first_signal = np.full(num_tokens, total, dtype=np.int64)
    first_signal[signal[::-1]] = place[::-1]
    asked = np.stack([touches.flags & WAITS_READY, touches.flags & WAITS_FREE], axis=1).ravel() > 0
    wait_place = np.repeat(place, 2)[asked]
    wait = (2 * touches.storage[:, None] + np.arange(2)).ravel()[asked]
    kept = first_signal[wait] < wait_place
    only_news = 2 * touches.shared > _MANY_WAITS * total
    others = shared_waits(touches, storages, stream, (place, signal), only_news=only_news)
    wait_place = np.concatenate([wait_place[kept], others[0]])
    wait = np.concatenate([wait[kept], others[1]])
    if only_news:
        wait_place, wait = _news((wait_place, wait), (place, signal), stream, num_tokens)
    else:
        by_place = np.argsort(wait_place, kind="stable")
        wait_place, wait = wait_place[by_place], wait[by_place]
    is_used = np.zeros(num_tokens, dtype=bool)
    is_used[wait] = True
    kept = is_used[signal]
    number = np.cumsum(is_used, dtype=np.int32) - 1
    return Tokens(
        _pointer(wait_place, total), number[wait],
        _pointer(place[kept], total), number[signal[kept]], int(is_used.sum()),
    )  # fmt: skip


def _news(waits: Pairs, signals: Pairs, stream: Ints, num_tokens: int) -> Pairs:
    """The waits that may hold an instruction back, by place and token; `signals` stand by place.

    A stream is in order: what it has waited for, it need not wait for again until the token is
    signalled anew.  Every wait must have an earlier signal.
    """
    place, token = np.divmod(np.sort(waits[0] * num_tokens + waits[1]), num_tokens)
    is_news = np.empty(len(place), dtype=np.bool_)
    loop_for(_walk, len(place))(
        place, token, stream[place], *signals,
        np.full(num_tokens, -1, dtype=np.int64), np.full(num_tokens, -1, dtype=np.int64),
        np.empty(len(place), dtype=np.int64), np.empty(len(place), dtype=np.int32),
        np.empty(len(place), dtype=np.int64), is_news,
    )  # fmt: skip
    return place[is_news], token[is_news]


def _walk(
    place: Ints, token: Ints, stream: Ints, signal_place: Ints, signal_token: Ints,
    last: Ints, waiter: Ints, next_waiter: Ints, who: Ints, waited: Ints, is_news: Any,
) -> None:  # fmt: skip
    """Walk waits in program order; fill `is_news`.

    `last` [tokens]: last signal, given -1.  `waiter` [tokens], given -1: first of a token's list of
    nodes in `next_waiter`, `who` and `waited`: a stream and where it waited last.
    """
    s = 0
    nodes = 0
    for k in range(len(place)):
        while s < len(signal_place) and signal_place[s] < place[k]:
            last[signal_token[s]] = signal_place[s]
            s += 1
        t = token[k]
        node = waiter[t]
        while node >= 0 and who[node] != stream[k]:
            node = next_waiter[node]
        if node < 0:
            node = nodes
            nodes += 1
            who[node] = stream[k]
            next_waiter[node] = waiter[t]
            waiter[t] = node
            is_news[k] = True
        else:
            is_news[k] = last[t] >= waited[node]
        waited[node] = place[k]


def _pointer(place: Ints, total: int) -> npt.NDArray[np.int32]:
    """Where each instruction's tokens begin, in a list by place."""
    pointer = np.zeros(total + 1, dtype=np.int64)
    np.cumsum(np.bincount(place, minlength=total), out=pointer[1:])
    return pointer.astype(np.int32)
