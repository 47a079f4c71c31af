"""Cutting boxes of tilings in two, in plain numbers, compiled where that pays."""

from __future__ import annotations

from math import sqrt
from typing import Any

from worker.compiler.tiling.nest.arrays import TRIPS, WAYS


def cut(
    low: Any, high: Any, ways_first: float, units: Any, extents: Any, single: Any, lower: Any,
    upper: Any, some: Any,
) -> None:  # fmt: skip
    """Cut boxes [boxes, ways or trips, stages, axes] along the axis where they are widest in ratio,
    ways `ways_first` times as wide, into two each.

    Fills `lower` and `upper` [2 x boxes, ...] with the lower halves, then the upper ones, without
    what no tiling has: more units than there are, more parts of an axis than it has steps; `some`
    [2 x boxes] says which have anything left.  `single` [axes]: those that one stage cuts into
    single steps.
    Cost: linear.
    """
    num_boxes, num_stages, num_axes = low.shape[0], low.shape[2], low.shape[3]
    for b in range(num_boxes):
        best, which, stage, axis = -1.0, 0, 0, 0
        for w in range(2):
            for k in range(num_stages):
                for a in range(num_axes):
                    ratio = high[b, w, k, a] / low[b, w, k, a]
                    if w == WAYS and ratio > 1:
                        ratio *= ways_first
                    if ratio > best:
                        best, which, stage, axis = ratio, w, k, a
        first, last = low[b, which, stage, axis], high[b, which, stage, axis]
        middle = min(int(sqrt(first * last)), last - 1)
        for half in range(2):
            c = b + half * num_boxes
            for w in range(2):
                for k in range(num_stages):
                    for a in range(num_axes):
                        lower[c, w, k, a] = low[b, w, k, a]
                        upper[c, w, k, a] = high[b, w, k, a]
            if half == 0:
                upper[c, which, stage, axis] = middle
            else:
                lower[c, which, stage, axis] = middle + 1
            some[c] = True
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
            for w in range(2):
                for k in range(num_stages):
                    for a in range(num_axes):
                        if lower[c, w, k, a] > upper[c, w, k, a]:
                            some[c] = False
