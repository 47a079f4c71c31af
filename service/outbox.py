"""Publish after commit: the ready rows of `work_item` are the outbox.

`flush` is called after the transaction that made items ready.  If the process dies in between, or
the broker is away, the reconciler calls the same function later: nothing is lost.
"""

from __future__ import annotations

from celery import Celery
from kombu.exceptions import OperationalError

from service.log import get_logger
from service.queue import ring
from service.store.repos import items, workers
from service.store.repos.workers import ALIVE_S
from service.store.session import Database
from service.store.strategy_sets import is_served

_FRONT = 20
"""Bells per round.  Every finished item rings once more, so the rest of a long queue follows."""


_OUTSTANDING_S = 5.0
"""How long a bell that nobody has answered counts: it may have been lost."""


class Outbox:
    """Rings doorbells for ready items."""

    def __init__(self, database: Database, app: Celery, *, redispatch_s: float) -> None:
        self._database = database
        self._app = app
        self._redispatch_s = redispatch_s

    def flush(self, item_ids: tuple[str, ...] | None = None) -> int:
        """Ring for ready items not rung before or rung too long ago; give how many were rung.

        `item_ids` narrows to these items, and rings for none of them while as many bells are out as
        there are slots: each slot will look at the queue anyway, and whoever has ended an item
        rings for the next.  Never raises for a broker fault: the items stay in the outbox and the
        fault is logged.
        """
        return self._ring(self._marked(self._redispatch_s, _FRONT, item_ids))

    def nudge(self) -> int:
        """Ring once for the first ready item, however recently it was rung.

        A worker calls this after each item: a bell that rang while all slots were busy was used up
        by a claim of another item, or is still queued; one bell too many costs one empty claim.
        """
        return self._ring(self._marked(0.0, 1))

    def _marked(
        self, older_than_s: float, limit: int, item_ids: tuple[str, ...] | None = None
    ) -> list[str]:
        """The first items that some live worker may take, or, while none lives, the first ones."""
        with self._database.write() as session:
            slots = max(1, workers.slots_alive(session, ALIVE_S))
            if item_ids is not None and items.is_rung(session, _OUTSTANDING_S, slots):
                return []
            alive = workers.offers_alive(session, ALIVE_S)
            wants = items.wants_of_ready(session)
            served = [w for w in wants if not alive or any(is_served(w, one) for one in alive)]
            return items.mark_dispatched(
                session, older_than_s=older_than_s, limit=limit, served=served, item_ids=item_ids
            )

    def _ring(self, item_ids: list[str]) -> int:
        for count, item_id in enumerate(item_ids):
            try:
                ring(self._app, item_id)
            except (OperationalError, OSError) as error:
                get_logger().warning("broker unreachable", error=str(error), item_id=item_id)
                with self._database.write() as session:
                    items.unmark_dispatched(session, item_ids[count:])
                return count
        return len(item_ids)
