"""The pages under /ui/: jobs, uploads, machines, comparisons, and who looks at them.

Pages are for people: they are not in the API's description, and scripts of theirs use the API.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from service.api.callers import Project, address_of
from service.api.deps import ApiState, State
from service.api.page_answers import PageRoute, option_values, page
from service.api.routes.compare import comparison, stored_side
from service.api.sessions import COOKIE, SESSION_S
from service.compare.page import parts_of
from service.errors import KeyNeeded, NotFound, ScopeMissing, ServiceError
from service.jobs import query
from service.keys import Scope, prefix_of
from service.pages.jobs import rows_of
from service.states import JobState
from service.store.records import JobFilter
from worker.compiler.descriptors import AUTO, strategies
from worker.compiler.machine import preset_names

router = APIRouter(include_in_schema=False, route_class=PageRoute)
PAGE = 50
_MOST_FORM_BYTES = 4096

Text = Annotated[str | None, Query(max_length=200)]


@router.get("/")
async def root(request: Request) -> Response:
    """Bring browsers to the pages; there is nothing here for programs."""
    if "text/html" not in request.headers.get("accept", ""):
        raise NotFound("there is no resource /", remedy="/docs lists what there is.")
    return RedirectResponse("/ui/", 303)


@router.get("/ui")
async def without_slash() -> Response:
    """Bring whoever types the address to the jobs."""
    return RedirectResponse("/ui/", 303)


@router.get("/ui/")
def show_jobs(
    request: Request,
    state: State,
    project: Project,
    show: Annotated[JobState | None, Query(alias="state")] = None,
    label: Text = None,
    model: Text = None,
    hardware: Text = None,
    strategy: Text = None,
    sweep: Text = None,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
) -> HTMLResponse:
    """Jobs, newest first; the table alone where a script asks."""
    wanted = JobFilter(
        (show,) if show else (), label or None, model or None, hardware or None, strategy or None,
        sweep=sweep or None,
    )  # fmt: skip
    found = query.list_jobs(state.database, owner=project, wanted=wanted, cursor=cursor, limit=PAGE)
    rows = rows_of(found.rows, *_names(state, project), time.time())
    filters = {"state": show, "label": label, "model": model, "hardware": hardware,
               "strategy": strategy, "sweep": sweep}  # fmt: skip
    is_piece = request.headers.get("tilewright-piece") == "jobs"
    return page(
        request, "job_rows.html" if is_piece else "jobs.html", rows=rows, filters=filters,
        is_filtered=any(filters.values()), next_cursor=found.next_cursor,
        states=[*JobState], strategies=[AUTO, *strategies()], cursor=cursor,
        is_moving=any(row.is_moving for row in rows),
    )  # fmt: skip


def _names(state: ApiState, project: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """How models and machines are called, each asked for once."""
    known: dict[str, str] = {}

    def model(model_id: str) -> str:
        if model_id not in known:
            known[model_id] = query.get_model(state.database, model_id, project).name
        return known[model_id]

    def machine(hardware_id: str) -> str:
        if hardware_id not in known:
            known[hardware_id] = query.get_hardware(state.database, hardware_id, project).name
        return known[hardware_id]

    return model, machine


@router.get("/ui/new")
def show_upload(
    request: Request,
    state: State,
    project: Project,
    model: Text = None,
    hardware: Text = None,
) -> HTMLResponse:
    """A form: a model and a machine become a job."""
    models = query.list_models(state.database, owner=project, limit=PAGE).rows
    specs = query.list_hardware(state.database, owner=project, limit=PAGE).rows
    return page(
        request, "new.html", models=models, specs=specs, presets=preset_names(),
        model=model, hardware=hardware, **option_values(),
    )  # fmt: skip


@router.get("/ui/login")
async def show_login(
    request: Request,
    state: State,
    target: Annotated[str, Query(alias="next", max_length=2000)] = "",
) -> HTMLResponse:
    """Ask for a key."""
    return page(
        request, "login.html", target=_own(target), refusal=None,
        needs_key=state.settings.needs_key,
    )  # fmt: skip


@router.post("/ui/login")
async def log_in(request: Request, state: State) -> Response:
    """Take a key once, and give a session that lasts a working day."""
    form = await _form(request)
    target, text = _own(form.get("next", "")), form.get("key", "").strip()
    prefix = prefix_of(text)
    refusal: ServiceError | None = None
    try:
        if prefix is None:
            raise KeyNeeded("this is no key")
        caller = await state.ring.caller(text, address_of(request))
        if Scope.READ not in caller.scopes:
            raise ScopeMissing("pages need a key with the scope read")
    except ServiceError as error:
        refusal = error
    if refusal is not None or prefix is None:
        return page(
            request, "login.html", 401 if refusal is None else refusal.status, target=target,
            refusal=refusal, needs_key=True,
        )  # fmt: skip
    response = RedirectResponse(target, 303)
    response.set_cookie(
        COOKIE, state.signer.sign("session", prefix, SESSION_S), max_age=SESSION_S,
        httponly=True, samesite="strict", secure=request.url.scheme == "https",
    )  # fmt: skip
    return response


@router.post("/ui/logout")
async def log_out() -> Response:
    """Forget the session of this browser."""
    response = RedirectResponse("/ui/login", 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


@router.get("/ui/session")
async def show_session() -> Response:
    """Answer to whoever may read: a login page that another site linked to asks, since browsers
    send it no session at first."""
    return Response(status_code=204, headers={"Cache-Control": "no-store"})


async def _form(request: Request) -> Mapping[str, str]:
    body = (await request.body())[:_MOST_FORM_BYTES]
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    return {name: values[-1] for name, values in fields.items()}


def _own(target: str) -> str:
    """A place of these pages, whatever a link asks for."""
    is_ours = target.startswith("/ui/") and not any(c in target for c in "\\\r\n")
    return target if is_ours else "/ui/"


@router.get("/ui/compare")
def show_comparison(
    request: Request, state: State, project: Project, base: Text = None, head: Text = None
) -> HTMLResponse:
    """Two jobs set against each other; without them, jobs to choose from."""
    wanted = JobFilter((JobState.SUCCEEDED,))
    found = query.list_jobs(state.database, owner=project, wanted=wanted, limit=PAGE)
    parts = []
    if base and head:
        sides = [stored_side(state, project, name) for name in (base, head)]
        parts = parts_of(comparison(state, sides))
    return page(
        request, "compare.html", base=base, head=head, parts=parts,
        rows=rows_of(found.rows, *_names(state, project), time.time()),
    )  # fmt: skip
