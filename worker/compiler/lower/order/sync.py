"""Tokens: which instructions wait for which.

Every storage (lower/storage.py) has two tokens.  `ready` is signalled by instructions that write
it, `free` by those that read it.  A reader waits for `ready`; a writer waits for `free` (the last
value has been used), for `ready` where writes may overlap, and for both tokens of every other
storage that uses the same addresses at another time.
As a token's time is the latest signal so far in program order, one pair per storage is enough:
program order tells which signals count.  Waits on tokens that nothing has signalled yet are left
out, and so are signals nobody waits for.  A stream is in order: what it has waited for, it need not
wait for again until the token is signalled anew.  In a unit of many layers, where dozens of buffers
share an address, that leaves out most waits (27 times fewer tokens for 60 layers on 32 cores).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.jit import loop_for
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.rows.storage import Storages
from worker.compiler.lower.rows.touches import STARTS_VALUE, Touches

_STEPS = 8
"""What walking over one touch takes, in steps of a usual loop (`jit.INTERPRETED_STEPS`)."""
ROOM = 4
"""Waits, and streams that ask, per touch that the first walk has room for."""
_WAYS = 16
"""Lists of streams per token; a stream stands in the one of its number modulo this."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Shapes: wait_ptr, signal_ptr [n+1]; CSR lists parallel to the program."""

    wait_ptr: npt.NDArray[np.int32]
    wait_token: npt.NDArray[np.int32]
    signal_ptr: npt.NDArray[np.int32]
    signal_token: npt.NDArray[np.int32]
    num_tokens: int


def synchronise(
    touches: Touches,
    storages: Storages,
    stream: npt.NDArray[np.int32],
    order: Ints | None = None,
    *,
    repeats: bool = False,
) -> Tokens:
    """Tokens of the program whose instructions are those numbered `order` (None: all, as they are).

    `stream` [n]: in which each instruction runs, by its number.  An instruction's waits are sorted.
    `repeats`: nothing is left out that a stream has waited for before, for whoever means to change
    the order inside a stream.
    Cost: a few nanoseconds per touch and storage of its memory that was touched since the stream
    last asked; memory linear in touches and waits.
    """
    count, num_storages = touches.count, storages.count
    if order is None:
        order = np.arange(count, dtype=np.int64)
    num_touches = len(touches.storage)
    loop = loop_for(find_waits, _STEPS * num_touches)
    extents, num_tokens = storages.extents, 2 * num_storages
    wait_ptr = np.zeros(count + 1, dtype=np.int32)
    room = max(ROOM * num_touches, 1)
    while True:  # memory of room that stays empty is never touched
        wait, next_node, who, asked = (np.empty(room, dtype=np.int32) for _ in range(4))
        found = loop(
            order, touches.pointer, touches.storage, touches.flags, stream,
            extents.memory, extents.scope, extents.low, extents.high,
            np.full((num_storages, 2), -1, dtype=np.int32),
            np.full((3 * num_storages, _WAYS), -1, dtype=np.int32), next_node, who, asked,
            np.full(int(extents.memory.max(initial=-1)) + 1, -1, dtype=np.int32),
            np.full((num_storages, 2), -1, dtype=np.int32), repeats, wait_ptr, wait,
        )  # fmt: skip
        if found >= 0:
            break
        room *= 4
    wait = wait[:found]
    is_used = np.zeros(num_tokens, dtype=np.bool_)
    is_used[wait] = True
    number = np.cumsum(is_used, dtype=np.int32) - np.int32(1)
    signal_ptr, signal = np.zeros(count + 1, dtype=np.int32), np.empty(num_touches, dtype=np.int32)
    sent = loop_for(_find_signals, num_touches)(
        order, touches.pointer, touches.storage, touches.flags, is_used, number, signal_ptr, signal
    )
    num_used = int(np.count_nonzero(is_used))
    return Tokens(wait_ptr, number[wait], signal_ptr, signal[:sent].copy(), num_used)


def most_waits(touches: Touches, storages: Storages) -> int:
    """A bound on the waits for addresses that buffers share, repeated ones included."""
    starts = touches.storage[touches.flags & STARTS_VALUE > 0]
    scope = storages.extents.scope[starts]
    return 2 * int(storages.overlap_counts()[scope[scope >= 0]].sum())


