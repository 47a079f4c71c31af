"""Receiving uploads: raw body or form, to the blob store, to a record."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from anyio import to_thread
from fastapi import Request, Response

from service.api.answers import Prepared
from service.api.deps import ApiState
from service.api.form import FormFile
from service.api.idempotency import request_key
from service.api.looks import FirstLook, Look, look_at_arrays, look_at_model
from service.api.schemas.model import ModelAnswer
from service.api.spool import append_stream, check_declared, parse_digest
from service.errors import UnsupportedMedia
from service.jobs import quotas, submit
from service.store.blobs import BlobWriter
from service.store.records import BlobRef
from worker.compiler.errors import Detail

ONNX_TYPE = "application/x-onnx"
ZIP_TYPE = "application/zip"
RAW_TYPES = frozenset(
    {
        "",
        "application/octet-stream",
        "application/x-onnx",
        "application/onnx",
        "application/protobuf",
        "application/x-protobuf",
        "application/zip",
        "application/x-zip-compressed",
    }
)
_FORM_OVERHEAD_BYTES = 1 << 16
"""What a form may add around the file: boundaries and part headers."""


def kind_of(head: bytes) -> str:
    """Tell a zip bundle from an ONNX file by its first bytes; media types are often wrong."""
    return "zip" if head[:2] == b"PK" else "onnx"


async def receive_model(
    request: Request, state: ApiState, digest: str | None, project: str
) -> tuple[BlobRef, str, str | None]:
    """Stream the body into the blob store: (content, kind, file name of a form).

    Raises:
        UnsupportedMedia: the Content-Type is neither a model's nor a form.
        TooLarge: declared or received bytes pass the limit, or the disk is full.
        QuotaExceeded: the project would keep too many bytes.
        DigestMismatch: length or digest are not the announced ones.
        NotAModel: its first bytes are not a model's, or there are none.
    """
    media = media_of(request)
    is_form = media == "multipart/form-data"
    if media not in RAW_TYPES and not is_form:
        raise unsupported("a model", media, [*sorted(RAW_TYPES - {""}), "multipart/form-data"])
    ref, head, form = await _receive(
        request, state, digest, project, limit=state.settings.max_model_bytes, is_form=is_form,
        look=look_at_model,
    )  # fmt: skip
    kind = kind_of(head)
    if kind == "zip":
        ref = BlobRef(ref.sha256, ref.size_bytes, ZIP_TYPE)
    return ref, kind, Path(form.file_name).stem if form is not None and form.file_name else None


async def receive_arrays(
    request: Request, state: ApiState, digest: str | None, project: str
) -> BlobRef:
    """Stream an .npz into the blob store.

    Raises:
        UnsupportedMedia: the Content-Type is not that of raw bytes or of a zip.
        TooLarge: declared or received bytes pass the limit, or the disk is full.
        QuotaExceeded: the project would keep too many bytes.
        DigestMismatch: length or digest are not the announced ones.
        NotAModel: TW-CAL-001, the body is no zip archive of arrays.
    """
    media = media_of(request)
    if media not in RAW_TYPES:
        raise unsupported("calibration arrays", media, sorted(RAW_TYPES - {""}))
    ref, _, _ = await _receive(
        request, state, digest, project, limit=state.settings.max_model_bytes, is_form=False,
        look=look_at_arrays,
    )  # fmt: skip
    return BlobRef(ref.sha256, ref.size_bytes, ZIP_TYPE)


def media_of(request: Request) -> str:
    """Give the media type of a body, lower case, without parameters; empty when not named."""
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


def unsupported(what: str, media: str, allowed: list[str]) -> UnsupportedMedia:
    """Refuse a media type and name those that are served."""
    return UnsupportedMedia(
        f"{what} cannot be sent as {media[:100]}",
        pointer="header:Content-Type",
        limit=list[Detail](allowed),
        actual=media[:100],
    )


async def _receive(
    request: Request,
    state: ApiState,
    digest: str | None,
    project: str,
    *,
    limit: int,
    is_form: bool,
    look: Look,
) -> tuple[BlobRef, bytes, FormFile | None]:
    """Stream a body, or the file of a form, into the blob store: (content, first bytes, form)."""
    expected = parse_digest(digest)
    length = request.headers.get("content-length", "")
    declared = int(length) if length.isdecimal() else None
    spool = state.blobs.spool_dir
    spool.mkdir(parents=True, exist_ok=True)
    body_limit = limit + (_FORM_OVERHEAD_BYTES if is_form else 0)
    check_declared(declared, limit_bytes=body_limit, folder=spool)
    await to_thread.run_sync(
        quotas.check_room, state.database, state.settings, project, declared or 1, expected
    )
    writer = await to_thread.run_sync(
        lambda: BlobWriter(state.blobs, limit_bytes=limit, media_type=ONNX_TYPE)
    )
    with writer:
        first = FirstLook(look)

        def store(piece: bytes) -> None:
            first.see(piece)
            writer.write(piece)

        form = FormFile(request.headers["content-type"], store) if is_form else None
        write = store if form is None else form.feed
        chunks: AsyncIterator[bytes] = request.stream()
        await append_stream(write, chunks, limit_bytes=body_limit, is_known=lambda: first.is_done)
        if form is not None:
            form.finish()
        first.finish()
        ref = await to_thread.run_sync(
            lambda: writer.commit(
                expected_sha256=expected, expected_bytes=None if is_form else declared
            )
        )
    return ref, first.head, form


async def register_model(
    state: ApiState,
    ref: BlobRef,
    *,
    name: str,
    kind: str,
    key: str | None,
    route: str,
    project: str,
) -> Response:
    """Make stored content a model, once per owner and digest, and answer with it.

    Raises:
        IdempotencyMismatch: the key was used with other content.
    """
    answer = Prepared(ModelAnswer.from_record)
    idempotency = request_key(key, owner=project, route=route, body=ref.sha256.encode())
    model, created = await to_thread.run_sync(
        lambda: submit.add_model(
            state.database, ref, name=name, kind=kind, owner=project, settings=state.settings,
            idempotency=idempotency,
            before_commit=answer,
        )
    )  # fmt: skip
    return answer.response(201 if created else 200, {"Location": f"/v1/models/{model.id}"})
