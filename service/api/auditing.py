"""Every request that changes something, and came with a key, leaves a row in the audit log.

What the transaction of the change did not record is written when the answer is out: refusals,
failures, repeats, and what only changes files.  So is every refusal of what needs `admin`.
"""

from __future__ import annotations

from anyio import CancelScope, to_thread
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from service.api.callers import READING, scope_of
from service.jobs.audit import Act, acting, record_end
from service.keys import Caller, Scope
from service.log import get_logger
from service.store.session import Database


class AuditMiddleware:
    """Names the act that a request is, and records its end where nothing else has."""

    def __init__(self, app: ASGIApp, *, database: Database) -> None:
        self.app = app
        self._database = database

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        caller = None if scope["type"] != "http" else scope["state"]["caller"]
        if caller is None or not _is_audited(caller, scope):
            await self.app(scope, receive, send)
            return
        changes = scope["method"] not in READING
        act = Act(caller, scope["state"]["request_id"], lambda: _route(scope))
        status = 0

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            with acting(act):
                await self.app(scope, receive, seen)
        except Exception:
            status = status or 500  # answered by what stands around all middleware
            raise
        finally:
            is_well = 200 <= status < 400
            if not is_well or (changes and not act.is_recorded):
                await self._record(act, _subject(scope), status)

    async def _record(self, act: Act, subject: str | None, status: int) -> None:
        # Also for a client that has gone away, which cancels what answers it.
        with CancelScope(shield=True):
            try:
                await to_thread.run_sync(record_end, self._database, act, subject, status)
            except SQLAlchemyError as error:
                get_logger().error(
                    "no row in the audit log", key=act.caller.key_id, project=act.caller.project,
                    route=act.route(), subject=subject, status=status, error=str(error),
                )  # fmt: skip


def _is_audited(caller: Caller, scope: AsgiScope) -> bool:
    needed = scope_of(scope["method"], scope["path"])
    if needed in (Scope.ADMIN, Scope.KEYS):
        return True
    return needed is Scope.WRITE and caller.key_id is not None


def _route(scope: AsgiScope) -> str:
    path = getattr(scope.get("route"), "path", scope["path"])
    return f"{scope['method']} {path}"


def _subject(scope: AsgiScope) -> str | None:
    """The id in the path: routes have at most one that says what is changed, the first."""
    values = list(scope.get("path_params", {}).values())
    return str(values[0]) if values else None
