"""Every response names its request: the client's id when it is well-formed, else a new one.

And where it is asked for, every request leaves a line in the log.
"""

from __future__ import annotations

import re
import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.log import bound, get_logger

HEADER = "X-Request-ID"
_WELL_FORMED = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class RequestIdMiddleware:
    """Reads or makes the request id, echoes it, and binds it to the log lines of the request.

    Plain ASGI, because Starlette's function middleware copies every body chunk through a queue.
    """

    def __init__(self, app: ASGIApp, *, access_log: bool = False) -> None:
        self.app = app
        self._is_logged = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((v for k, v in scope["headers"] if k == HEADER.lower().encode()), b"")
        request_id = given.decode() if _WELL_FORMED.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        began, status = time.monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
                status = message["status"]
            await send(message)

        with bound(request_id=request_id):
            try:
                await self.app(scope, receive, send_with_id)
            finally:
                if self._is_logged:
                    caller = scope["state"].get("caller")
                    get_logger().info(
                        "request", method=scope["method"], path=scope["path"], status=status,
                        ms=round(1e3 * (time.monotonic() - began), 1),
                        key=caller and caller.key_id, project=caller and caller.project,
                    )  # fmt: skip


def request_id_of(request: Request) -> str:
    """Give the id of a request."""
    return str(request.scope.get("state", {}).get("request_id", ""))
