"""A job's history as server-sent events, resumable by Last-Event-ID."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse

from service.api.callers import Project
from service.api.deps import ApiState, Name, State
from service.errors import Malformed, NotFound
from service.jobs import query
from service.states import TERMINAL_JOB_STATES, JobState
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
            "description": "The events; `end` follows the job's last one and ends the stream.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "The job has ended and Last-Event-ID is its last: ask no more."},
    },
)
async def get_events(
    job_id: Name,
    state: State,
    project: Project,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", max_length=20)] = None,
) -> Response:
    """Follow a job: all events after Last-Event-ID (or all), then new ones until it ends.

    Numbers are those of the database, dense and in the order of commits: whichever server is asked
    next, it goes on exactly behind the last one that was seen.
    """
    if last_event_id and not _NUMBER.fullmatch(last_event_id):
        raise Malformed(
            "Last-Event-ID is a number of this stream",
            pointer="header:Last-Event-ID",
            actual=last_event_id[:20],
        )
    job = await to_thread.run_sync(query.get_job, state.database, job_id, project)
    seen = int(last_event_id or 0)
    if last_event_id and seen >= job.event_seq and job.state in TERMINAL_JOB_STATES:
        # A browser asks again whenever a stream ends, unless it is answered so.
        return Response(status_code=204)
    return StreamingResponse(
        _stream(state, job_id, seen),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def render(event: EventRecord) -> bytes:
    """Render one event; JSON has no raw newlines, so one data line is enough."""
    body = json.dumps({"seq": event.seq, "ts": event.ts, **event.payload})
    return f"id: {event.seq}\nevent: {event.type}\ndata: {body}\n\n".encode()


def render_end(state: JobState | None) -> bytes:
    """Render what follows the last event; it has no number, since it is no event of the job."""
    body = json.dumps({"state": None if state is None else str(state)})
    return f"event: end\ndata: {body}\n\n".encode()


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
        if events and job is not None:
            continue
        if job is None or job in TERMINAL_JOB_STATES:
            yield render_end(job)
            return
        if not await state.watch.changed(job_id, seen, KEEP_ALIVE_S):
            yield b": keep-alive\n\n"


def _find(state: ApiState, job_id: str) -> JobState | None:
    """The job's state; None when it was deleted."""
    try:
        return query.get_job(state.database, job_id).state
    except NotFound:
        return None
