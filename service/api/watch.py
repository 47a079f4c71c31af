"""Waiting for a job or a sweep to change: one poller per process and kind, however many wait.

The poller runs only while somebody waits.  It asks the database how all watched ones stand, in one
transaction, and wakes who waits for what has come: an event not seen yet, or the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from anyio import to_thread

from service.store.records import Standing

Standings = Callable[[Iterable[str]], Mapping[str, Standing]]
"""Gives how each of these stands that exists."""
POLL_S = 0.2


def _has_come(standing: Standing | None, seen: int | None) -> bool:
    """Whether it is gone, has an event above `seen` or, without `seen`, has ended."""
    if standing is None:
        return True
    return standing.is_over if seen is None else standing.event_seq > seen


class EventWatch:
    """Wakes coroutines when something has events they have not seen.  One event loop only."""

    def __init__(self, standings: Standings, *, poll_s: float = POLL_S) -> None:
        self._standings = standings
        self._poll_s = poll_s
        self._waiting: dict[str, list[tuple[int | None, asyncio.Future[None]]]] = {}
        self._poller: asyncio.Task[None] | None = None

    async def changed(self, name: str, seen: int, timeout_s: float) -> bool:
        """Wait until it has an event above `seen` or is gone; False after `timeout_s`."""
        return await self._come(name, seen, timeout_s)

    async def ended(self, name: str, timeout_s: float) -> bool:
        """Wait until it has ended or is gone, whatever happens to it before; False after
        `timeout_s`."""
        return await self._come(name, None, timeout_s)

    async def _come(self, name: str, seen: int | None, timeout_s: float) -> bool:
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
                found = await to_thread.run_sync(self._standings, watched)
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
                    if not future.done() and _has_come(found.get(name), seen):
                        future.set_result(None)
            await asyncio.sleep(self._poll_s)
