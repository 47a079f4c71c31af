"""Sweeps: submit, list, look at, results, cancel, resume, delete."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Annotated, NamedTuple

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request, Response
from sqlalchemy.exc import DBAPIError

from service.api.answers import Prepared, encoded
from service.api.callers import Project
from service.api.deps import APPLIED, ApiState, Key, Name, State, Wait
from service.api.downloads import etag_matches
from service.api.idempotency import request_key
from service.api.schemas.sweep import (
    SweepAnswer,
    SweepItemAnswer,
    SweepPage,
    SweepRequest,
    SweepResults,
    SweepSummary,
    is_open,
)
from service.api.sweep_points import sweep_points, sweep_range
from service.api.trace_requests import traceparent_of
from service.jobs import query, sweeps
from service.jobs.feed import feed
from service.jobs.submit import IdempotencyKey
from service.jobs.sweeps import NewPoint, NewSweep, Sweep
from service.log import get_logger
from service.states import SweepState
from service.store.records import SweepRecord
from worker.compiler.options import CompileOptions

router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"])
RETRY_AFTER_S = 2
_BEFORE = ("number", "state", "model", "model_name", "hardware", "hardware_name")
_AFTER = (
    "latency_s", "energy_pj", "on_chip_bytes", "seconds", "is_on_front", "job", "why",
)  # fmt: skip


def _headers(record: SweepRecord) -> dict[str, str]:
    headers = {"Cache-Control": "no-cache"}
    if is_open(record.state):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return headers


def _go_on(state: ApiState, sweep: Sweep) -> None:
    """Let the sweep take its next step now; where that fails the reconciler does it."""
    try:
        feed(state.database, state.outbox, state.settings, sweep.record.id)
    except DBAPIError as error:
        get_logger().warning("sweep left to the reconciler", error=str(error.orig))


@router.post("", status_code=202, response_model=SweepAnswer)
async def create_sweep(
    body: SweepRequest, request: Request, state: State, project: Project, key: Key
) -> Response:
    """Accept a sweep: every model on every machine.

    Machines are `hardware` as they are, and every combination of the values that `vary` gives to
    fields of `base`; with `explore` these are estimated, and the best compiled.  With
    `Idempotency-Key` a repeated request gives the first sweep.
    """
    answer = Prepared(SweepAnswer.from_sweep)
    idempotency = request_key(
        key, owner=project, route="POST /v1/sweeps", body=await request.body()
    )
    if idempotency is not None:
        known = await to_thread.run_sync(sweeps.replayed, state.database, idempotency)
        if known is not None:
            answer(known)
            return answer.response(202, _accepted(known.record, is_new=False))
    points: tuple[NewPoint, ...] = ()
    explore = None
    if body.explore is None:
        points, fields = await sweep_points(state, project, body)
    else:
        explore, fields = await sweep_range(state, project, body, body.explore)
    new = NewSweep(
        models=tuple(body.models),
        points=points,
        fields=fields,
        explore=explore,
        options=CompileOptions.from_json(body.options),
        label=body.label,
        priority=body.priority,
        owner=project,
        wall_limit_s=body.wall_limit_s,
        traceparent=traceparent_of(request),
    )
    sweep, is_new = await to_thread.run_sync(_stored, state, new, idempotency, answer)
    return answer.response(202, _accepted(sweep.record, is_new=is_new))


def _accepted(record: SweepRecord, *, is_new: bool) -> dict[str, str]:
    headers = {**_headers(record), "Location": f"/v1/sweeps/{record.id}"}
    return headers if is_new else {**headers, "Idempotency-Replayed": "true"}


def _stored(
    state: ApiState, new: NewSweep, idempotency: IdempotencyKey | None, answer: Prepared[Sweep]
) -> tuple[Sweep, bool]:
    made = sweeps.submit_sweep(state.database, state.settings, new, idempotency, answer)
    _go_on(state, made[0])
    return made


@router.get("", response_model=SweepPage)
def list_sweeps(
    state: State,
    project: Project,
    states: Annotated[
        list[SweepState] | None, Query(alias="state", max_length=len(SweepState))
    ] = None,
    label: Annotated[str | None, Query(max_length=100)] = None,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    limit: Annotated[int, Query(ge=1, le=query.MAX_PAGE)] = 50,
) -> SweepPage:
    """List sweeps, newest first; all filters must hold."""
    page = sweeps.list_sweeps(
        state.database, owner=project, states=tuple(states or ()), label=label, cursor=cursor,
        limit=limit,
    )  # fmt: skip
    return SweepPage(
        items=[SweepSummary.from_counts(row) for row in page.rows], next_cursor=page.next_cursor
    )


@router.get(
    "/{sweep_id}", response_model=SweepAnswer, responses={304: {"description": "Unchanged."}}
)
async def get_sweep(
    sweep_id: Name,
    state: State,
    project: Project,
    wait: Wait,
    if_none_match: Annotated[str | None, Header(max_length=1000)] = None,
) -> Response:
    """Get one sweep: progress, the best items so far, what failed; conditional by ETag.

    `Prefer: wait=N` holds the answer: with If-None-Match until an item of the sweep changes,
    without it until the sweep ends.
    """
    found = await to_thread.run_sync(_look, state, sweep_id, project)
    is_same = etag_matches(if_none_match, found.etag)
    if wait and is_open(found.record.state) and (if_none_match is None or is_same):
        if is_same:
            await state.sweep_watch.changed(sweep_id, found.record.event_seq, wait)
        else:
            await state.sweep_watch.ended(sweep_id, wait)
        found = await to_thread.run_sync(_look, state, sweep_id, project)
    headers = {**_headers(found.record), "ETag": found.etag}
    if wait:
        headers[APPLIED] = f"wait={int(wait)}"
    if etag_matches(if_none_match, found.etag):
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers, media_type="application/json")


class _Look(NamedTuple):
    record: SweepRecord
    body: bytes
    etag: str


def _look(state: ApiState, sweep_id: str, project: str | None) -> _Look:
    sweep = sweeps.get_sweep(state.database, sweep_id, project)
    body = encoded(SweepAnswer.from_sweep(sweep))
    return _Look(sweep.record, body, f'"{sha256(body).hexdigest()[:32]}"')


@router.delete("/{sweep_id}", status_code=204)
def delete_sweep(sweep_id: Name, state: State, project: Project) -> None:
    """Delete a sweep that has ended, with its jobs and their artifacts."""
    sweeps.delete_sweep(state.database, sweep_id, project)


@router.post("/{sweep_id}/cancel", status_code=202, response_model=SweepAnswer)
def cancel(sweep_id: Name, state: State, project: Project) -> Response:
    """Cancel a sweep; doing it twice is fine, a sweep that ended otherwise is a 409.

    Results that are there stay, and the sweep may be resumed.
    """
    answer = Prepared(SweepAnswer.from_sweep)
    sweep = sweeps.cancel_sweep(state.database, sweep_id, project, answer)
    _go_on(state, sweep)
    return answer.response(202, _headers(sweep.record))


@router.post("/{sweep_id}/resume", status_code=202, response_model=SweepAnswer)
def resume(sweep_id: Name, state: State, project: Project) -> Response:
    """Let a sweep that was canceled, or failed in part, go on with the items without a result.

    A sweep that runs or has succeeded is given as it is.
    """
    answer = Prepared(SweepAnswer.from_sweep)
    sweep = sweeps.resume_sweep(state.database, sweep_id, project, answer)
    _go_on(state, sweep)
    return answer.response(202, _headers(sweep.record))


@router.get("/{sweep_id}/results", response_model=SweepResults)
def get_results(sweep_id: Name, state: State, project: Project) -> Response:
    """Get all items, with figures of those that have succeeded so far."""
    sweep = sweeps.get_sweep(state.database, sweep_id, project)
    body = encoded(SweepResults.from_sweep(sweep))
    return Response(body, headers=_headers(sweep.record), media_type="application/json")


@router.get(
    "/{sweep_id}/results.csv",
    response_class=Response,
    responses={200: {"description": "A row for every item.", "content": {"text/csv": {}}}},
)
def get_results_csv(sweep_id: Name, state: State, project: Project) -> Response:
    """Get all items as a table: what they are, their fields' values, figures, why they failed."""
    sweep = sweeps.get_sweep(state.database, sweep_id, project)
    results = SweepResults.from_sweep(sweep)
    headers = {**_headers(sweep.record), "X-Content-Type-Options": "nosniff"}
    return Response(_csv(results), headers=headers, media_type="text/csv")


def _csv(results: SweepResults) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_BEFORE, *results.fields, *_AFTER])
    for item in results.items:
        values = item.values or [None] * len(results.fields)
        for estimate in item.estimates:  # a row for every machine of a part, not for the part
            about = {**dict(item), **dict(estimate), "state": "estimated"}
            writer.writerow([*_cells(about, _BEFORE), *estimate.values, *_cells(about, _AFTER)])
        if not item.estimates:
            about = {**dict(item), "why": _why(item)}
            writer.writerow([*_cells(about, _BEFORE), *values, *_cells(about, _AFTER)])
    return text.getvalue()


def _why(item: SweepItemAnswer) -> str | None:
    error = item.error or {}
    return f"{error.get('code')}: {error.get('detail')}" if error else None


def _cells(row: Mapping[str, object], names: Iterable[str]) -> Iterable[object]:
    for name in names:
        value = row[name]
        yield int(value) if isinstance(value, bool) else value
