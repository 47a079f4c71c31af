"""Receiving uploads: raw body or form, to the blob store, to a record."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

from anyio import to_thread
from fastapi import Request

from service.api.deps import OWNER, ApiState
from service.api.form import FormFile
from service.api.idempotency import check_replay, remember, request_key
from service.api.spool import append_stream, check_declared, parse_digest
from service.errors import UnsupportedMedia
from service.jobs import submit
from service.store.blobs import BlobWriter
from service.store.records import BlobRef, ModelRecord
from worker.compiler.errors import Detail, InputError, ModelError

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
    request: Request, state: ApiState, digest: str | None
) -> tuple[BlobRef, str, str | None]:
    """Stream the body into the blob store: (content, kind, file name of a form).

    Raises:
        UnsupportedMedia: the Content-Type is neither a model's nor a form.
        TooLarge: declared or received bytes pass the limit, or the disk is full.
        DigestMismatch: length or digest are not the announced ones.
        ModelError: the body is empty.
    """
    media = media_of(request)
    is_form = media == "multipart/form-data"
    if media not in RAW_TYPES and not is_form:
        raise unsupported("a model", media, [*sorted(RAW_TYPES - {""}), "multipart/form-data"])
    ref, head, form = await _receive(
        request, state, digest, limit=state.settings.max_model_bytes, is_form=is_form
    )
    if ref.size_bytes == 0:
        raise ModelError("TW-MODEL-002", "the uploaded file is empty", limit=1, actual=0)
    kind = kind_of(head)
    if kind == "zip":
        ref = BlobRef(ref.sha256, ref.size_bytes, ZIP_TYPE)
    return ref, kind, Path(form.file_name).stem if form is not None and form.file_name else None


async def receive_arrays(request: Request, state: ApiState, digest: str | None) -> BlobRef:
    """Stream an .npz into the blob store.

    Raises:
        UnsupportedMedia: the Content-Type is not that of raw bytes or of a zip.
        TooLarge: declared or received bytes pass the limit, or the disk is full.
        DigestMismatch: length or digest are not the announced ones.
        InputError: TW-CAL-001, the body is no zip archive of arrays.
    """
    media = media_of(request)
    if media not in RAW_TYPES:
        raise unsupported("calibration arrays", media, sorted(RAW_TYPES - {""}))
    ref, head, _ = await _receive(
        request, state, digest, limit=state.settings.max_model_bytes, is_form=False
    )
    if kind_of(head) != "zip":
        raise InputError(
            "TW-CAL-001", "the body is not an .npz archive", limit="a zip of .npy members",
            actual=f"{ref.size_bytes} bytes that start with {head[:4].hex() or 'nothing'}",
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
    request: Request, state: ApiState, digest: str | None, *, limit: int, is_form: bool
) -> tuple[BlobRef, bytes, FormFile | None]:
    """Stream a body, or the file of a form, into the blob store: (content, first bytes, form)."""
    expected = parse_digest(digest)
    length = request.headers.get("content-length", "")
    declared = int(length) if length.isdecimal() else None
    spool = state.blobs.spool_dir
    spool.mkdir(parents=True, exist_ok=True)
    body_limit = limit + (_FORM_OVERHEAD_BYTES if is_form else 0)
    check_declared(declared, limit_bytes=body_limit, folder=spool)
    writer = await to_thread.run_sync(
        lambda: BlobWriter(state.blobs, limit_bytes=limit, media_type=ONNX_TYPE)
    )
    with writer:
        form = FormFile(request.headers["content-type"], writer.write) if is_form else None
        chunks: AsyncIterator[bytes] = request.stream()
        head = bytearray()

        def write(piece: bytes) -> None:
            if form is not None:
                form.feed(piece)
            else:
                writer.write(piece)
            if len(head) < 4:
                head.extend(piece[:4])

        await append_stream(write, chunks, limit_bytes=body_limit)
        if form is not None:
            form.finish()
            head[:] = form.head
        if writer.size_bytes == 0:
            return BlobRef("", 0, ONNX_TYPE), b"", form
        ref = await to_thread.run_sync(
            lambda: writer.commit(
                expected_sha256=expected, expected_bytes=None if is_form else declared
            )
        )
    return ref, bytes(head), form


async def register_model(
    state: ApiState, ref: BlobRef, *, name: str, kind: str, key: str | None, route: str
) -> tuple[ModelRecord, bool]:
    """Make stored content a model, once per owner and digest.

    Raises:
        IdempotencyMismatch: the key was used with other content.
    """
    idempotency = request_key(key, owner=OWNER, route=route, body=ref.sha256.encode())

    def register() -> tuple[ModelRecord, bool]:
        check_replay(state.database, idempotency)
        model, created = submit.add_model(state.database, ref, name=name, kind=kind, owner=OWNER)
        remember(state.database, idempotency, model.id)
        return model, created

    return await to_thread.run_sync(register)


def digest_of(body: bytes) -> str:
    """Give the sha256 of a small body."""
    return sha256(body).hexdigest()
