"""Ringing doorbells after the answer: a submit waits for its own commit and nothing else.

The outbox marks what it rings, which is a second transaction, and a broker may be slow or away.
One thread does both for all requests, in batches.  A process that dies in between loses bells, not
jobs: the reconciler rings for every ready item that nobody has marked.
"""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue

from sqlalchemy.exc import DBAPIError

from service.log import get_logger
from service.outbox import Outbox

BATCH = 20
"""Bells per transaction."""
PAUSE_S = 0.02
"""Between transactions, so that bells of many submits share one; the first waits for nothing."""


class DeferredOutbox(Outbox):
    """An outbox whose `flush` of given items returns at once."""

    def __init__(self, inner: Outbox) -> None:
        self._inner = inner
        self._pending: SimpleQueue[str | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def flush(self, item_ids: tuple[str, ...] | None = None) -> int:
        """Queue bells for these items and give 0; without items, ring now."""
        if item_ids is None:
            return self._inner.flush()
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="bells", daemon=True)
                self._thread.start()
        for item_id in item_ids:
            self._pending.put(item_id)
        return 0

    def nudge(self) -> int:
        return self._inner.nudge()

    def close(self) -> None:
        """Ring what is queued and stop."""
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._pending.put(None)
            thread.join(timeout=10)

    def _run(self) -> None:
        while (first := self._pending.get()) is not None:
            batch, last = self._batch(first)
            try:
                self._inner.flush(batch)
            except DBAPIError as error:
                get_logger().warning("bells left to the reconciler", error=str(error.orig))
            if last:
                return
            if self._pending.qsize() < BATCH:
                time.sleep(PAUSE_S)

    def _batch(self, first: str) -> tuple[tuple[str, ...], bool]:
        """Take what else is waiting; the flag says that `close` was called."""
        batch = [first]
        while len(batch) < BATCH:
            try:
                item_id = self._pending.get_nowait()
            except Empty:
                break
            if item_id is None:
                return tuple(batch), True
            batch.append(item_id)
        return tuple(batch), False