def find_waits(
    order: Ints, pointer: Ints, storage: Any, flag: Any, stream: Any,
    memory: Any, scope: Any, low: Ints, high: Ints,
    last: Any, asker: Any, next_node: Any, who: Any, asked: Any, front: Any, beside: Any,
    repeats: bool, wait_ptr: Any, wait: Any,
) -> int:  # fmt: skip
    """Walk a program; fill `wait_ptr` and `wait`.  Returns how many waits there are; -1: no room.

    Storage s has the tokens 2 s (ready) and 2 s + 1 (free).  Given -1: `last` [storages, 2], each
    token's last signal; `asker` [tokens, then storages; ways], the first of a list of nodes in
    `next_node`, `who` and `asked`: a stream and where it waited for the token last, or looked
    through the others at the storage's addresses; `front` [memories] and `beside` [storages,
    (older, newer)]: lists of the storages of a memory, those signalled last in front.
    `repeats`: see `synchronise`.
    """
    ways = asker.shape[1]
    tokens = 2 * len(last)
    number = 0
    nodes = 0
    for k in range(len(order)):
        i = order[k]
        s = stream[i]
        begin = number
        for a in range(pointer[i], pointer[i + 1]):
            own = storage[a]
            other = -1
            since = -1
            if flag[a] & 8 and memory[own] >= 0:
                other = front[memory[own]]
                node = asker[tokens + own, s % ways]
                while node >= 0 and who[node] != s:
                    node = next_node[node]
                if node >= 0:
                    since = -1 if repeats else asked[node]
                else:
                    if nodes == len(who):
                        return -1
                    node = nodes
                    nodes += 1
                    who[node] = s
                    next_node[node] = asker[tokens + own, s % ways]
                    asker[tokens + own, s % ways] = node
                asked[node] = k
            of = own
            kinds = (flag[a] >> 1) & 3
            while True:
                for kind in range(2):
                    if not (kinds >> kind) & 1 or last[of, kind] < 0:
                        continue
                    token = 2 * of + kind
                    node = asker[token, s % ways]
                    while node >= 0 and who[node] != s:
                        node = next_node[node]
                    if node >= 0:
                        if asked[node] == k or (last[of, kind] < asked[node] and not repeats):
                            continue
                    else:
                        if nodes == len(who):
                            return -1
                        node = nodes
                        nodes += 1
                        who[node] = s
                        next_node[node] = asker[token, s % ways]
                        asker[token, s % ways] = node
                    asked[node] = k
                    if number == len(wait):
                        return -1
                    at = number
                    while at > begin and wait[at - 1] > token:
                        wait[at] = wait[at - 1]
                        at -= 1
                    wait[at] = token
                    number += 1
                kinds = 0
                while other >= 0 and kinds == 0:
                    if max(last[other, 0], last[other, 1]) < since:
                        other = -1
                        break
                    is_apart = low[other] >= high[own] or high[other] <= low[own]
                    if scope[other] != scope[own] and not is_apart:
                        kinds = 3
                        of = other
                    other = beside[other, 0]
                if kinds == 0:
                    break
        wait_ptr[k + 1] = number
        for a in range(pointer[i], pointer[i + 1]):
            own = storage[a]
            last[own, 1 - (flag[a] & 1)] = k
            if memory[own] >= 0 and front[memory[own]] != own:
                older = beside[own, 0]
                newer = beside[own, 1]
                if newer >= 0:
                    beside[newer, 0] = older
                if older >= 0:
                    beside[older, 1] = newer
                beside[own, 0] = front[memory[own]]
                beside[own, 1] = -1
                if front[memory[own]] >= 0:
                    beside[front[memory[own]], 1] = own
                front[memory[own]] = own
    return number


def _find_signals(
    order: Ints, pointer: Ints, storage: Any, flag: Any, is_used: Any, number: Any,
    signal_ptr: Any, signal: Any,
) -> int:  # fmt: skip
    """Fill `signal_ptr` and `signal`: by `number`, of the tokens in use; returns how many."""
    sent = 0
    for k in range(len(order)):
        for a in range(pointer[order[k]], pointer[order[k] + 1]):
            token = 2 * storage[a] + 1 - (flag[a] & 1)
            if is_used[token]:
                signal[sent] = number[token]
                sent += 1
        signal_ptr[k + 1] = sent
    return sent
