"""Addresses that are used again as late as possible.

`allocate` finds addresses that fit; the smallest peak is not worth anything where a memory has room
to spare, but what is written to an address waits until what was there before has been read.  A
weight could be fetched many layers ahead of its use if only nothing else needed its place so
shortly before.  Here blocks move, one at a time, to where they share bytes with those that are
furthest away in time.
Source: our own (local search); GraphTurbo (section 3.5) frees and reuses at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from worker.compiler.lower.grid import Ints
from worker.compiler.lower.liveness import Flags
from worker.compiler.memory.allocate import Request

FAR = 256
"""Leaves of a schedule between two uses of an address from which on more of them do not count."""
_UNIT = 1 << 20
"""Price of neighbours in time; whole numbers, as sums of floats differ from machine to machine."""
_SWEEPS = 3
"""Times that every block may move, at most."""


def spread(
    requests: Sequence[Request],
    addresses: Sequence[int],
    intervals: Sequence[tuple[int, int]],
    together: Flags,
    capacity: int,
) -> tuple[int, ...]:
    """Other addresses below `capacity` bytes at which no two conflicting requests overlap.

    `addresses`: such ones, to begin with.  `intervals`: half-open, in leaves.  `together` [n, n]:
    which requests have a memory in common; only those can share bytes.  Two that do so `gap` leaves
    apart cost about 1 / gap; every move makes the sum smaller.
    Cost: O(n^2 + n * d^2) array elements for n requests with d neighbours each.
    """
    size = np.array([r.size_bytes for r in requests], dtype=np.int64)
    at = np.array(addresses, dtype=np.int64)
    price = prices(intervals)
    is_hard = np.zeros(together.shape, dtype=np.bool_)
    for k, request in enumerate(requests):
        is_hard[k, list(request.conflicts)] = True
    is_soft = together & ~is_hard & (price > 0)
    np.fill_diagonal(is_soft, val=False)
    neighbours = [
        (np.flatnonzero(hard), np.flatnonzero(soft))
        for hard, soft in zip(is_hard, is_soft, strict=True)
    ]
    for _ in range(_SWEEPS):
        has_moved = False
        for k, (hard, soft) in enumerate(neighbours):
            if not soft.size:
                continue
            tries = _tries(k, requests[k], at, size, np.concatenate([hard, soft]), capacity)
            tries = tries[~_overlaps(tries, size[k], at[hard], size[hard]).any(axis=1)]
            costs = _overlaps(tries, size[k], at[soft], size[soft]) @ price[k, soft]
            best = int(np.argmin(costs))
            if costs[best] < costs[np.searchsorted(tries, at[k])]:
                at[k] = tries[best]
                has_moved = True
        if not has_moved:
            break
    return tuple(at.tolist())


def prices(intervals: Sequence[tuple[int, int]]) -> Ints:
    """[n, n] Price of sharing bytes: falls with the distance in time, 0 from `FAR` leaves on."""
    first, end = np.array(intervals, dtype=np.int64).T
    gap = np.maximum(first[None, :] - end[:, None], first[:, None] - end[None, :])
    found: Ints = _UNIT // (1 + np.clip(gap, 0, FAR)) - _UNIT // (1 + FAR)
    return found


def _tries(k: int, request: Request, at: Ints, size: Ints, others: Ints, capacity: int) -> Ints:
    """Addresses worth trying for block k, ascending: its own, and flush with its neighbours."""
    align = request.align_bytes
    above = -(-(at[others] + size[others]) // align) * align
    below = (at[others] - size[k]) // align * align
    tries = np.unique(np.concatenate([[at[k], 0], above, below]))
    found: Ints = tries[(tries >= 0) & (tries + size[k] <= capacity)]
    return found


def _overlaps(tries: Ints, extent: int, low: Ints, size: Ints) -> Flags:
    """[tries, others] Whether [try, try + extent) and [low, low + size) share a byte."""
    start = tries[:, None]
    found: Flags = (start < low + size) & (low < start + extent)
    return found
