"""A proxy in front of an HTTP store that misbehaves as it is told.

Each connection carries one request at a time, and is read no more than that: the head, a body of
its declared length.  What the store answers is passed on as it is, unless the mood says otherwise.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from enum import StrEnum
from typing import BinaryIO

from benchmarks.faults.servers import free_port

_MOST_HEAD = 65_536
_PATIENCE_S = 60.0


class Mood(StrEnum):
    """What becomes of requests."""

    PASS = "pass"  # not a password
    HANG = "hang"
    """They are read and never answered."""
    REFUSE = "refuse"
    """Connections end at once."""
    SLOW = "slow"
    """Answers come in small pieces."""
    CUT = "cut"
    """Answers end in the middle of their body; half of the uploads do, too."""
    ERROR = "error"
    """503, or 500, in turn."""


class Proxy:
    """Listens on loopback and passes requests on to `upstream`, a port of loopback."""

    def __init__(self, upstream: int) -> None:
        self.port = free_port()
        self.mood = Mood.PASS
        self.spoilt = 0
        """Requests that met another mood than `PASS`."""
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Listen no more."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, ValueError):
            client.settimeout(_PATIENCE_S)
            stream = client.makefile("rb")
            while (head := _head(stream)) is not None:
                body = stream.read(_length(head))
                if not self._answer(client, head, body):
                    return

    def _answer(self, client: socket.socket, head: bytes, body: bytes) -> bool:
        """Answer one request; False: the connection ends."""
        mood = self.mood
        if mood is not Mood.PASS:
            self.spoilt += 1
        if mood is Mood.REFUSE:
            return False
        if mood is Mood.HANG:
            deadline = time.monotonic() + _PATIENCE_S
            while self.mood is Mood.HANG and time.monotonic() < deadline:
                time.sleep(0.05)
            return False
        if mood is Mood.ERROR:
            status = (b"503 Service Unavailable", b"500 Internal Server Error")[self.spoilt % 2]
            client.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
            return True
        if mood is Mood.CUT and body and self.spoilt % 2:
            return False  # the store never saw it
        answered, content = self._ask(head, body)
        answer = answered + content
        if mood is Mood.CUT:
            client.sendall(answered + content[: len(content) // 2] if content else answered[:-2])
            return False
        if mood is Mood.SLOW:
            step = max(1, len(answer) // 8)
            for start in range(0, len(answer), step):
                client.sendall(answer[start : start + step])
                time.sleep(0.1)
            return True
        client.sendall(answer)
        return True

    def _ask(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Head and body of the store's answer, on a connection of its own."""
        with socket.create_connection(("127.0.0.1", self._upstream), timeout=_PATIENCE_S) as store:
            store.sendall(head + body)
            stream = store.makefile("rb")
            answered = _head(stream)
            if answered is None:
                raise OSError("the store ended the connection")
            is_bare = head.startswith(b"HEAD ") or answered.split(b" ", 2)[1] in (b"204", b"304")
            return answered, b"" if is_bare else stream.read(_length(answered))


def _head(stream: BinaryIO) -> bytes | None:
    """The lines up to the empty one; None at the end of the connection."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline(_MOST_HEAD)
        if not line or len(head) > _MOST_HEAD:
            return None
        head += line
    return head


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":", 1)[1])
    return 0
