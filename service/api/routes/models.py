"""Models: streamed upload, list, look at, delete."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from service.api.callers import Project
from service.api.deps import Key, Name, State
from service.api.ingest import receive_model, register_model
from service.api.schemas.model import ModelAnswer, ModelPage
from service.api.specs import resolve_hardware
from service.errors import ServiceError
from service.jobs import query
from service.store.blobs import read_bytes
from worker.compiler.options import MAX_SYMBOL_CHARS, MAX_SYMBOLS

router = APIRouter(prefix="/v1/models", tags=["models"])

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "application/zip": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"file": {"type": "string", "format": "binary"}},
                    "required": ["file"],
                }
            },
        },
    }
}


class NotYet(ServiceError):
    """The resource will exist when a stage of a job has run."""

    code = "TW-SVC-015"


@router.post(
    "",
    status_code=201,
    response_model=ModelAnswer,
    openapi_extra=_BODY,
    responses={200: {"model": ModelAnswer, "description": "These bytes were uploaded before."}},
)
async def create_model(
    request: Request,
    state: State,
    project: Project,
    key: Key,
    name: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    digest: Annotated[str | None, Query(max_length=80)] = None,
) -> Response:
    """Upload a model as the raw body, or as the file of a form.

    The body goes to disk while it is hashed.  `digest=sha256:...` is checked; equal content gives
    the model that exists already.
    """
    ref, kind, form_name = await receive_model(request, state, digest, project)
    return await register_model(
        state,
        ref,
        name=name or form_name or "model",
        kind=kind,
        key=key,
        route="POST /v1/models",
        project=project,
    )


@router.get("", response_model=ModelPage)
def list_models(
    state: State,
    project: Project,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    limit: Annotated[int, Query(ge=1, le=query.MAX_PAGE)] = 50,
) -> ModelPage:
    """List models, newest first."""
    page = query.list_models(state.database, owner=project, cursor=cursor, limit=limit)
    return ModelPage(
        items=[ModelAnswer.from_record(row) for row in page.rows], next_cursor=page.next_cursor
    )


@router.get("/{model_id}", response_model=ModelAnswer)
def get_model(model_id: Name, state: State, project: Project) -> ModelAnswer:
    """Get one model."""
    return ModelAnswer.from_record(query.get_model(state.database, model_id, project))


@router.delete("/{model_id}", status_code=204)
def delete_model(model_id: Name, state: State, project: Project) -> None:
    """Delete a model that no job uses."""
    query.delete_model(state.database, model_id, project)


@router.get("/{model_id}/graph")
def get_graph(model_id: Name, state: State, project: Project) -> dict[str, Any]:
    """Get the model's nodes and edges as its youngest job has recorded them."""
    model = query.get_model(state.database, model_id, project)
    found = query.newest_artifact_of_model(state.database, model_id, "graph")
    if found is None:
        raise NotYet(
            "the graph is read by the first job that gets past the partition stage; none has yet",
            actual=model_id,
            remedy="Submit a job for this model, then ask again.",
        )
    graph = json.loads(read_bytes(state.blobs, found.sha256))
    return {"model": model.id, "sha256": model.sha256, "job": found.job_id, **graph}


@router.get("/{model_id}/preflight")
def get_preflight(
    model_id: Name,
    state: State,
    project: Project,
    hardware: Annotated[str, Query(min_length=1, max_length=200)],
    symbols: Annotated[
        list[Annotated[str, Field(max_length=MAX_SYMBOL_CHARS + 20)]] | None,
        Query(alias="set", max_length=MAX_SYMBOLS),
    ] = None,
) -> dict[str, Any]:
    """List every gap, fallback and fit problem of the model on a machine, without a job."""
    from service.api.preflight import run_preflight

    model = query.get_model(state.database, model_id, project)
    spec = query.get_hardware(state.database, resolve_hardware(state, hardware, project), project)
    return run_preflight(state, model, spec, tuple(symbols or ()))
