"""Somebody who is told when jobs end, and is rude to who tells: refuses, hangs, hangs up.

What a campaign owes its subscriber: of every job that ended one message that was delivered, however
often it had to be sent, and never two of a message at once.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from benchmarks.faults.audit import Books
from service.client import Client

TIMEOUT_S = 3.0
"""Of an attempt, for settings."""
SETTLE_S = 90.0
"""A message whose sender was killed waits for its lease, which outlasts an attempt by 20 s."""
_REFUSED, _HUNG_UP, _HUNG = 0.2, 0.1, 0.03


class Subscriber:
    """Listens on loopback from `start` to `close`."""

    def __init__(self, seed: int) -> None:
        self.taken: Counter[str] = Counter()
        """By the id of a message, how often it was answered with 204."""
        self.breaches: list[str] = []
        self.is_rude = True
        self._random = Random(f"{seed}.subscriber")
        self._secret = ""
        self._now: defaultdict[str, list[socket.socket]] = defaultdict(list)
        """By the id of a message, connections on which it is being answered."""
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def subscribe(self, url: str) -> None:
        """Ask the service at `url` to be told."""
        with Client(url) as client:
            made = client.create_webhook(f"http://127.0.0.1:{self._server.server_address[1]}/")
        self._secret = str(made["secret"])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def audit(self, books: Books) -> list[str]:
        """What is owed, once all jobs have ended: waits until nothing is on its way."""
        deadline = time.monotonic() + SETTLE_S
        query = "SELECT id, job_id, type, state FROM webhook_delivery ORDER BY id"
        while True:
            rows = [(str(i), str(j), str(t), str(s)) for i, j, t, s in books.rows(query)]
            if all(row[3] != "pending" for row in rows) or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        states = {str(job): str(state) for job, state in books.rows("SELECT id, state FROM job")}
        return [*self.breaches, *self._owed(rows, states)]

    def _owed(
        self, rows: Sequence[tuple[str, str, str, str]], states: dict[str, str]
    ) -> Iterable[str]:
        told = Counter(job for _, job, _, _ in rows)
        yield from (f"nobody was told of {job}" for job in sorted(set(states) - set(told)))
        yield from (f"{job} has {n} messages" for job, n in sorted(told.items()) if n > 1)
        for message, job, kind, state in rows:
            if state != "delivered":
                yield f"the message on {job} is {state}"
            elif not self.taken[message]:
                yield f"the message on {job} is delivered, and nobody has it"
            if kind != f"job.{states.get(job)}":
                yield f"the message on {job} says {kind}"
        known = {message for message, _, _, _ in rows}
        yield from (f"message {one} is nobody's" for one in sorted(set(self.taken) - known))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        subscriber = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                message = self.headers["webhook-id"]
                subscriber.begin(message, self.connection)
                try:
                    status = subscriber.answer(message, dict(self.headers.items()), body)
                    if status is None:
                        self.close_connection = True
                        return
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                except OSError:  # whoever sent it was killed
                    self.close_connection = True
                finally:
                    subscriber.end(message, self.connection)

            def log_message(self, *_: object) -> None:
                return

        return Handler

    def begin(self, message: str, connection: socket.socket) -> None:
        """A message comes."""
        with self._lock:
            if any(_is_open(one) for one in self._now[message]):
                self.breaches.append(f"message {message} is sent twice at once")
            self._now[message].append(connection)

    def end(self, message: str, connection: socket.socket) -> None:
        """It was answered, or not."""
        with self._lock:
            self._now[message].remove(connection)

    def answer(self, message: str, headers: dict[str, str], body: bytes) -> int | None:
        """The status of the answer; None: the connection ends without one."""
        with self._lock:
            mood = self._random.random() if self.is_rude else 1.0
        if mood < _REFUSED:
            return 503
        if mood < _REFUSED + _HUNG_UP:
            return None
        if mood < _REFUSED + _HUNG_UP + _HUNG:
            time.sleep(TIMEOUT_S + 1.0)
            return None
        try:
            Webhook(self._secret).verify(body, headers)
        except WebhookVerificationError as error:
            with self._lock:
                self.breaches.append(f"message {message}: {error}")
            return 400
        with self._lock:
            self.taken[message] += 1
        return 204


def _is_open(connection: socket.socket) -> bool:
    """Whether its other end still waits: a sender that gave up, or was killed, has closed it."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
