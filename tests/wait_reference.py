"""Who waits for what, from the definitions: slow, and with no walk that remembers."""

from __future__ import annotations

from typing import Any

import numpy as np

from worker.compiler.lower.order.sync import Tokens
from worker.compiler.lower.rows.storage import StorageExtents, Storages
from worker.compiler.lower.rows.touches import (
    STARTS_VALUE,
    WAITS_FREE,
    WAITS_READY,
    WRITES,
    Touches,
)

READY, FREE = 0, 1


def beside(extents: StorageExtents, storage: int) -> list[int]:
    """Storages of other scopes that have some of its bytes."""
    if extents.memory[storage] < 0:
        return []
    taken = set(range(extents.low[storage], extents.high[storage]))
    return [
        k
        for k in np.flatnonzero(extents.memory == extents.memory[storage]).tolist()
        if extents.scope[k] != extents.scope[storage]
        and taken & set(range(extents.low[k], extents.high[k]))
    ]


def uses(touches: Touches, instruction: int) -> list[tuple[int, int]]:
    """(storage, flags) of all that an instruction touches."""
    own = slice(touches.pointer[instruction], touches.pointer[instruction + 1])
    return list(zip(touches.storage[own].tolist(), touches.flags[own].tolist(), strict=True))


def signals(touches: Touches, instruction: int) -> list[int]:
    """Tokens that it signals."""
    return [2 * s + (READY if flag & WRITES else FREE) for s, flag in uses(touches, instruction)]


def asked(touches: Touches, extents: StorageExtents, instruction: int) -> set[int]:
    """Tokens that it would wait for, signalled or not."""
    found: set[int] = set()
    for storage, flag in uses(touches, instruction):
        found |= {2 * storage + READY} if flag & WAITS_READY else set()
        found |= {2 * storage + FREE} if flag & WAITS_FREE else set()
        if flag & STARTS_VALUE:
            found |= {2 * s + kind for s in beside(extents, storage) for kind in (READY, FREE)}
    return found


def all_waits(touches: Touches, extents: StorageExtents, order: list[int]) -> list[set[int]]:
    """What each instruction of a program waits for, if it is to be repeated every time."""
    sent: set[int] = set()
    found: list[set[int]] = []
    for instruction in order:
        found.append(asked(touches, extents, instruction) & sent)
        sent |= set(signals(touches, instruction))
    return found


def news(
    touches: Touches, stream: list[int], order: list[int], waits: list[set[int]]
) -> list[set[int]]:
    """The waits before which something was signalled since the stream's last wait for the token."""
    found: list[set[int]] = []
    for place, tokens in enumerate(waits):
        kept: set[int] = set()
        for token in tokens:
            before = [
                p for p in range(place)
                if token in waits[p] and stream[order[p]] == stream[order[place]]
            ]  # fmt: skip
            since = range(max(before, default=0), place)
            if not before or any(token in signals(touches, order[p]) for p in since):
                kept.add(token)
        found.append(kept)
    return found


def all_tokens(
    touches: Touches, storages: Storages, stream: Any, order: Any = None, *, repeats: bool = True
) -> Tokens:
    """Tokens with every wait, whatever `repeats` says, not numbered anew."""
    del repeats
    order = list(range(touches.count)) if order is None else order.tolist()
    waits = [sorted(found) for found in all_waits(touches, storages.extents, order)]
    sent = [signals(touches, instruction) for instruction in order]
    columns = [
        np.array(part, dtype=np.int32)
        for lists in (waits, sent)
        for part in (np.cumsum([0, *map(len, lists)]), [t for found in lists for t in found])
    ]
    return Tokens(columns[0], columns[1], columns[2], columns[3], 2 * storages.count)
