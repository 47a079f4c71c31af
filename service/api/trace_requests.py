"""A span for every request that does something, named by its route.

Its path is not told: parts of it are what somebody typed, and the proof of a shared link.
"""

from __future__ import annotations

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.request_id import request_id_of
from service.tracing import Tracing, parent_of

QUIET = frozenset({"/healthz", "/v1/healthz", "/readyz", "/v1/readyz", "/metrics", "/v1/metrics"})
"""Asked every few seconds by machines."""
STATIC = ("/ui/static/", "/docs/")


class TraceMiddleware:
    """Measures requests, and says below which span the work goes on that they lead to."""

    def __init__(self, app: ASGIApp, *, tracing: Tracing) -> None:
        self.app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = parent_of(Headers(scope=scope).get("traceparent"))
        state = scope.setdefault("state", {})
        state["traceparent"] = given
        path = scope["path"]
        if self._tracing.standing != "on" or path in QUIET or path.startswith(STATIC):
            await self.app(scope, receive, send)
            return
        method = scope["method"]
        span = self._tracing.request(method, given)
        state["traceparent"] = span.traceparent

        async def send_and_look(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                span.put({"http.response.status_code": status})
                if status >= 500:
                    span.fault(str(status))
            await send(message)

        try:
            await self.app(scope, receive, send_and_look)
        except BaseException as error:
            span.fault(type(error).__name__)
            raise
        finally:
            route = getattr(scope.get("route"), "path", None)
            if isinstance(route, str):
                span.rename(f"{method} {route}")
            caller = state.get("caller")
            span.put({
                "http.route": route if isinstance(route, str) else None,
                "tilewright.request.id": request_id_of(Request(scope)),
                "tilewright.project": caller and caller.project,
            })  # fmt: skip
            span.end()


def traceparent_of(request: Request) -> str | None:
    """What a job names as its parent: the request's own span, or the client's where spans are
    off."""
    found: str | None = request.scope["state"]["traceparent"]
    return found
