"""Resumable uploads: start, append at an offset, finish."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request, Response

from service.api.answers import Prepared, encoded
from service.api.callers import Project
from service.api.deps import Key, Name, State
from service.api.ingest import register_model
from service.api.schemas.model import ModelAnswer, UploadAnswer, UploadRequest
from service.api.spool import parse_digest
from service.api.uploads import CHUNK_BYTES, Upload, UploadFolder
from service.jobs import quotas
from service.store.records import ModelRecord

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])
OFFSET_HEADER = "Upload-Offset"


def _folder(state: State, project: str) -> UploadFolder:
    return UploadFolder(state.blobs, limit_bytes=state.settings.max_model_bytes, project=project)


def _headers(upload: Upload) -> dict[str, str]:
    return {OFFSET_HEADER: str(upload.offset), "Cache-Control": "no-store"}


def _answer(upload: Upload) -> UploadAnswer:
    return UploadAnswer(
        id=upload.id,
        name=upload.name,
        offset=upload.offset,
        size_limit_bytes=upload.size_limit_bytes,
        expires=upload.expires,
        chunk_bytes=CHUNK_BYTES,
    )


@router.post("", status_code=201, response_model=UploadAnswer)
def start_upload(body: UploadRequest, state: State, project: Project) -> Response:
    """Start a resumable upload of a model."""
    answer, folder = Prepared(_answer), _folder(state, project)
    wanted = (body.size_bytes or 1) + folder.held_bytes()
    quotas.check_room(state.database, state.settings, project, wanted, body.sha256)
    upload = folder.start(
        body.name, size_bytes=body.size_bytes, sha256=body.sha256, before_start=answer
    )
    return answer.response(201, {**_headers(upload), "Location": f"/v1/uploads/{upload.id}"})


@router.get("/{upload_id}", response_model=UploadAnswer)
def get_upload(upload_id: Name, response: Response, state: State, project: Project) -> UploadAnswer:
    """Ask how many bytes have arrived; go on from there."""
    upload = _folder(state, project).get(upload_id)
    response.headers.update(_headers(upload))
    return _answer(upload)


@router.patch(
    "/{upload_id}",
    response_model=UploadAnswer,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            },
        }
    },
)
async def append(
    upload_id: Name,
    request: Request,
    response: Response,
    state: State,
    project: Project,
    offset: Annotated[int, Header(alias=OFFSET_HEADER, ge=0, le=2**62)],
) -> UploadAnswer:
    """Append the body at `Upload-Offset`, which must be the number of bytes that have arrived.

    What arrives before a connection breaks is kept.
    """
    length = request.headers.get("content-length", "")
    upload = await _folder(state, project).append(
        upload_id,
        offset,
        request.stream(),
        declared=int(length) if length.isdecimal() else None,
    )
    response.headers.update(_headers(upload))
    return _answer(upload)


@router.put(
    "/{upload_id}",
    status_code=201,
    response_model=ModelAnswer,
    responses={200: {"model": ModelAnswer, "description": "These bytes were uploaded before."}},
)
async def finish(
    upload_id: Name,
    state: State,
    project: Project,
    key: Key,
    digest: Annotated[str | None, Query(max_length=80)] = None,
) -> Response:
    """Check length and digest, and make the upload a model."""
    expected = parse_digest(digest)
    folder = _folder(state, project)
    name, ref, kind = await to_thread.run_sync(folder.check, upload_id, expected)
    # The content is taken over before the row may name it: an answer that cannot be built has to
    # show before, or the upload would be gone.
    encoded(ModelAnswer.from_record(ModelRecord("", project, name, kind, ref.sha256, 0, 0.0, None)))
    await to_thread.run_sync(folder.finish, upload_id, ref)
    return await register_model(
        state, ref, name=name, kind=kind, key=key, route="PUT /v1/uploads", project=project
    )


@router.delete("/{upload_id}", status_code=204)
def abandon(upload_id: Name, state: State, project: Project) -> None:
    """Drop an unfinished upload."""
    _folder(state, project).drop(upload_id)
