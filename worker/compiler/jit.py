"""Loops over arrays that numpy has no operation for: plain Python, compiled by numba when it pays.

The compiled and the plain function give the same results; compiling takes a second or more once,
after that its result is read from disk, by llvmlite alone where the loop allows (`loop_object`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

from worker.compiler.loop_object import load_object, save_object

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
_by_numba: dict[Loop, Loop] = {}


class _Objects:
    """Where machine code of loops is (`loop_object`)."""

    folder: Path | None = None


def use_objects(folder: Path) -> None:
    """Load loops from `folder` where it has them, without numba."""
    _Objects.folder = folder


def save_objects(folder: Path) -> None:
    """Write the machine code of every loop that numba compiled here and that needs no numba."""
    for loop, found in _by_numba.items():
        save_object(loop, found, folder)


@cache
def compiled(loop: Loop) -> Loop:
    """`loop`, compiled.  The first call in a fresh environment takes a few seconds."""
    _ready.add(loop)
    loaded = None if _Objects.folder is None else load_object(loop, _Objects.folder)
    if loaded is None:
        return _numba(loop)

    def either(*arguments: Any) -> Any:
        found = loaded(*arguments)
        return _numba(loop)(*arguments) if found is None else found

    return either


def _numba(loop: Loop) -> Loop:
    if loop not in _by_numba:
        import numba  # 0.3 s to import: only large programs pay

        try:
            found: Any = numba.njit(cache=True)(loop)
        except RuntimeError:
            # No writable place for numba's cache (read-only installation): compile in memory.
            found = numba.njit(loop)
        _by_numba[loop] = cast("Loop", found)
    return _by_numba[loop]
