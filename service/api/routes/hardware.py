"""Hardware specs: presets, schema, lint, store."""

from __future__ import annotations

from typing import Annotated, Any, cast

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from service.api.deps import OWNER, Key, State
from service.api.idempotency import check_replay, remember, request_key
from service.api.ingest import media_of, unsupported
from service.api.schemas.hardware import (
    HardwareAnswer,
    HardwarePage,
    HardwareSummary,
    LintAnswer,
    PresetAnswer,
    PresetList,
)
from service.api.schemas.problem import FindingAnswer
from service.api.specs import Document, parse_body, store_spec, validated
from service.errors import TooLarge
from service.jobs import query
from worker.compiler.errors import Finding, SpecError
from worker.compiler.machine import (
    lint_document,
    preset_document,
    preset_names,
    spec_json_schema,
)

router = APIRouter(prefix="/v1/hardware", tags=["hardware"])

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "application/yaml": {"schema": {"type": "string"}},
        },
    }
}


_MEDIA = frozenset(
    {"", "application/json", "application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"}
)
"""Not the types that a form of any web page can send."""


async def _spec_body(request: Request, state: State) -> bytes:
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
async def create_hardware(
    request: Request, response: Response, state: State, key: Key
) -> HardwareAnswer:
    """Validate and store a spec, sent as JSON or YAML; refusals list every finding."""
    body = await _spec_body(request, state)

    def store() -> tuple[HardwareAnswer, bool]:
        idempotency = request_key(key, owner=OWNER, route="POST /v1/hardware", body=body)
        check_replay(state.database, idempotency)
        record, created = store_spec(state, parse_body(body))
        remember(state.database, idempotency, record.id)
        return HardwareAnswer.from_record(record), created

    answer, created = await to_thread.run_sync(store)
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/hardware/{answer.id}"
    return answer


@router.post("/lint", response_model=LintAnswer, openapi_extra=_BODY)
async def lint(request: Request, state: State) -> LintAnswer:
    """Report everything that is wrong or doubtful about a spec, without storing it."""
    body = await _spec_body(request, state)
    # Not on the event loop: reading a document takes as long as its author likes.
    return await to_thread.run_sync(lambda: lint_spec(parse_body(body)))


def lint_spec(document: Document) -> LintAnswer:
    """Split the findings into those that would refuse the spec and those that only warn."""
    errors: list[FindingAnswer] = []
    machine_digest = None
    try:
        _, machine_digest, _ = validated(document)
    except SpecError as error:
        where = error.place.pointer
        alone = Finding(error.code, error.message, where, None, error.limit, error.actual)
        findings = error.findings or (alone,)
        errors = [_finding(f) for f in findings]
    refused = {(e.code, e.pointer) for e in errors}
    warnings = [_finding(f) for f in lint_document(document) if (f.code, f.pointer) not in refused]
    return LintAnswer(
        valid=not errors, machine_digest=machine_digest, errors=errors, warnings=warnings
    )


def _finding(finding: Finding) -> FindingAnswer:
    return FindingAnswer(
        code=finding.code,
        message=finding.message,
        pointer=finding.pointer,
        node=finding.node,
        allowed=cast("Any", finding.allowed),
        actual=cast("Any", finding.actual),
    )


@router.get("/presets", response_model=PresetList)
def list_presets() -> PresetList:
    """List the presets that ship with the service."""
    items = []
    for name in preset_names():
        document = preset_document(name)
        description = str(document.get("description") or "")
        items.append(PresetAnswer(name=name, description=description, document=document))
    return PresetList(items=items)


@router.get("/schema")
def get_schema() -> dict[str, Any]:
    """Get the JSON Schema of specs."""
    return dict(spec_json_schema())


@router.get("", response_model=HardwarePage)
def list_hardware(
    state: State,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    limit: Annotated[int, Query(ge=1, le=query.MAX_PAGE)] = 50,
) -> HardwarePage:
    """List stored specs, newest first."""
    page = query.list_hardware(state.database, cursor=cursor, limit=limit)
    items = [
        HardwareSummary(
            id=row.id, name=row.name, machine_digest=row.machine_digest, created=row.created
        )
        for row in page.rows
    ]
    return HardwarePage(items=items, next_cursor=page.next_cursor)


@router.get("/{hardware_id}", response_model=HardwareAnswer)
def get_hardware(hardware_id: str, state: State) -> HardwareAnswer:
    """Get one stored spec with its inheritance resolved."""
    return HardwareAnswer.from_record(query.get_hardware(state.database, hardware_id))
