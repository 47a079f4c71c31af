"""Frames between the worker and its sandboxed child: a JSON head and a body of plain bytes.

The child is not trusted: sizes are checked before anything is read, and nothing is unpickled.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SIZES = struct.Struct("!IQ")
MAX_HEAD_BYTES = 16 * 1024 * 1024
MAX_BODY_BYTES = 256 * 1024 * 1024


class ProtocolError(Exception):
    """The other side does not speak this protocol."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    head: Mapping[str, Any]
    body: bytes

    @property
    def op(self) -> str:
        return str(self.head.get("op", ""))

    def text(self, name: str, limit: int = 4096) -> str:
        """Give a text field.

        Raises:
            ProtocolError: it is missing, not text, or too long.
        """
        value = self.head.get(name)
        if not isinstance(value, str) or len(value) > limit:
            raise ProtocolError(f"{self.op}: {name} must be text of at most {limit} characters")
        return value

    def count(self, name: str) -> int:
        """Give a field that counts something.

        Raises:
            ProtocolError: it is missing or not an integer from 0 to 2^53.
        """
        value = self.head.get(name)
        if type(value) is not int or not 0 <= value <= 2**53:
            raise ProtocolError(f"{self.op}: {name} must be an integer from 0 to 2^53")
        return value


def send(sock: socket.socket, head: Mapping[str, Any], body: bytes = b"") -> None:
    """Send one frame.

    Raises:
        ProtocolError: it is over the size limits.
        OSError: the other side is gone.
    """
    encoded = json.dumps(head, separators=(",", ":")).encode()
    if len(encoded) > MAX_HEAD_BYTES or len(body) > MAX_BODY_BYTES:
        raise ProtocolError(f"frame of {len(encoded)}+{len(body)} bytes is over the limits")
    sock.sendall(_SIZES.pack(len(encoded), len(body)) + encoded)
    if body:
        sock.sendall(body)


def receive(sock: socket.socket) -> Message | None:
    """Wait for one frame; None when the other side has closed.

    Raises:
        ProtocolError: what arrives is not a frame.
    """
    sizes = _exactly(sock, _SIZES.size)
    if sizes is None:
        return None
    head_bytes, body_bytes = _SIZES.unpack(sizes)
    if head_bytes > MAX_HEAD_BYTES or body_bytes > MAX_BODY_BYTES:
        raise ProtocolError(f"frame of {head_bytes}+{body_bytes} bytes is over the limits")
    encoded = _exactly(sock, head_bytes)
    body = _exactly(sock, body_bytes)
    if encoded is None or body is None:
        return None
    try:
        head = json.loads(encoded)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the head of a frame is not JSON") from error
    if not isinstance(head, dict):
        raise ProtocolError("the head of a frame is not an object")
    return Message(head, body)


def is_waiting(sock: socket.socket, timeout_s: float | None) -> bool:
    """Whether something arrives, be it that the other side closes, within the time."""
    watched = select.poll()
    watched.register(sock, select.POLLIN)
    return bool(watched.poll(None if timeout_s is None else timeout_s * 1000))


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    buffer = bytearray()
    while len(buffer) < size:
        try:
            chunk = sock.recv(min(size - len(buffer), 1024 * 1024))
        except ConnectionError:
            return None
        if not chunk:
            return None
        buffer += chunk
    return bytes(buffer)
