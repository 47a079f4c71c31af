"""What a run is made of: instructions that were timed, and copies of stretches of it.

The instructions of a run are numbered in the order in which the clock took them.  Those that were
timed are in its log; the others are copies: number x of a copy is number x - `back` again, later by
`moved` cycles.  A copy longer than `back` repeats itself, and what is copied may hold copies.
The form is that of J. Ziv, A. Lempel, A universal algorithm for sequential data compression (1977).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

PUT, MANY, BACK, MOVED, LOGGED, WHEN, LASTS = range(7)
"""Columns of copies [.., 7], in order: number of its first instruction; how many; how far back what
it copies stands; by how many cycles that is moved; entries of the log in front of it.  Where the
clock went by readiness: the time at which it begins, in front of which nothing behind it starts,
and how long it lasts; else -1 and 0."""


def locate(copies: Ints, number: int) -> tuple[int, int]:
    """(entry of the log, cycles by which it is moved) of an instruction.

    Cost: the logarithm of the copies, for each copy within a copy.
    """
    moved = 0
    while True:
        k = int(np.searchsorted(copies[:, PUT], number, side="right")) - 1
        if k < 0:
            return number, moved
        put, many, back, by, logged = copies[k, :WHEN].tolist()
        behind = number - put - many
        if behind >= 0:
            return logged + behind, moved
        laps = (number - put) // back + 1
        number -= laps * back
        moved += laps * by
