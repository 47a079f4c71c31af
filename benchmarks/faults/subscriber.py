"""Somebody who is told when jobs end, and is rude to who tells: refuses, hangs, hangs up.

What a campaign owes its subscriber: of every end of a job or a sweep one message that was
delivered, however often it had to be sent, and never two of a message at once.
"""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from benchmarks.faults.books import Books
from service.client import Client

TIMEOUT_S = 3.0
"""Of an attempt, for settings."""
SETTLE_S = 300.0
"""A message whose sender was killed waits for its lease, which outlasts an attempt by 20 s; and
pauses grow fourfold."""
_REFUSED, _HUNG_UP, _HUNG = 0.2, 0.1, 0.03
_MOST_RUDE = 3
"""It is rude to the same message so often at most: the pauses would outlast the campaign."""


@dataclass(frozen=True, slots=True)
class Message:
    """A row of the outbox."""

    id: str
    kind: str
    state: str
    data: Mapping[str, Any]

    @property
    def about(self) -> str:
        """A job or a sweep."""
        return str(self.data.get("id"))


class Subscriber:
    """Listens on loopback from `start` to `close`."""

    def __init__(self, seed: int) -> None:
        self.taken: Counter[str] = Counter()
        """By the id of a message, how often it was answered with 204."""
        self.breaches: list[str] = []
        self.is_rude = True
        self._come: Counter[str] = Counter()
        self._random = Random(f"{seed}.subscriber")
        self._secret = ""
        self._now: defaultdict[str, list[socket.socket]] = defaultdict(list)
        """By the id of a message, connections on which it is being answered."""
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def subscribe(self, url: str) -> None:
        """Ask the service at `url` to be told."""
        with Client(url) as client:
            made = client.create_webhook(f"http://127.0.0.1:{self.port}/")
        self._secret = str(made["secret"])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def audit(self, books: Books, resumed: Collection[str] = ()) -> list[str]:
        """What is owed, once all has ended: waits until nothing is on its way.

        `resumed` are sweeps that have ended more than once.
        """
        deadline = time.monotonic() + SETTLE_S
        query = "SELECT id, type, state, body FROM webhook_delivery ORDER BY created, id"
        while True:
            rows = [Message(i, t, s, json.loads(body)["data"]) for i, t, s, body in
                    books.rows(query)]  # fmt: skip
            if all(row.state != "pending" for row in rows) or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        jobs = {str(one): f"job.{state}" for one, state in books.rows("SELECT id, state FROM job")}
        sweeps = dict(books.rows("SELECT id, state FROM sweep"))
        return [
            *self.breaches,
            *self._delivered(rows),
            *_owed(rows, jobs, {}),
            *_owed(rows, dict.fromkeys(sweeps, "sweep.ended"), dict.fromkeys(resumed, math.inf)),
            *_last_words(rows, sweeps),
        ]

    def _delivered(self, rows: Sequence[Message]) -> Iterable[str]:
        for row in rows:
            if row.state != "delivered":
                yield f"the message on {row.about} is {row.state}"
            elif not self.taken[row.id]:
                yield f"the message on {row.about} is delivered, and nobody has it"
        known = {row.id for row in rows}
        yield from (f"message {one} is nobody's" for one in sorted(set(self.taken) - known))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        subscriber = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                body = self.rfile.read(size)
                if len(body) < size:  # whoever sent it was killed at it: it is no message yet
                    self.close_connection = True
                    return
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
            self._come[message] += 1
            is_rude = self.is_rude and self._come[message] <= _MOST_RUDE
            mood = self._random.random() if is_rude else 1.0
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


def _owed(
    rows: Sequence[Message], ends: Mapping[str, str], most: Mapping[str, float]
) -> Iterable[str]:
    """Each end has its message, and what ended once has no other."""
    told = Counter(row.about for row in rows)
    for one, kind in sorted(ends.items()):
        least = 2 if one in most else 1
        if told[one] < least:
            yield f"nobody was told of {one}" if not told[one] else f"{one} has one message"
        elif told[one] > most.get(one, 1):
            yield f"{one} has {told[one]} messages"
        others = {row.kind for row in rows if row.about == one} - {kind}
        yield from (f"the message on {one} says {other}" for other in sorted(others))


def _last_words(rows: Sequence[Message], states: Mapping[str, str]) -> Iterable[str]:
    """The last message on a sweep says how it ended."""
    last = {row.about: row.data.get("state") for row in rows}
    for one, state in sorted(states.items()):
        if last.get(one, state) != state:
            yield f"the last message on {one} says {last[one]}"


def _is_open(connection: socket.socket) -> bool:
    """Whether its other end still waits: a sender that gave up, or was killed, has closed it."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
