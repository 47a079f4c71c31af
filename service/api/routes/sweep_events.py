"""What happens to a sweep as server-sent events, resumable by Last-Event-ID."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

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
from service.api.schemas.sweep import SweepItemAnswer, is_open
from service.api.sweep_looks import PACE_S
from service.jobs import sweeps

router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"])
GLANCE_S = 2.0
"""So often it looks whether workers took jobs, which changes no row of the sweep."""


@router.get(
    "/{sweep_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "`item`: one that changed, as it is now. `progress`: the state, counts,"
            " time left and numbers of the front. `end` follows the last of both.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "The sweep has ended and all of it is known: ask no more."},
    },
)
async def get_events(
    sweep_id: Name, state: State, project: Project, seen: Annotated[int, Depends(last_seen)]
) -> Response:
    """Follow a sweep: every item that changed after Last-Event-ID (or all), then what changes.

    Of an item that changed several times the last state is told.  Numbers are those of the
    database, in the order of commits: any server goes on behind the last one that was seen.
    """
    sweep = await to_thread.run_sync(sweeps.get_sweep, state.database, sweep_id, project)
    if seen and seen >= sweep.record.event_seq and not is_open(sweep.record.state):
        return Response(status_code=204)
    return answer(_stream(state, sweep_id, seen))


async def _stream(state: ApiState, sweep_id: str, seen: int) -> AsyncIterator[bytes]:
    yield START
    told: dict[str, Any] = {}
    silent_s = 0.0
    while True:
        look = await state.sweep_looks.look(sweep_id)
        if look is None:
            yield encode_end(None)
            return
        record = look.sweep.record
        for item in look.items:
            if item.seq > seen:
                seen = item.seq
                body = SweepItemAnswer.from_record(item, look.fronts).model_dump(mode="json")
                yield encode("item", body, seen)
        # Items are read after the sweep: one of them may have changed since.
        seen = max(seen, record.event_seq)
        if look.progress != told:
            told, silent_s = look.progress, 0.0
            yield encode("progress", told, seen)
        if not is_open(record.state):
            yield encode_end(record.state)
            return
        if silent_s >= KEEP_ALIVE_S:
            silent_s = 0.0
            yield KEEP_ALIVE
        await asyncio.sleep(PACE_S)
        changed = await state.sweep_watch.changed(sweep_id, seen, GLANCE_S)
        silent_s += PACE_S + (0.0 if changed else GLANCE_S)
