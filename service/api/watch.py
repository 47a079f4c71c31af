"""Waiting for a job or a sweep to change: one poller per process and kind, however many wait.

The poller runs only while somebody waits.  It asks the database for the event numbers of all
watched ones in one transaction and wakes those whose number has moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from anyio import to_thread

Numbers = Callable[[Iterable[str]], Mapping[str, int]]
"""Gives the number of the latest event of each of these that exists."""
POLL_S = 0.2


class EventWatch:
    """Wakes coroutines when something has events they have not seen.  One event loop only."""

    def __init__(self, numbers: Numbers, *, poll_s: float = POLL_S) -> None:
        self._numbers = numbers
        self._poll_s = poll_s
        self._waiting: dict[str, list[tuple[int, asyncio.Future[None]]]] = {}
        self._poller: asyncio.Task[None] | None = None

    async def changed(self, name: str, seen: int, timeout_s: float) -> bool:
        """Wait until it has an event above `seen` or is gone; False after `timeout_s`."""
        loop = asyncio.get_running_loop()
        if self._poller is None or self._poller.done() or self._poller.get_loop() is not loop:
            self._poller = loop.create_task(self._poll())
        future: asyncio.Future[None] = loop.create_future()
        entry = (seen, future)
        self._waiting.setdefault(name, []).append(entry)
        try:
            await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return False
        finally:
            remaining = [e for e in self._waiting.get(name, []) if e is not entry]
            if remaining:
                self._waiting[name] = remaining
            else:
                self._waiting.pop(name, None)
        return True

    async def _poll(self) -> None:
        while self._waiting:
            watched = tuple(self._waiting)
            try:
                numbers = await to_thread.run_sync(self._numbers, watched)
            except BaseException as error:
                # Everybody who waits learns why; the next one to wait starts a new poller.
                for entries in self._waiting.values():
                    for _, future in entries:
                        if not future.done():
                            future.set_exception(error)
                if not isinstance(error, Exception):
                    raise
                return
            for name in watched:
                for seen, future in self._waiting.get(name, ()):
                    if numbers.get(name, seen + 1) > seen and not future.done():
                        future.set_result(None)
            await asyncio.sleep(self._poll_s)
