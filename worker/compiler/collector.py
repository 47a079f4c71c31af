"""Fewer runs of the garbage collector while a model compiles.

A compile makes tens of millions of small immutable objects that reference counts free; cycles are
rare.  By default the collector looks through the young ones after every 700 net allocations and
through all of them, the model and what was imported included, again and again: a tenth of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

THRESHOLDS = (50_000, 20, 20)
"""Net allocations per young collection; young ones per middle one; middle ones per full one."""

_lock = Lock()
_inside: list[tuple[int, int, int]] = []
"""What was set before, once per compile that is going on in this process."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect rarely inside; the last one out puts back what the first one found.

    A process whose collector is off, or rarer still, is left as it is.
    """
    with _lock:
        before = _inside[0] if _inside else gc.get_threshold()
        _inside.append(before)
        if 0 < gc.get_threshold()[0] < THRESHOLDS[0]:
            gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        with _lock:
            _inside.pop()
            if not _inside:
                gc.set_threshold(*before)
