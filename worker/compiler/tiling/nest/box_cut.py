"""Cutting boxes of tilings in two, in plain numbers, compiled where that pays."""

from __future__ import annotations

from math import sqrt
from typing import Any

from worker.compiler.tiling.nest.arrays import TRIPS, WAYS

HALVES, SINGLE_TILINGS = 0, 1
"""Places in `counts`."""


def cut(
    low: Any, high: Any, places: Any, num_deep: int, ways_first: float, units: Any, extents: Any,
    single: Any, lower: Any, upper: Any, is_deep: Any, ones: Any, counts: Any,
) -> None:  # fmt: skip
    """Cut the boxes [boxes, ways or trips, stages, axes] that stand at `places` along the axis
    where they are widest in ratio, ways `ways_first` times as wide, into two each.

    Fills `lower` and `upper` [2 x places, ...] with all lower halves, then all upper ones, without
    what no tiling has: more units than there are, more parts of an axis than it has steps; and
    without halves of which nothing is left.  `is_deep` [2 x places]: whether they are of one of the
    first `num_deep` of what is cut.  Single tilings are not: `ones` [places] gets their places.
    `counts` gets how many halves and single tilings there are.  `single` [axes]: those that one
    stage cuts into single steps.
    Cost: linear.
    """
    num_boxes, num_stages, num_axes = len(places), low.shape[2], low.shape[3]
    num_lower, num_upper, num_ones = 0, 0, 0
    for row in range(num_boxes):
        b = places[row]
        best, which, stage, axis = 1.0, -1, 0, 0
        for w in range(2):
            for k in range(num_stages):
                for a in range(num_axes):
                    ratio = high[b, w, k, a] / low[b, w, k, a]
                    if w == WAYS and ratio > 1:
                        ratio *= ways_first
                    if ratio > best:
                        best, which, stage, axis = ratio, w, k, a
        if which < 0:
            ones[num_ones] = b
            num_ones += 1
            continue
        first, last = low[b, which, stage, axis], high[b, which, stage, axis]
        middle = min(int(sqrt(first * last)), last - 1)
        for half in range(2):
            c = num_boxes + num_upper if half else num_lower
            for w in range(2):
                for k in range(num_stages):
                    for a in range(num_axes):
                        lower[c, w, k, a] = low[b, w, k, a]
                        upper[c, w, k, a] = high[b, w, k, a]
            if half == 0:
                upper[c, which, stage, axis] = middle
            else:
                lower[c, which, stage, axis] = middle + 1
            for k in range(num_stages):
                used = 1
                for a in range(num_axes):
                    used *= lower[c, WAYS, k, a]
                for a in range(num_axes):
                    most = units[k] * lower[c, WAYS, k, a] // used
                    upper[c, WAYS, k, a] = min(upper[c, WAYS, k, a], most)
                    parts = lower[c, WAYS, k, a]
                    for outer in range(k):
                        parts *= lower[c, WAYS, outer, a] * lower[c, TRIPS, outer, a]
                    steps = -(-extents[a] // parts)
                    upper[c, TRIPS, k, a] = min(upper[c, TRIPS, k, a], steps)
            if num_stages == 1:
                for a in range(num_axes):
                    if single[a]:
                        least = -(-extents[a] // max(1, upper[c, WAYS, 0, a]))
                        lower[c, TRIPS, 0, a] = max(lower[c, TRIPS, 0, a], least)
            is_some = True
            for w in range(2):
                for k in range(num_stages):
                    for a in range(num_axes):
                        is_some = is_some and lower[c, w, k, a] <= upper[c, w, k, a]
            if is_some:
                is_deep[c] = row < num_deep
                if half:
                    num_upper += 1
                else:
                    num_lower += 1
    for row in range(num_upper):
        c, other = num_lower + row, num_boxes + row
        is_deep[c] = is_deep[other]
        for w in range(2):
            for k in range(num_stages):
                for a in range(num_axes):
                    lower[c, w, k, a] = lower[other, w, k, a]
                    upper[c, w, k, a] = upper[other, w, k, a]
    counts[HALVES], counts[SINGLE_TILINGS] = num_lower + num_upper, num_ones
