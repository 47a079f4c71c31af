"""Resumable uploads: start, append at an offset, finish."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request, Response

from service.api.deps import Key, State
from service.api.ingest import register_model
from service.api.schemas.model import ModelAnswer, UploadAnswer, UploadRequest
from service.api.spool import parse_digest
from service.api.uploads import CHUNK_BYTES, Upload, UploadFolder

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])
OFFSET_HEADER = "Upload-Offset"


def _folder(state: State) -> UploadFolder:
    return UploadFolder(state.blobs, limit_bytes=state.settings.max_model_bytes)


def _answer(upload: Upload, response: Response) -> UploadAnswer:
    response.headers[OFFSET_HEADER] = str(upload.offset)
    response.headers["Cache-Control"] = "no-store"
    return UploadAnswer(
        id=upload.id,
        name=upload.name,
        offset=upload.offset,
        size_limit_bytes=upload.size_limit_bytes,
        expires=upload.expires,
        chunk_bytes=CHUNK_BYTES,
    )


@router.post("", status_code=201, response_model=UploadAnswer)
def start_upload(body: UploadRequest, response: Response, state: State) -> UploadAnswer:
    """Start a resumable upload of a model."""
    upload = _folder(state).start(body.name, size_bytes=body.size_bytes, sha256=body.sha256)
    response.headers["Location"] = f"/v1/uploads/{upload.id}"
    return _answer(upload, response)


@router.get("/{upload_id}", response_model=UploadAnswer)
def get_upload(upload_id: str, response: Response, state: State) -> UploadAnswer:
    """Ask how many bytes have arrived; go on from there."""
    return _answer(_folder(state).get(upload_id), response)


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
    upload_id: str,
    request: Request,
    response: Response,
    state: State,
    offset: Annotated[int, Header(alias=OFFSET_HEADER, ge=0, le=2**62)],
) -> UploadAnswer:
    """Append the body at `Upload-Offset`, which must be the number of bytes that have arrived.

    What arrives before a connection breaks is kept.
    """
    length = request.headers.get("content-length", "")
    upload = await _folder(state).append(
        upload_id,
        offset,
        request.stream(),
        declared=int(length) if length.isdecimal() else None,
    )
    return _answer(upload, response)


@router.put(
    "/{upload_id}",
    status_code=201,
    response_model=ModelAnswer,
    responses={200: {"model": ModelAnswer, "description": "These bytes were uploaded before."}},
)
async def finish(
    upload_id: str,
    response: Response,
    state: State,
    key: Key,
    digest: Annotated[str | None, Query(max_length=80)] = None,
) -> ModelAnswer:
    """Check length and digest, and make the upload a model."""
    expected = parse_digest(digest)
    name, ref, kind = await to_thread.run_sync(_folder(state).finish, upload_id, expected)
    model, created = await register_model(
        state, ref, name=name, kind=kind, key=key, route="PUT /v1/uploads"
    )
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/models/{model.id}"
    return ModelAnswer.from_record(model)


@router.delete("/{upload_id}", status_code=204)
def abandon(upload_id: str, state: State) -> None:
    """Drop an unfinished upload."""
    _folder(state).drop(upload_id)
