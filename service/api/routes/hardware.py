"""Hardware specs: presets, schema, lint, store."""

from __future__ import annotations

from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from service.api.answers import Prepared
from service.api.callers import Project
from service.api.deps import Key, Name, State
from service.api.idempotency import request_key
from service.api.ingest import media_of, unsupported
from service.api.schemas.hardware import (
    HardwareAnswer,
    HardwarePage,
    HardwareSummary,
    LintAnswer,
    PresetAnswer,
    PresetList,
)
from service.api.specs import read_spec
from service.errors import TooLarge
from service.jobs import query, submit
from worker.compiler.machine import preset_rows, spec_json_schema
from worker.compiler.machine.parse import MAX_TEXT_CHARS

router = APIRouter(prefix="/v1/hardware", tags=["hardware"])

MAX_FIELDS = 100
"""Far above what the schema of specs has; unknown ones are refused by name."""
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object", "maxProperties": MAX_FIELDS}},
            "application/yaml": {"schema": {"type": "string", "maxLength": MAX_TEXT_CHARS}},
        },
    }
}


_MEDIA = frozenset(
    {"", "application/json", "application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"}
)
"""Not the types that a form of any web page can send."""


async def spec_body(request: Request, state: State) -> bytes:
    """The text of a spec that a request brings.

    Raises:
        UnsupportedMedia: its type is one that a form can send, or unknown.
        TooLarge: it is over the server's limit.
    """
    media = media_of(request)
    if media not in _MEDIA:
        raise unsupported("a spec", media, sorted(_MEDIA - {""}))
    body = await request.body()
    limit = state.settings.max_hardware_bytes
    if len(body) > limit:
        raise TooLarge(f"the spec has {len(body)} bytes", limit=limit, actual=len(body))
    return body


@router.post(
    "",
    status_code=201,
    response_model=HardwareAnswer,
    openapi_extra=_BODY,
    responses={200: {"model": HardwareAnswer, "description": "This spec was stored before."}},
)
async def create_hardware(request: Request, state: State, project: Project, key: Key) -> Response:
    """Validate and store a spec, sent as JSON or YAML; refusals list every finding."""
    body = await spec_body(request, state)
    spec = await read_spec(state, body)
    answer = Prepared(HardwareAnswer.from_record)
    idempotency = request_key(key, owner=project, route="POST /v1/hardware", body=body)

    def store() -> bool:
        return submit.add_hardware(
            state.database, spec, owner=project, idempotency=idempotency, before_commit=answer
        )[1]

    created = await to_thread.run_sync(store)
    return answer.response(201 if created else 200, {"Location": f"/v1/hardware/{spec.id}"})


@router.post("/lint", response_model=LintAnswer, openapi_extra=_BODY)
async def lint(request: Request, state: State) -> Response:
    """Report everything that is wrong or doubtful about a spec, without storing it."""
    answer: Prepared[dict[str, Any]] = Prepared(_lint_answer)
    answer(await state.specs.ask("lint", await spec_body(request, state)))
    return answer.response(200)


def _lint_answer(found: dict[str, Any]) -> LintAnswer:
    return LintAnswer(valid=not found["errors"], **found)


@router.get("/presets", response_model=PresetList)
def list_presets() -> PresetList:
    """List the presets that ship with the service."""
    return PresetList(items=[PresetAnswer(**row) for row in preset_rows()])


@router.get("/schema")
def get_schema() -> dict[str, Any]:
    """Get the JSON Schema of specs."""
    return dict(spec_json_schema())


@router.get("", response_model=HardwarePage)
def list_hardware(
    state: State,
    project: Project,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    limit: Annotated[int, Query(ge=1, le=query.MAX_PAGE)] = 50,
) -> HardwarePage:
    """List stored specs, newest first."""
    page = query.list_hardware(state.database, owner=project, cursor=cursor, limit=limit)
    items = [
        HardwareSummary(
            id=row.id, name=row.name, machine_digest=row.machine_digest, created=row.created
        )
        for row in page.rows
    ]
    return HardwarePage(items=items, next_cursor=page.next_cursor)


@router.get("/{hardware_id}", response_model=HardwareAnswer)
def get_hardware(hardware_id: Name, state: State, project: Project) -> HardwareAnswer:
    """Get one stored spec with its inheritance resolved."""
    return HardwareAnswer.from_record(query.get_hardware(state.database, hardware_id, project))
