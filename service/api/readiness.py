"""What `/readyz` asks: database, broker, blob store, workers, the age of the queue.

Each is asked on a thread of its own, and the answer does not wait for who hangs: a probe that is
kept for a minute learns nothing.  Who hangs is not asked again until the first question returns.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

from celery import Celery
from kombu.exceptions import OperationalError
from pydantic import JsonValue
from sqlalchemy.exc import SQLAlchemyError

from service.errors import ServiceError, Unavailable
from service.jobs import query
from service.queue import reach
from service.states import ItemState
from service.store.blobs import BlobStore
from service.store.session import Database
from service.tracing import Tracing
from worker.compiler.errors import Finding

STALLED_S = 300.0
"""Ready work this old, while workers claim to be alive and none of them works, means that nobody
hears the doorbell; behind long jobs it is a queue."""
ANSWER_S = 1.0
"""How long a part may take; `/readyz` promises an answer within 2 s, on a busy machine too."""
_NO_BLOB = "0" * 64

Facts = dict[str, JsonValue]
Report = tuple[Facts, tuple[Finding, ...]]


class Readiness:
    """The parts of one process that have to answer."""

    def __init__(
        self, database: Database, blobs: BlobStore, broker: Celery | None, tracing: Tracing
    ) -> None:
        """Ask these; no broker when messages stay in this process."""
        self._tracing = tracing
        self._parts: dict[str, Callable[[], Report]] = {
            "database": lambda: _ask_database(database),
            "blobs": lambda: _ask_blobs(blobs),
        }
        if broker is not None:
            self._parts["broker"] = lambda: _ask_broker(broker)
        self._asked: dict[str, Future[Report]] = {}
        self._asking = threading.Lock()

    async def check(self) -> Facts:
        """Give the facts behind a positive answer, within ANSWER_S.

        Raises:
            Unavailable: with one finding per failed check.
        """
        asked = {name: asyncio.wrap_future(self._ask(name)) for name in self._parts}
        await asyncio.wait(asked.values(), timeout=ANSWER_S)
        facts: Facts = {"traces": self._tracing.standing}
        failed: list[Finding] = []
        for name, answer in asked.items():
            if not answer.done():
                failed.append(
                    Finding(
                        "TW-SVC-005",
                        f"{name}: no answer within {ANSWER_S:g} s",
                        f"/{name}",
                        None,
                        ANSWER_S,
                        None,
                    )
                )
                continue
            found, missing = answer.result()
            facts |= found
            failed += missing
        if failed:
            raise Unavailable(
                "not ready: " + "; ".join(f.message for f in failed), findings=tuple(failed)
            )
        return facts

    def _ask(self, name: str) -> Future[Report]:
        """Ask on a new thread unless the last question is still open."""
        with self._asking:
            last = self._asked.get(name)
            if last is not None and not last.done():
                return last
            future: Future[Report] = Future()
            future.set_running_or_notify_cancel()
            self._asked[name] = future

        def run() -> None:
            try:
                future.set_result(self._parts[name]())
            except BaseException as error:  # the boundary of the thread: who asked gets it
                future.set_exception(error)

        threading.Thread(target=run, name=f"ready-{name}", daemon=True).start()
        return future


def _ask_database(database: Database) -> Report:
    try:
        stats = query.queue_stats(database)
        sandboxes = sorted({w.sandbox_tier for w in query.list_workers(database)})
    except (SQLAlchemyError, OSError) as error:
        return {}, (_failed("database", error),)
    facts: Facts = {
        "database": "ok",
        "workers_alive": stats.workers_alive,
        "oldest_ready_s": round(stats.oldest_ready_s, 1),
        "sandbox": list[JsonValue](sandboxes),
    }
    if stats.workers_alive == 0:
        return facts, (Finding("TW-SVC-005", "no worker is alive", "/workers_alive", None, 1, 0),)
    is_worked_on = dict(stats.items_by_state).get(ItemState.LEASED, 0) > 0
    # Between one item and the next nothing is leased for a moment, and the one of lowest priority
    # may have waited for long.
    is_quiet = stats.quiet_s is None or stats.quiet_s > STALLED_S
    if stats.oldest_ready_s > STALLED_S and is_quiet and not is_worked_on:
        message = "work is ready but no worker takes it"
        oldest = round(stats.oldest_ready_s, 1)
        return facts, (Finding("TW-SVC-005", message, "/oldest_ready_s", None, STALLED_S, oldest),)
    return facts, ()


def _ask_blobs(blobs: BlobStore) -> Report:
    try:
        blobs.head(_NO_BLOB)
    except (ServiceError, OSError) as error:
        return {}, (_failed("blobs", error),)
    return {"blobs": "ok"}, ()


def _ask_broker(broker: Celery) -> Report:
    try:
        reach(broker, ANSWER_S)
    except (OperationalError, OSError) as error:
        return {}, (_failed("broker", error),)
    return {"broker": "ok"}, ()


def _failed(name: str, error: Exception) -> Finding:
    return Finding("TW-SVC-005", f"{name}: {type(error).__name__}", f"/{name}")
