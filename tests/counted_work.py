"""Work counted in calls: how a test holds a promise of cost without reading a clock.

Calls of Python functions and of C functions from Python, in the calling thread.  The number does
not depend on the machine or on what else it runs; loops inside numpy count once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_of(work: Callable[[], Any]) -> int:
    """Calls made while `work` runs."""
    counted = 0

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal counted
        del frame, arg
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return counted


def growth(work: Callable[[int], Any], size: int) -> float:
    """Calls at `2 * size` over calls at `size`: 2 is linear, 4 is quadratic."""
    return calls_of(lambda: work(2 * size)) / calls_of(lambda: work(size))
