"""Bodies that stop half-way end: uvicorn waits for the rest of one for ever."""

from __future__ import annotations

import asyncio
import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MIN_BYTES_PER_S = 1024
"""A body that comes slower than this, after the grace, is not on its way."""


class PaceMiddleware:
    """Answers 408 when waiting for a body takes more than `grace_s` + bytes / MIN_BYTES_PER_S.

    Only time spent waiting for the client counts, not what the server does with the bytes.
    """

    def __init__(self, app: ASGIApp, grace_s: float) -> None:
        self.app = app
        self.grace_s = grace_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        waited, received, complete = 0.0, 0, False

        async def paced() -> Message:
            nonlocal waited, received, complete
            if complete:  # what follows is the wait for the client to go away
                return await receive()
            started = time.monotonic()
            left = self.grace_s + received / MIN_BYTES_PER_S - waited
            try:
                async with asyncio.timeout(max(left, 0.0)):  # `wait_for` would start a task
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408,
                    f"the body stopped after {received} bytes; it may pause for {self.grace_s:g} s "
                    f"and come no slower than {MIN_BYTES_PER_S} bytes a second",
                    headers={"Connection": "close"},
                ) from None
            waited += time.monotonic() - started
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            return message

        await self.app(scope, paced, send)
