"""Server-sent events: the number a client goes on behind, one event as text, the answer."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from fastapi import Header
from fastapi.responses import StreamingResponse

from service.errors import Malformed

_NUMBER = re.compile(r"[0-9]{1,18}")
KEEP_ALIVE_S = 15.0
"""A comment line is sent this often, so that proxies do not close a silent stream."""
KEEP_ALIVE = b": keep-alive\n\n"
START = b"retry: 1000\n\n"
"""How many milliseconds later a browser asks again."""


async def last_seen(
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", max_length=20)] = None,
) -> int:
    """The number that a client has seen last, 0 without one.

    Raises:
        Malformed: it is none.
    """
    if last_event_id and not _NUMBER.fullmatch(last_event_id):
        raise Malformed(
            "Last-Event-ID is a number of this stream",
            pointer="header:Last-Event-ID",
            actual=last_event_id[:20],
        )
    return int(last_event_id or 0)


def encode(kind: str, body: Mapping[str, Any], number: int | None = None) -> bytes:
    """One event; JSON has no raw newlines, so one data line is enough."""
    place = "" if number is None else f"id: {number}\n"
    return f"{place}event: {kind}\ndata: {json.dumps(body)}\n\n".encode()


def encode_end(state: str | None) -> bytes:
    """What follows the last event; it has no number, since nothing has changed."""
    return encode("end", {"state": state})


def answer(events: AsyncIterator[bytes]) -> StreamingResponse:
    """The answer that is a stream."""
    return StreamingResponse(
        events,
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )
