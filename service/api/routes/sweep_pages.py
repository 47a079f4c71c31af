"""Pages of sweeps: the list, one of them, and a form that makes one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse

from service.api.callers import Project
from service.api.deps import Name, State
from service.api.page_answers import PageRoute, option_values, page
from service.api.routes.hardware_pages import document_of
from service.api.schemas.sweep import is_open
from service.jobs import query, sweeps
from service.jobs.exploring import MOST_WINNERS, Cost, Explore
from service.pages.machine import fields_of
from service.pages.render import HEADERS
from service.pages.sweeps import COST_NAMES, rows_of
from service.states import SweepState
from worker.compiler.machine import preset_names

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 50

Text = Annotated[str | None, Query(max_length=200)]


@router.get("/ui/sweeps")
def show_sweeps(
    request: Request,
    state: State,
    project: Project,
    show: Annotated[SweepState | None, Query(alias="state")] = None,
    label: Text = None,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
) -> HTMLResponse:
    """Sweeps, newest first; the table alone where a script asks."""
    found = sweeps.list_sweeps(
        state.database, owner=project, states=(show,) if show else (), label=label or None,
        cursor=cursor, limit=PAGE,
    )  # fmt: skip
    rows = rows_of(found.rows)
    is_piece = request.headers.get("tilewright-piece") == "sweeps"
    return page(
        request, "sweep_rows.html" if is_piece else "sweeps.html", rows=rows, states=[*SweepState],
        filters={"state": show, "label": label}, is_filtered=bool(show or label),
        next_cursor=found.next_cursor, is_moving=any(is_open(row.sweep.state) for row in rows),
    )  # fmt: skip


@router.get("/ui/sweeps/new")
def show_form(request: Request, state: State, project: Project, base: Text = None) -> HTMLResponse:
    """A form: models on machines, or on those of a range, become a sweep."""
    models = query.list_models(state.database, owner=project, limit=PAGE).rows
    specs = query.list_hardware(state.database, owner=project, limit=PAGE).rows
    return page(
        request, "sweep_new.html", models=models, specs=specs, presets=preset_names(), base=base,
        most=state.settings.max_sweep_items, costs=[*Cost], cost_names=COST_NAMES,
        most_winners=MOST_WINNERS, **option_values(),
    )  # fmt: skip


@router.get("/ui/sweeps/new/fields")
def get_fields(
    state: State, project: Project, hardware: Annotated[str, Query(max_length=200)]
) -> JSONResponse:
    """The numbers of a machine that may be varied, by JSON pointer, for the form's suggestions."""
    found = fields_of(document_of(state, project, hardware))
    rows = [{"pointer": pointer, "value": value} for pointer, value in found]
    return JSONResponse(rows, headers=dict(HEADERS))


@router.get("/ui/sweeps/{sweep_id}")
def show_sweep(request: Request, sweep_id: Name, state: State, project: Project) -> HTMLResponse:
    """One sweep; its script fills it from the event stream."""
    found = sweeps.get_sweep(state.database, sweep_id, project)
    return page(
        request, "sweep.html", sweep=found.record, total=len(found.items),
        is_open=is_open(found.record.state),
        can_resume=found.record.state in (SweepState.FAILED, SweepState.CANCELED),
        explore=Explore.of(found.record), cost_names=COST_NAMES,
        options={k: v for k, v in found.record.options.items() if isinstance(v, str) and v},
    )  # fmt: skip
