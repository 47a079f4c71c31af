"""Which instructions must stay behind which, whatever the order of their streams.

Tokens leave out what a stream has waited for before (`sync`, `shared`), as streams are in order.
Whoever changes that order needs to know all of it: for every instruction the last one before it
that it conflicts with.
"""

from __future__ import annotations

import numpy as np

from worker.compiler.jit import loop_for
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.storage import Storages
from worker.compiler.lower.touches import Touches


def latest_conflicts(touches: Touches, storages: Storages) -> Ints:
    """[n] Of each instruction, in program order, the last one before it that touches what it
    touches in a way that keeps the two in order; -1 if there is none.

    Cost: a few nanoseconds per touch and buffer at its addresses.
    """
    latest: Ints = np.full(touches.count, -1, dtype=np.int64)
    first, offset, step = storages.rows
    loop_for(_walk, len(touches.storage))(
        touches.place, touches.storage, touches.flags, touches.row, touches.instance,
        first, offset, step, np.full((storages.count, 2), -1, dtype=np.int64), latest,
    )  # fmt: skip
    return latest


def _walk(
    place: Ints, storage: Ints, flag: Ints, row: Ints, instance: Ints,
    first: Ints, offset: Ints, step: Ints, last: Ints, latest: Ints,
) -> None:  # fmt: skip
    """Walk touches in program order; fill `latest`.

    Row r lists the storages offset + instance * step [first[r] : first[r + 1]] of other buffers at
    the same addresses; row -1: none.  `last` [storages, (written, read)]: where that was so far,
    given -1.
    """
    a = 0
    while a < len(place):
        b = a
        found = -1
        while b < len(place) and place[b] == place[a]:
            s = storage[b]
            if flag[b] & 2:
                found = max(found, last[s, 0])
            if flag[b] & 4:
                found = max(found, last[s, 1])
            if row[b] >= 0:
                for j in range(first[row[b]], first[row[b] + 1]):
                    other = offset[j] + instance[b] * step[j]
                    found = max(found, last[other, 0], last[other, 1])
            b += 1
        latest[place[a]] = found
        for k in range(a, b):
            last[storage[k], 1 - (flag[k] & 1)] = place[a]
        a = b
