"""A server that counts what its parts cost: CPU time by thread, each moment in one part only.

    python -m benchmarks.load.parts OUT serve --port 0 ...

Functions of the product are wrapped before it starts; what one of them calls of the others is
theirs.  A coroutine is counted only while it runs, not while it waits.  When the process ends, OUT
has calls and seconds of each part, and of the whole since the first of them began.  Counting costs
some microseconds a call, which are counted, too: its totals are for shares, not for rates.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import json
import sys
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

PARTS = {
    "service.api.heads:PacedProtocol.data_received": "HTTP: read",
    "uvicorn.protocols.http.h11_impl:RequestResponseCycle.send": "HTTP: write",
    "service.api.request_id:RequestIdMiddleware.__call__": "request id, origin, scope, bounds",
    "service.api.origin:OriginMiddleware.__call__": "request id, origin, scope, bounds",
    "service.api.callers:ScopeMiddleware.__call__": "request id, origin, scope, bounds",
    "service.api.pace:PaceMiddleware.__call__": "request id, origin, scope, bounds",
    "service.api.body_limit:BodyLimitMiddleware.__call__": "request id, origin, scope, bounds",
    "service.api.callers:KeyMiddleware.__call__": "keys",
    "service.api.rates:RateMiddleware.__call__": "limits: rates",
    "service.api.auditing:AuditMiddleware.__call__": "audit",
    "service.api.auditing:acting": "audit",
    "starlette.middleware.exceptions:ExceptionMiddleware.__call__": "route, parse, validate",
    "service.api.routes.jobs:submit_job": "SQL: transaction",
    "service.store.group_commit:GroupCommit.run": "SQL: transaction",
    "service.jobs.submit:first_made": "SQL: idempotency key",
    "service.store.repos.catalog:references": "SQL: model and spec",
    "service.jobs.quotas:check_submit": "limits: quotas (SQL)",
    "service.jobs.submit:insert_job": "SQL: job, item, event",
    "service.jobs.audit:record": "audit row (SQL)",
    "service.jobs.query:get_job": "SQL: read the job",
    "service.api.answers:Prepared.__call__": "serialise",
    "service.api.answers:Prepared.response": "serialise",
    "service.outbox:Outbox.flush": "bells",
    "worker.runner.main:reconcile": "reconciler",
}
"""Where a part begins: `module:name`, in which module the caller looks it up."""


class _Thread(threading.local):
    """What a thread is in now, and since which CPU time."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.since = 0.0


class Counts:
    """Seconds and calls of every part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.began_s: float | None = None
        """CPU time of the process when the first part began."""
        self._thread = _Thread()
        self._lock = threading.Lock()

    def enter(self, part: str) -> None:
        """From now on this thread is in a part, within the one that it was in."""
        if self.began_s is None:
            self.began_s = time.process_time()
        self._turn()
        self._thread.parts.append(part)

    def leave(self) -> None:
        """Back in the one around it."""
        self._turn()
        self._thread.parts.pop()

    def _turn(self) -> None:
        now, thread = time.thread_time(), self._thread
        if thread.parts:
            with self._lock:
                part = thread.parts[-1]
                self.seconds[part] = self.seconds.get(part, 0.0) + now - thread.since
        thread.since = now

    def wrapped(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The function, counted as a part."""

        @functools.wraps(function)
        def plain(*given: Any, **named: Any) -> Any:
            self.calls[part] = self.calls.get(part, 0) + 1
            self.enter(part)
            try:
                return function(*given, **named)
            finally:
                self.leave()

        @functools.wraps(function)
        async def steps(*given: Any, **named: Any) -> Any:
            self.calls[part] = self.calls.get(part, 0) + 1
            return await self._stepped(function(*given, **named), part)

        return steps if inspect.iscoroutinefunction(function) else plain

    @types.coroutine
    def _stepped(self, inner: Coroutine[Any, Any, Any], part: str) -> Generator[Any, Any, Any]:
        given: Any = None
        error: BaseException | None = None
        while True:
            self.enter(part)
            try:
                step = inner.send(given) if error is None else inner.throw(error)
            except StopIteration as end:
                return end.value
            finally:
                self.leave()
            try:
                given, error = (yield step), None
            except BaseException as raised:  # handed on to whom it is meant for
                given, error = None, raised


def count(parts: dict[str, str]) -> Counts:
    """Wrap what is named; from now on it is counted."""
    counts = Counts()
    for place, part in parts.items():
        module, _, path = place.partition(":")
        holder: Any = importlib.import_module(module)
        *outer, name = path.split(".")
        for step in outer:
            holder = getattr(holder, step)
        setattr(holder, name, counts.wrapped(getattr(holder, name), part))
    return counts


def main() -> None:
    """Run the rest of the command line as `tilewright`, counted."""
    out = Path(sys.argv[1])
    counts = count(PARTS)

    def told() -> str:
        whole = time.process_time() - (counts.began_s or 0.0)
        return json.dumps({"seconds": counts.seconds, "calls": counts.calls, "whole_s": whole})

    atexit.register(lambda: out.write_text(told()))
    from service.cli.main import app

    sys.argv = ["tilewright", *sys.argv[2:]]
    app()


if __name__ == "__main__":
    main()
