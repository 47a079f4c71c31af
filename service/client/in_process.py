"""An httpx transport that calls an ASGI application in this process, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from tempfile import SpooledTemporaryFile
from typing import Any

import httpx

Message = MutableMapping[str, Any]
Application = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[Message]],
        Callable[[Message], Awaitable[None]],
    ],
    Awaitable[None],
]
IN_MEMORY_BYTES = 8 << 20
"""Larger answers are kept in a temporary file until they are read."""


class InProcessTransport(httpx.BaseTransport):
    """Runs each request to its end in an event loop of its own.

    Event streams are therefore only seen when they are over: poll instead.
    """

    def __init__(self, app: Application) -> None:
        self.app = app

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Call the application and collect its answer."""
        return asyncio.run(self._call(request))

    async def _call(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream)
        pieces: Iterator[bytes] = iter(request.stream)
        url = request.url
        scope: MutableMapping[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(k.lower(), v) for k, v in request.headers.raw],
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.split(b"?")[0],
            "query_string": url.query,
            "server": (url.host, url.port or 80),
            "client": ("127.0.0.1", 0),
            "root_path": "",
        }
        done = False
        status, headers = 500, list[tuple[bytes, bytes]]()
        body = SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115  # closed by _Body

        async def receive() -> Message:
            nonlocal done
            piece = next(pieces, None)
            if piece is not None:
                return {"type": "http.request", "body": piece, "more_body": True}
            if not done:
                done = True
                return {"type": "http.request", "body": b"", "more_body": False}
            # The client stays until the answer is complete.
            never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            return await never

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message.get("headers", []))
            elif message["type"] == "http.response.body":
                body.write(message.get("body", b""))

        await self.app(scope, receive, send)
        body.seek(0)
        return httpx.Response(status, headers=headers, stream=_Body(body))


class _Body(httpx.SyncByteStream):
    def __init__(self, stored: SpooledTemporaryFile[bytes]) -> None:
        self.stored = stored

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.stored.read(1 << 18):
            yield piece

    def close(self) -> None:
        self.stored.close()
