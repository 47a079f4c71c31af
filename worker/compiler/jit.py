"""Loops over arrays that numpy has no operation for: plain Python, compiled by numba when it pays.

The compiled and the plain function give the same results; compiling takes a second or more once,
after that its result is read from disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

Loop = Callable[..., Any]

INTERPRETED_STEPS = 100_000
"""Steps that a process takes in plain Python, in all, before it imports numba and loads what numba
compiled: 0.35 to 0.75 s of CPU.  A step took 0.3 to 5 us, 1.1 on average, over the loops of two
small models on three chips; callers weigh what their innermost body does."""


class _Spent:
    """Steps that were taken in plain Python by this process."""

    steps = 0


def loop_for(loop: Loop, num_steps: int) -> Loop:
    """`loop` itself while this process has taken few steps of loops, the compiled one later.

    `num_steps`: of the innermost body, in the call that follows.
    """
    if not is_compiled(loop) and _Spent.steps + num_steps <= INTERPRETED_STEPS:
        _Spent.steps += num_steps
        return loop
    return compiled(loop)


def is_compiled(loop: Loop) -> bool:
    """Whether `compiled(loop)` costs nothing any more."""
    return loop in _ready


_ready: set[Loop] = set()


@cache
def compiled(loop: Loop) -> Loop:
    """`loop`, compiled.  The first call in a fresh environment takes a few seconds."""
    import numba  # 0.3 s to import: only large programs pay

    try:
        found: Any = numba.njit(cache=True)(loop)
    except RuntimeError:
        # No writable place for numba's cache (read-only installation): compile in memory.
        found = numba.njit(loop)
    _ready.add(loop)
    return cast("Loop", found)
