"""Loops over arrays that numpy has no operation for: plain Python, compiled by numba when it pays.

The compiled and the plain function give the same results; compiling takes a second or more once,
after that its result is read from disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

Loop = Callable[..., Any]

INTERPRETED_STEPS = 2000
"""Below this, plain Python is done before numba has been imported (about a second)."""


def loop_for(loop: Loop, num_steps: int) -> Loop:
    """`loop` itself for few steps of its innermost body, the compiled one otherwise."""
    if num_steps <= INTERPRETED_STEPS and not is_compiled(loop):
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
