"""Reading a job's server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from service.client.errors import Json


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a job."""

    id: str
    """Send it back as Last-Event-ID to go on after this event."""
    type: str
    body: dict[str, Json]


def parse_events(lines: Iterable[str]) -> Iterator[Event]:
    """Turn the lines of an event stream into events; comments and keep-alives are skipped."""
    event_id, event_type, pieces = "", "message", list[str]()
    for line in lines:
        if not line:
            if pieces:
                body = json.loads("\n".join(pieces))
                yield Event(event_id, event_type, body if isinstance(body, dict) else {})
            event_type, pieces = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "id":
                event_id = value
            case "event":
                event_type = value
            case "data":
                pieces.append(value)
            case _:
                pass
