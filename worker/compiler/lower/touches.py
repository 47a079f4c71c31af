"""What the instructions of a program touch: one row per instruction and storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worker.compiler.lower.batch import Batch
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.storage import Storages

WRITES, WAITS_READY, WAITS_FREE = 1, 2, 4
"""Flags of a touch."""


@dataclass(frozen=True, slots=True)
class Touches:
    """In program order; shapes: `pointer` [n + 1] for n instructions, all others [touches]."""

    pointer: Ints
    """Instruction k has the touches pointer[k] : pointer[k + 1]."""
    storage: Ints
    flags: Ints
    row: Ints
    """In `Storages.rows`: who else uses its addresses; -1: nobody."""
    instance: Ints
    shared: int
    """Buffers at the addresses of each touch, at most, summed over touches."""

    @property
    def count(self) -> int:
        """Instructions."""
        return len(self.pointer) - 1

    @property
    def place(self) -> Ints:
        """The instruction of each touch."""
        return np.repeat(np.arange(self.count, dtype=np.int64), np.diff(self.pointer))

    def reordered(self, order: Ints) -> Touches:
        """Of the program whose instructions are those numbered `order`.  Cost: linear."""
        sizes = np.diff(self.pointer)[order]
        pointer: Ints = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        at = np.repeat(self.pointer[order] - pointer[:-1], sizes) + np.arange(pointer[-1])
        return Touches(
            pointer, self.storage[at], self.flags[at], self.row[at], self.instance[at], self.shared
        )


def touches_of(batches: Sequence[Batch], places: Sequence[Ints], storages: Storages) -> Touches:
    """All touches of merged batches.

    `places`: of each batch's instructions in the program.  An instruction's touches stay in their
    order.  Cost: sorting the touches by instruction.
    """
    none: Ints = np.zeros(0, dtype=np.int64)
    shared = 0
    columns: tuple[list[Ints], ...] = ([none], [none], [none], [none], [none])
    for batch, place in zip(batches, places, strict=True):
        for touch in batch.touches:
            storage = np.broadcast_to(touch.storage, (batch.count,)).astype(np.int64)
            flags = (
                WRITES * touch.is_write
                + WAITS_READY * touch.waits_ready
                + WAITS_FREE * touch.waits_free
            )
            row = instance = np.full(batch.count, -1, dtype=np.int64)
            most = storages.overlaps[touch.scope].shape[1] if touch.scope >= 0 else 0
            if most:
                shared += batch.count * most
                row = storages.row(touch.scope, storage)
                instance = storages.instance(touch.scope, storage)
            found = (place, storage, np.full(batch.count, flags), row, instance)
            for column, values in zip(columns, found, strict=True):
                column.append(values)
    place, *others = (np.concatenate(column) for column in columns)
    order = np.argsort(place, kind="stable")
    storage, flag, row, instance = (column[order] for column in others)
    sizes = np.bincount(place, minlength=sum(b.count for b in batches))
    pointer: Ints = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    return Touches(pointer, storage, flag, row, instance, shared)
