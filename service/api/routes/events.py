"""A job's history as server-sent events, resumable by Last-Event-ID."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Response
from fastapi.responses import StreamingResponse

from service.api.callers import Project
from service.api.deps import ApiState, Name, State
from service.api.event_stream import (
    KEEP_ALIVE,
    KEEP_ALIVE_S,
    START,
    answer,
    encode,
    encode_end,
    last_seen,
)
from service.errors import NotFound
from service.jobs import query
from service.states import TERMINAL_JOB_STATES, JobState

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


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
    job_id: Name, state: State, project: Project, seen: Annotated[int, Depends(last_seen)]
) -> Response:
    """Follow a job: all events after Last-Event-ID (or all), then new ones until it ends.

    Numbers are those of the database, dense and in the order of commits: whichever server is asked
    next, it goes on exactly behind the last one that was seen.
    """
    job = await to_thread.run_sync(query.get_job, state.database, job_id, project)
    if seen and seen >= job.event_seq and job.state in TERMINAL_JOB_STATES:
        # A browser asks again whenever a stream ends, unless it is answered so.
        return Response(status_code=204)
    return answer(_stream(state, job_id, seen))


async def _stream(state: ApiState, job_id: str, seen: int) -> AsyncIterator[bytes]:
    yield START
    while True:
        # The job first: events that precede its last state are then all in the list.
        job = await to_thread.run_sync(_find, state, job_id)
        events = await to_thread.run_sync(
            lambda: query.list_events(state.database, job_id, after_seq=seen)  # noqa: B023  # awaited here
        )
        for event in events:
            seen = event.seq
            yield encode(event.type, {"seq": seen, "ts": event.ts, **event.payload}, seen)
        if events and job is not None:
            continue
        if job is None or job in TERMINAL_JOB_STATES:
            yield encode_end(job)
            return
        if not await state.watch.changed(job_id, seen, KEEP_ALIVE_S):
            yield KEEP_ALIVE


def _find(state: ApiState, job_id: str) -> JobState | None:
    """The job's state; None when it was deleted."""
    try:
        return query.get_job(state.database, job_id).state
    except NotFound:
        return None
