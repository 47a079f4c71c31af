"""Looks at sweeps for event streams: however many follow one, it is read twice a second at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anyio import to_thread

from service.api.schemas.sweep import SweepProgressEvent
from service.jobs.sweep_figures import Fronts, fronts
from service.jobs.sweeps import Sweep
from service.store.records import SweepItemRecord

PACE_S = 0.5
"""How old a look may be: each reads all items, some 28 ms of processor time for a thousand."""


@dataclass(frozen=True, slots=True)
class Look:
    """A sweep at a moment."""

    sweep: Sweep
    items: tuple[SweepItemRecord, ...]
    """By the number of their last change."""
    fronts: Fronts
    progress: dict[str, Any]
    """The body of the event."""

    @classmethod
    def at(cls, sweep: Sweep) -> Look:
        """What streams need of a sweep."""
        found = fronts(sweep.record, sweep.items)
        told = SweepProgressEvent.of(sweep, found).model_dump(mode="json")
        return cls(sweep, tuple(sorted(sweep.items, key=lambda item: item.seq)), found, told)


class SweepLooks:
    """Takes looks and shares them.  One event loop only."""

    def __init__(self, find: Callable[[str], Sweep | None], *, pace_s: float = PACE_S) -> None:
        self._find = find
        self._pace_s = pace_s
        self._known: dict[str, tuple[float, asyncio.Task[Look | None]]] = {}

    async def look(self, sweep_id: str) -> Look | None:
        """The sweep as it was at most `pace_s` ago; None: there is none."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for name, (when, task) in list(self._known.items()):
            is_broken = task.done() and (task.cancelled() or task.exception() is not None)
            if is_broken or now - when >= self._pace_s or task.get_loop() is not loop:
                del self._known[name]
        if sweep_id not in self._known:
            self._known[sweep_id] = (now, loop.create_task(self._take(sweep_id)))
        # Whoever goes away cancels its own waiting, not what others wait for.
        return await asyncio.shield(self._known[sweep_id][1])

    async def _take(self, sweep_id: str) -> Look | None:
        def take() -> Look | None:
            found = self._find(sweep_id)
            return None if found is None else Look.at(found)

        return await to_thread.run_sync(take)
