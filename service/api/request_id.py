"""Every response names its request: the client's id when it is well-formed, else a new one."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.log import bound

HEADER = "X-Request-ID"
_WELL_FORMED = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class RequestIdMiddleware:
    """Reads or makes the request id, echoes it, and binds it to the log lines of the request.

    Plain ASGI, because Starlette's function middleware copies every body chunk through a queue.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((v for k, v in scope["headers"] if k == HEADER.lower().encode()), b"")
        request_id = given.decode() if _WELL_FORMED.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        with bound(request_id=request_id):
            await self.app(scope, receive, send_with_id)


def request_id_of(request: Request) -> str:
    """Give the id of a request."""
    return str(request.scope.get("state", {}).get("request_id", ""))
