"""Two traces in one file: every process twice, on one axis of time."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Mapping
from typing import Any

from worker.compiler.errors import InputError

MOST_BYTES = 1 << 30
"""Of one trace, unpacked."""


def joined_trace(base: bytes, head: bytes, names: tuple[str, str]) -> bytes:
    """Join two Perfetto traces (gzipped JSON) into one.

    Processes of the base come first and keep their numbers; all have the side in front of their
    names.  Both begin at 0.

    Raises:
        InputError: TW-RUN-001, one is no trace.
    """
    told = [_trace(data, name) for data, name in zip((base, head), names, strict=True)]
    events: list[str] = []
    offset = 0
    for side, trace in zip(("base", "head"), told, strict=True):
        numbers = {event["pid"] for event in trace["traceEvents"]}
        for event in trace["traceEvents"]:
            moved = {**event, "pid": event["pid"] + offset}
            if event.get("name") == "process_name":
                moved["args"] = {"name": f"{side}: {event['args']['name']}"}
            events.append(_text(moved))
        events += [
            _text({"ph": "M", "pid": number + offset, "name": "process_sort_index",
                   "args": {"sort_index": number + offset}})
            for number in sorted(numbers)
        ]  # fmt: skip
        offset += max(numbers, default=-1) + 1
    other = {
        side: {"name": name, **trace.get("otherData", {})}
        for side, name, trace in zip(("base", "head"), names, told, strict=True)
    }
    body = ",\n".join(events)
    text = f'{{"displayTimeUnit":"ns","otherData":{_text(other)},"traceEvents":[\n{body}\n]}}\n'
    return gzip.compress(text.encode(), 6, mtime=0)


def _trace(data: bytes, name: str) -> Mapping[str, Any]:
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            text = stream.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        trace: dict[str, Any] = json.loads(text)
        if not isinstance(trace["traceEvents"], list):
            raise TypeError("its events are no list")
        if not isinstance(trace.get("otherData", {}), dict):
            raise TypeError("its otherData are no object")
        for event in trace["traceEvents"]:
            if not isinstance(event["pid"], int) or event["pid"] < 0:
                raise ValueError("an event has no process")
            if event.get("name") == "process_name" and not isinstance(event["args"], dict):
                raise TypeError("arguments of an event are no object")
            if event.get("name") == "process_name" and "name" not in event["args"]:
                raise ValueError("a process has no name")
    except (ValueError, TypeError, KeyError, OSError, EOFError, zlib.error, AttributeError,
            RecursionError) as error:  # fmt: skip
        why = f"is no trace: {type(error).__name__}: {error}"
        raise InputError("TW-RUN-001", f"{name} {why}", actual=why) from error
    return trace


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)
