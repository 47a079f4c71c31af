"""Pages of machines: presets and specs of a project, each drawn, and an editor that lints."""

from __future__ import annotations

from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from service.api.callers import Project
from service.api.deps import ApiState, Name, State
from service.api.page_answers import PageRoute, page
from service.api.routes.hardware import spec_body
from service.api.specs import preset_spec
from service.jobs import query
from service.pages import machine
from service.pages.blocks import blocks
from worker.compiler.machine import preset_names, preset_rows

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/ui/hardware")
def show_machines(request: Request, state: State, project: Project) -> HTMLResponse:
    """Presets, and the project's own specs."""
    found = query.list_hardware(state.database, owner=project, limit=query.MAX_PAGE)
    presets = [
        {"name": row["name"], "description": row["description"],
         "facts": _facts(dict(preset_spec(row["name"]).document))}
        for row in preset_rows()
    ]  # fmt: skip
    own = [row for row in found.rows if row.name not in preset_names()]
    return page(request, "hardware.html", presets=presets, specs=own)


def _facts(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {name: (value, note) for name, value, note in machine.facts(document)}


@router.get("/ui/hardware/edit")
def edit_machine(
    request: Request,
    state: State,
    project: Project,
    source: Annotated[str, Query(alias="from", max_length=200)] = "",
) -> HTMLResponse:
    """A spec that begins with another one, checked as it is typed."""
    return page(
        request, "edit.html", source=source, text=_draft(state, project, source),
        presets=preset_names(),
    )  # fmt: skip


def _draft(state: ApiState, project: str, source: str) -> str:
    """What the editor begins with: all of a spec that is stored, or a preset and what is its own.

    Raises:
        NotFound: the project has no such spec.
    """
    if not source or source in preset_names():
        base = source or preset_names()[0]
        document = dict(preset_spec(base).document)
        first = machine.rows(document, "levels")[-1]
        return (
            f"# Everything that is not said here is as in {base}; numbers may be plain or\n"
            "# {value: 1, tag: S, note: ...}. Change a number and see what is said of it.\n"
            f"schema_version: 1\ninherits: {base}\nname: my-{base}\n"
            f"num_cores: {machine.plain(document.get('num_cores'))}\n"
            f"levels:\n- name: {first.get('name')}\n"
            f"  capacity_bytes: {machine.plain(first.get('capacity_bytes'))}\n"
        )
    stored = query.get_hardware(state.database, source, project)
    return yaml.safe_dump(dict(stored.document), sort_keys=False, allow_unicode=True)


@router.post("/ui/hardware/drawing")
async def draw(request: Request, state: State) -> HTMLResponse:
    """The diagram and the figures of a spec in an editor; nothing is stored.

    Raises:
        PayloadRefused: it is not valid (yet).
    """
    found = await state.specs.read(await spec_body(request, state))
    document = found["document"]
    return page(request, "drawing.html", **_shown(document))


@router.get("/ui/hardware/{name}")
def show_machine(request: Request, name: Name, state: State, project: Project) -> HTMLResponse:
    """A preset by its name, or a stored spec by its id."""
    document = document_of(state, project, name)
    return page(
        request, "machine.html", name=name, title=str(document.get("name")),
        is_preset=name in preset_names(),
        description=str(document.get("description") or ""),
        text=yaml.safe_dump(document, sort_keys=False, allow_unicode=True), **_shown(document),
    )  # fmt: skip


def document_of(state: ApiState, project: str, name: str) -> dict[str, Any]:
    """The document of a preset by its name, or of a stored spec by its id.

    Raises:
        NotFound: the project has no such spec.
    """
    if name in preset_names():
        return dict(preset_spec(name).document)
    return dict(query.get_hardware(state.database, name, project).document)


def _shown(document: dict[str, Any]) -> dict[str, Any]:
    return {
        "drawing": blocks(document),
        "facts": machine.facts(document),
        "evidence": machine.evidence(document),
        "guesses": machine.guesses(document),
    }
