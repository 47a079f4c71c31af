"""Loops over arrays that numpy has no operation for: plain Python, compiled by numba when it pays.

The compiled and the plain function give the same results; compiling takes a second or more once,
after that its result is read from disk.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np

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
    """`loop`, compiled: once for each way of its arguments' types, dimensions and Nones.

    numba by itself compiles anew for arrays that may not be written and for those with gaps (fields
    of a table): the clock's loop 11 times in a run of the tests.  What the loop
    only reads is declared as any array of its type.  The first call in a fresh environment takes a
    few seconds.
    """
    _ready.add(loop)
    return _Compiled(loop)


class _Compiled:
    """Calls what was compiled for arguments of this kind."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._only_read = loop, only_read(loop)
        self._by_kind: dict[tuple[object, ...], Loop] = {}

    def __call__(self, *arguments: Any) -> Any:
        kind = tuple(
            (a.dtype, a.ndim, a.flags.aligned, is_read or a.flags.c_contiguous)
            if isinstance(a, np.ndarray)
            else type(a)
            for a, is_read in zip(arguments, self._only_read, strict=True)
        )
        found = self._by_kind.get(kind)
        if found is None:
            found = self._by_kind[kind] = self._compile(arguments)
        return found(*arguments)

    def _compile(self, arguments: tuple[Any, ...]) -> Loop:
        import numba  # 0.3 s to import: only large programs pay

        types = tuple(
            numba.types.Array(of.dtype, of.ndim, "A", readonly=True, aligned=of.aligned)
            if is_read and isinstance(of, numba.types.Array)
            else of
            for of, is_read in zip(map(numba.typeof, arguments), self._only_read, strict=True)
        )
        try:
            return cast("Loop", numba.njit(types, cache=True)(self._loop))
        except RuntimeError:
            # No writable place for numba's cache (read-only installation): compile in memory.
            return cast("Loop", numba.njit(types)(self._loop))


def only_read(loop: Loop) -> tuple[bool, ...]:
    """Of each parameter: whether no statement of `loop` writes elements of it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(loop)))
    written = {
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
    }
    return tuple(name not in written for name in inspect.signature(loop).parameters)
