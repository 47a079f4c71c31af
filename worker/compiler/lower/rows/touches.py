"""What the instructions of a program touch: one row per instruction and storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.compiler.lower.grid import Ints
from worker.compiler.lower.rows.batch import Batch

WRITES, WAITS_READY, WAITS_FREE, STARTS_VALUE = 1, 2, 4, 8
"""Flags of a touch: see `storage.Touch`."""


@dataclass(frozen=True, slots=True)
class Touches:
    """Shapes: `pointer` [n + 1] for n instructions, all others [touches]."""

    pointer: Ints
    """Instruction k has the touches pointer[k] : pointer[k + 1]."""
    storage: npt.NDArray[np.int32]
    flags: npt.NDArray[np.int8]

    @property
    def count(self) -> int:
        """Instructions."""
        return len(self.pointer) - 1


def touches_of(batches: Sequence[Batch], places: Sequence[Ints]) -> Touches:
    """All touches of merged batches.

    `places`: of each batch's instructions in the program.  An instruction's touches stay in their
    order.  Cost: sorting the touches by instruction.
    """
    place, storage = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int32)]
    flags = [np.zeros(0, dtype=np.int8)]
    for batch, at in zip(batches, places, strict=True):
        for touch in batch.touches:
            flag = (
                WRITES * touch.is_write
                + WAITS_READY * touch.waits_ready
                + WAITS_FREE * touch.waits_free
                + STARTS_VALUE * touch.starts_value
            )
            own = np.broadcast_to(touch.storage, (batch.count,)).astype(np.int32)
            is_there = own >= 0
            if not np.all(is_there):
                own, at_those = own[is_there], at[is_there]
            else:
                at_those = at
            place.append(at_those)
            storage.append(own)
            flags.append(np.full(len(own), flag, dtype=np.int8))
    by_place = np.concatenate(place)
    order = np.argsort(by_place, kind="stable")
    sizes = np.bincount(by_place, minlength=sum(b.count for b in batches))
    pointer: Ints = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    return Touches(pointer, np.concatenate(storage)[order], np.concatenate(flags)[order])
