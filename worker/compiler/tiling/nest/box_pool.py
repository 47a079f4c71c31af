"""Boxes that are still to be looked at: a heap, in plain numbers, compiled where that pays."""

from __future__ import annotations

from typing import Any

ADDED, HEAPED, LATEST = 0, 1, 2
"""Places in `counts`: boxes that were ever added, entries of the heap, and those that `deep`
got last."""


def add(
    lower: Any, upper: Any, floors: Any, is_deep: Any, near: float, score: float, low: Any,
    high: Any, keys: Any, is_left: Any, heap: Any, deep: Any, counts: Any,
) -> None:  # fmt: skip
    """Add those of some boxes [boxes, ways or trips, stages, axes] to a pool whose floors, times
    `near`, are below `score`.

    The pool is `low` and `high` [room, ...] with floors `keys`, `is_left` where a box has not been
    taken, and a `heap` [room] of places by key, of equal ones the first.  `deep` [boxes] gets the
    places of those with `is_deep`, `counts` how many there are of all.
    Cost: boxes times the logarithm of all.
    """
    num_stages, num_axes = low.shape[2], low.shape[3]
    place, size, num_deep = counts[ADDED], counts[HEAPED], 0
    for b in range(len(floors)):
        if not floors[b] * near < score:
            continue
        for w in range(2):
            for k in range(num_stages):
                for a in range(num_axes):
                    low[place, w, k, a] = lower[b, w, k, a]
                    high[place, w, k, a] = upper[b, w, k, a]
        keys[place], is_left[place] = floors[b], True
        at = size
        while at > 0:  # later places of equal keys stay below
            above = (at - 1) // 2
            if keys[heap[above]] <= floors[b]:
                break
            heap[at] = heap[above]
            at = above
        heap[at] = place
        if is_deep[b]:
            deep[num_deep] = place
            num_deep += 1
        place, size = place + 1, size + 1
    counts[ADDED], counts[HEAPED], counts[LATEST] = place, size, num_deep


def take(keys: Any, is_left: Any, heap: Any, counts: Any, limit: float, found: Any) -> int:
    """Take boxes with the lowest floors below `limit`, ascending, as many as `found` has room for
    their places; how many there were.  Pool as of `add`.

    Cost: boxes times the logarithm of all; what was taken in another way is passed over once.
    """
    size, number = counts[HEAPED], 0
    while number < len(found) and size > 0 and keys[heap[0]] < limit:
        top = heap[0]
        size -= 1
        last, at = heap[size], 0
        while True:
            below = 2 * at + 1
            if below >= size:
                break
            if below + 1 < size:
                one, other = heap[below], heap[below + 1]
                if keys[other] < keys[one] or (keys[other] == keys[one] and other < one):
                    below += 1
            one = heap[below]
            if keys[last] < keys[one] or (keys[last] == keys[one] and last < one):
                break
            heap[at] = one
            at = below
        heap[at] = last
        if is_left[top]:
            is_left[top] = False
            found[number] = top
            number += 1
    counts[HEAPED] = size
    return number
