"""A job's history as server-sent events, resumable by Last-Event-ID."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse

from service.api.callers import Project
from service.api.deps import ApiState, Name, State
from service.errors import Malformed
from service.jobs import query
from service.states import TERMINAL_JOB_STATES
from service.store.records import EventRecord

_NUMBER = re.compile(r"[0-9]{1,18}")
router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
KEEP_ALIVE_S = 15.0
"""A comment line is sent this often, so that proxies do not close a silent stream."""
RECONNECT_MS = 1000


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The events; the stream ends after the job's last one.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)
async def get_events(
    job_id: Name,
    state: State,
    project: Project,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", max_length=20)] = None,
) -> StreamingResponse:
    """Follow a job: all events after Last-Event-ID (or all), then new ones until it ends."""
    if last_event_id and not _NUMBER.fullmatch(last_event_id):
        raise Malformed(
            "Last-Event-ID is a number of this stream",
            pointer="header:Last-Event-ID",
            actual=last_event_id[:20],
        )
    await to_thread.run_sync(query.get_job, state.database, job_id, project)
    return StreamingResponse(
        _stream(state, job_id, int(last_event_id or 0)),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def render(event: EventRecord) -> bytes:
    """Render one event; JSON has no raw newlines, so one data line is enough."""
    body = json.dumps({"seq": event.seq, "ts": event.ts, **event.payload})
    return f"id: {event.seq}\nevent: {event.type}\ndata: {body}\n\n".encode()


async def _stream(state: ApiState, job_id: str, seen: int) -> AsyncIterator[bytes]:
    yield f"retry: {RECONNECT_MS}\n\n".encode()
    while True:
        # The job first: events that precede its last state are then all in the list.
        job = await to_thread.run_sync(_find, state, job_id)
        events = await to_thread.run_sync(
            lambda: query.list_events(state.database, job_id, after_seq=seen)  # noqa: B023  # awaited here
        )
        for event in events:
            seen = event.seq
            yield render(event)
        if job is None:
            return
        if events:
            continue
        if job:
            return
        if not await state.watch.changed(job_id, seen, KEEP_ALIVE_S):
            yield b": keep-alive\n\n"


def _find(state: ApiState, job_id: str) -> bool | None:
    """Say whether the job has ended; None when it was deleted."""
    from service.errors import NotFound

    try:
        return query.get_job(state.database, job_id).state in TERMINAL_JOB_STATES
    except NotFound:
        return None
