"""Which instructions must stay behind which, whatever the order of their streams.

Tokens leave out what a stream has waited for before (`sync`, `shared`), as streams are in order.
Whoever changes that order needs to know all of it: for every instruction the last one before it
that it conflicts with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from worker.compiler.jit import loop_for
from worker.compiler.lower.batch import Batch
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.storage import Storages

_WRITES, _WAITS_READY, _WAITS_FREE = 1, 2, 4


def latest_conflicts(batches: Sequence[Batch], places: Sequence[Ints], storages: Storages) -> Ints:
    """[n] Of each instruction, in program order, the last one before it that touches what it
    touches in a way that keeps the two in order; -1 if there is none.

    `places`: of each batch's instructions in the program.
    Cost: sorting the touches; a few nanoseconds per touch and buffer at its addresses.
    """
    none: Ints = np.zeros(0, dtype=np.int64)
    columns: tuple[list[Ints], ...] = ([none], [none], [none], [none], [none])
    for batch, place in zip(batches, places, strict=True):
        for touch in batch.touches:
            storage = np.broadcast_to(touch.storage, (batch.count,)).astype(np.int64)
            flags = (
                _WRITES * touch.is_write
                + _WAITS_READY * touch.waits_ready
                + _WAITS_FREE * touch.waits_free
            )
            row = instance = np.full(batch.count, -1, dtype=np.int64)
            if touch.scope >= 0 and storages.overlaps[touch.scope].shape[1]:
                row = storages.row(touch.scope, storage)
                instance = storages.instance(touch.scope, storage)
            found = (place, storage, np.full(batch.count, flags), row, instance)
            for column, values in zip(columns, found, strict=True):
                column.append(values)
    place, storage, flag, row, instance = (np.concatenate(column) for column in columns)
    order = np.argsort(place, kind="stable")
    latest: Ints = np.full(sum(b.count for b in batches), -1, dtype=np.int64)
    first, offset, step = storages.rows
    loop_for(_walk, len(place))(
        place[order], storage[order], flag[order], row[order], instance[order],
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
