"""A request that the server's end cuts short is answered as one to come back with."""

from __future__ import annotations

from asyncio import CancelledError

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems import problem_response
from service.errors import problem


class StoppingMiddleware:
    """Answers for requests that are canceled before their answer has begun.

    Nothing cancels one but a server that has waited for it long enough and ends
    (`service.cli.serve`); uvicorn would say a bare 500, which no client may repeat.  What was done
    for it may be committed all the same: that is what idempotency keys are for.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except CancelledError:
            if has_begun:
                raise
            document = problem("TW-SVC-005", "the server ends, and this took longer than it waits")
            await problem_response(Request(scope), document)(scope, receive, send)
