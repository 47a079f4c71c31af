"""A receiver of webhooks on loopback that does as it is told, and keeps what it got."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Got:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


Answer = Callable[[BaseHTTPRequestHandler], None]


def status(code: int, **headers: str) -> Answer:
    """Answer with a status."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


@dataclass
class Receiver:
    """What arrived, and how the next requests are answered: the last answer goes on."""

    url: str = ""
    port: int = 0
    got: list[Got] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=lambda: [status(204)])
    arrived: threading.Condition = field(default_factory=threading.Condition)
    open_now: int = 0
    most_open: int = 0

    def wait(self, count: int, timeout_s: float = 20.0) -> list[Got]:
        """Until so many requests have come."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.got) >= count, timeout_s), (
                f"{len(self.got)} of {count} requests came"
            )
            return list(self.got)

    def take(self, got: Got) -> Answer:
        with self.arrived:
            self.got.append(got)
            self.arrived.notify_all()
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def receiver(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Listen on a free port."""
    state = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with state.arrived:
                state.open_now += 1
                state.most_open = max(state.most_open, state.open_now)
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                state.take(Got(self.path, headers, body, time.monotonic()))(self)
            except OSError:
                self.close_connection = True
            finally:
                with state.arrived:
                    state.open_now -= 1

        def log_request(self, code: object = "-", size: object = "-") -> None:
            del code, size

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            del request, client_address

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    state.port = server.server_address[1]
    scheme = "http" if tls is None else "https"
    state.url = f"{scheme}://127.0.0.1:{state.port}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
