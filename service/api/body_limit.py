"""Bodies that are read into memory are bounded; the upload routes stream and bound themselves."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems import problem_response
from service.errors import TooLarge

STREAMED = (("POST", "/v1/models"), ("POST", "/v1/calibrations"), ("PATCH", "/v1/uploads/"))
"""(method, path prefix) of the routes that stream to disk and enforce their own limit."""


class BodyLimitMiddleware:
    """Answers 413 by the declared length, or as soon as the received bytes pass the limit."""

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self.app = app
        self.limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or any(
            scope["method"] == method and scope["path"].startswith(prefix)
            for method, prefix in STREAMED
        ):
            await self.app(scope, receive, send)
            return
        declared = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self.limit_bytes:
            response = problem_response(Request(scope), self._error(int(declared)).to_problem())
            await response(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self.limit_bytes:
                    # Not TooLarge: FastAPI turns foreign exceptions of body reading into a 400.
                    raise HTTPException(413, self._error(received).message)
            return message

        await self.app(scope, counted, send)

    def _error(self, actual: int) -> TooLarge:
        return TooLarge(
            f"the body has {actual} bytes or more, the limit is {self.limit_bytes}",
            limit=self.limit_bytes,
            actual=actual,
            headers={"Connection": "close"},
        )
