"""A server that ends answers whoever it cannot wait for."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from service.api.request_id import RequestIdMiddleware
from service.api.stopping import StoppingMiddleware

Answer = Callable[[Request], Awaitable[Response]]


async def late(request: Request) -> Response:
    await asyncio.sleep(30)
    return PlainTextResponse("late")


async def begun(request: Request) -> Response:
    async def parts() -> object:
        yield "first"
        await asyncio.sleep(30)
        yield "last"

    return StreamingResponse(parts())  # type: ignore[arg-type]  # an async generator of text


@pytest.fixture
def url() -> object:
    """Of a server that is told to end half a second after it got a request."""
    app = Starlette(routes=[Route("/late", late), Route("/begun", begun)])
    app.add_middleware(StoppingMiddleware)
    app.add_middleware(RequestIdMiddleware)
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, lifespan="off")
    server = uvicorn.Server(config)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        threading.Timer(0.5, lambda: setattr(server, "should_exit", True)).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(20)
        assert not thread.is_alive()


def test_a_request_that_is_cut_short_may_be_repeated(url: str) -> None:
    answer = httpx.get(f"{url}/late", headers={"X-Request-ID": "mine"}, timeout=20)
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == "mine" and int(answer.headers["retry-after"]) > 0
    found = answer.json()
    assert (found["code"], found["retryable"]) == ("TW-SVC-005", True)
    assert (found["instance"], found["request_id"]) == ("/late", "mine")


def test_an_answer_that_has_begun_ends_torn_and_is_no_other(url: str) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{url}/begun", timeout=20)
