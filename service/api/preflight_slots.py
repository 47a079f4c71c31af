"""A bound on the preflights and explanations that one server runs at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

from service.errors import Unavailable


class PreflightSlots:
    """How many preflights and explanations one server runs at a time.

    They are refused beyond that, never queued: whoever waited would hold a thread that the other
    requests need.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = BoundedSemaphore(count)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """One slot, for as long as the block lasts.

        Raises:
            Unavailable: all are taken.
        """
        if not self._free.acquire(blocking=False):
            raise Unavailable(
                f"{self._count} preflights or explanations are running, as many as may at a time",
                limit=self._count,
                actual=self._count,
                remedy="Try again after the time in Retry-After, or raise"
                " TILEWRIGHT_PREFLIGHT_SLOTS at the server.",
            )
        try:
            yield
        finally:
            self._free.release()
