"""Addresses for blocks of memory of which some must not overlap.

Two planners behind one function: best-fit over the conflict relation, largest block first, and the
stack discipline (a block starts above everything it conflicts with that was declared before it).
The lower peak wins; ties go to best-fit.  For blocks whose conflicts come from nested scopes the
stack is optimal, so the result never exceeds the largest sum along a path of the tree (up to
alignment), which is what a strategy promised when it chose its tiles.

Blocks that die early (activations of a long unit) leave holes, and neither planner is optimal.
When a bound is given and both exceed it, first-fit in order of declaration is tried, then a search:
whichever block makes the peak moves to the front of the order, as often as `_MOST_ROUNDS`.
Source: GraphTurbo's buffer allocation and reuse (4-papers.md section 1); shared by all strategies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.jit import loop_for

Ints: TypeAlias = "npt.NDArray[np.int64]"
_MOST_ROUNDS = 40


@dataclass(frozen=True, slots=True)
class Request:
    """One block: `conflicts` are the indices of requests that may be alive with it."""

    size_bytes: int
    align_bytes: int
    conflicts: frozenset[int]


@dataclass(frozen=True, slots=True)
class Allocation:
    """Addresses parallel to the requests, and the end of the highest block."""

    addresses: tuple[int, ...]
    peak_bytes: int


def align_up(value: int, alignment: int) -> int:
    """Smallest multiple of `alignment` that is >= value."""
    return -(-value // alignment) * alignment


def allocate(requests: Sequence[Request], enough_bytes: int | None = None) -> Allocation:
    """Place every request at an address such that conflicting ones are disjoint.

    `enough_bytes`: search on while the peak exceeds it; None takes the first answer.
    Cost: O(n * d log d) for n requests with d conflicts each; times `_MOST_ROUNDS` for a search.
    """
    by_size = sorted(range(len(requests)), key=lambda k: (-requests[k].size_bytes, k))
    fitted = _best_fit(requests, by_size)
    stacked = _stack(requests)
    best = stacked if stacked.peak_bytes < fitted.peak_bytes else fitted
    if enough_bytes is None or best.peak_bytes <= enough_bytes:
        return best
    if max(r.size_bytes for r in requests) > enough_bytes:
        return best
    by_crowd = sorted(
        range(len(requests)),
        key=lambda k: (-sum(requests[c].size_bytes for c in requests[k].conflicts), k),
    )
    for order in (list(range(len(requests))), by_size, by_crowd):
        found = _search(requests, order, enough_bytes)
        best = found if found.peak_bytes < best.peak_bytes else best
        if best.peak_bytes <= enough_bytes:
            break
    return best


def _search(requests: Sequence[Request], order: list[int], enough_bytes: int) -> Allocation:
    """First-fit in `order`, again and again with the block of the peak moved forward."""
    size = np.array([r.size_bytes for r in requests], dtype=np.int64)
    align = np.array([r.align_bytes for r in requests], dtype=np.int64)
    pointer = np.cumsum([0, *(len(r.conflicts) for r in requests)])
    conflicts = np.array([c for r in requests for c in r.conflicts], dtype=np.int64)
    loop = loop_for(_first_fit, _MOST_ROUNDS * len(conflicts))
    best: Ints | None = None
    peak = 0
    for _ in range(_MOST_ROUNDS):
        address = np.full(len(requests), -1, dtype=np.int64)
        loop(np.array(order), size, align, pointer, conflicts, address)
        ends = address + size
        highest = int(ends.max())
        if best is None or highest < peak:
            best, peak = address, highest
        if peak <= enough_bytes:
            break
        worst = int(np.argmax(ends))
        order.remove(worst)
        order.insert(0, worst)
    assert best is not None
    return Allocation(tuple(best.tolist()), peak)


def _first_fit(
    order: Ints, size: Ints, align: Ints, pointer: Ints, conflicts: Ints, address: Ints
) -> None:
    """Place blocks in `order` as low as they can stand; `address` is given -1.

    Block k must not overlap blocks conflicts[pointer[k] : pointer[k + 1]].
    """
    for k in order:
        near = conflicts[pointer[k] : pointer[k + 1]]
        taken = near[address[near] >= 0]
        at = 0
        for c in taken[np.argsort(address[taken])]:
            start = -(-at // align[k]) * align[k]
            if start + size[k] <= address[c]:
                break
            at = max(at, address[c] + size[c])
        address[k] = -(-at // align[k]) * align[k]


def _best_fit(requests: Sequence[Request], order: Sequence[int]) -> Allocation:
    address: dict[int, int] = {}
    for k in order:
        request = requests[k]
        taken = sorted(
            (address[c], address[c] + requests[c].size_bytes)
            for c in request.conflicts
            if c in address
        )
        address[k] = _tightest_gap(taken, request.size_bytes, request.align_bytes)
    return _finish(requests, address)


def _tightest_gap(taken: Sequence[tuple[int, int]], size: int, alignment: int) -> int:
    """Start of the smallest gap between `taken` ranges that holds `size`, else above them all."""
    best_start, best_waste = -1, -1
    end = 0
    for low, high in taken:
        start = align_up(end, alignment)
        waste = low - start - size
        if waste >= 0 and (best_start < 0 or waste < best_waste):
            best_start, best_waste = start, waste
        end = max(end, high)
    return best_start if best_start >= 0 else align_up(end, alignment)


def _stack(requests: Sequence[Request]) -> Allocation:
    address: dict[int, int] = {}
    for k, request in enumerate(requests):
        below = [address[c] + requests[c].size_bytes for c in request.conflicts if c in address]
        address[k] = align_up(max(below, default=0), request.align_bytes)
    return _finish(requests, address)


def _finish(requests: Sequence[Request], address: dict[int, int]) -> Allocation:
    addresses = tuple(address[k] for k in range(len(requests)))
    peak = max((a + r.size_bytes for a, r in zip(addresses, requests, strict=True)), default=0)
    return Allocation(addresses, peak)
