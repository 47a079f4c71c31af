"""Which instructions must stay behind which, whatever the order of their streams.

Tokens leave out what a stream has waited for before (`sync`), as streams are in order.
Whoever changes that order needs to know all of it: for every instruction the last one before it
that it conflicts with.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from worker.compiler.jit import loop_for
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.rows.storage import Storages
from worker.compiler.lower.rows.touches import Touches


def latest_conflicts(touches: Touches, storages: Storages) -> Ints:
    """[n] Of each instruction, in program order, the last one before it that touches what it
    touches in a way that keeps the two in order; -1 if there is none.

    Cost: a few nanoseconds per touch and storage of its memory that was touched since its own was.
    """
    latest: Ints = np.full(touches.count, -1, dtype=np.int64)
    extents, count = storages.extents, storages.count
    loop_for(find_latest, len(touches.storage))(
        touches.pointer, touches.storage, touches.flags,
        extents.memory, extents.scope, extents.low, extents.high,
        np.full((count, 2), -1, dtype=np.int64), np.full((count, 2), -1, dtype=np.int64),
        np.full(int(extents.memory.max(initial=-1)) + 1, -1, dtype=np.int32),
        np.full((count, 2), -1, dtype=np.int32), latest,
    )  # fmt: skip
    return latest


def find_latest(
    pointer: Ints, storage: Any, flag: Any, memory: Any, scope: Any, low: Ints, high: Ints,
    last: Ints, checked: Ints, front: Any, beside: Any, latest: Ints,
) -> None:  # fmt: skip
    """Walk a program; fill `latest`.

    Given -1: `last` [storages, (written, read)], where that was so far; `checked` [storages, 2],
    where the others at a storage's addresses were looked through last, and the last touch found;
    `front` [memories] and `beside` [storages, (older, newer)]: lists of the storages of a memory,
    those touched last in front.
    """
    for k in range(len(latest)):
        found = -1
        for a in range(pointer[k], pointer[k + 1]):
            s = storage[a]
            if flag[a] & 2:
                found = max(found, last[s, 0])
            if flag[a] & 4:
                found = max(found, last[s, 1])
            if flag[a] & 8 and memory[s] >= 0:
                since = checked[s, 0]
                other = front[memory[s]]
                while other >= 0:
                    at = max(last[other, 0], last[other, 1])
                    if at < since:
                        break
                    if scope[other] != scope[s] and low[other] < high[s] and high[other] > low[s]:
                        checked[s, 1] = at
                        break
                    other = beside[other, 0]
                checked[s, 0] = k
                found = max(found, checked[s, 1])
        latest[k] = found
        for a in range(pointer[k], pointer[k + 1]):
            s = storage[a]
            last[s, 1 - (flag[a] & 1)] = k
            if memory[s] >= 0 and front[memory[s]] != s:
                older = beside[s, 0]
                newer = beside[s, 1]
                if newer >= 0:
                    beside[newer, 0] = older
                if older >= 0:
                    beside[older, 1] = newer
                beside[s, 0] = front[memory[s]]
                beside[s, 1] = -1
                if front[memory[s]] >= 0:
                    beside[front[memory[s]], 1] = s
                front[memory[s]] = s
