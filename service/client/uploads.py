"""Sending a model: in one request when small, in resumable chunks when large."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

from service.client.errors import ApiError, Json, ServerUnreachable
from service.client.transport import Transport, document

READ_BYTES = 1 << 20
RESUMABLE_FROM_BYTES = 64 << 20
"""Files at least this large are sent in chunks, so that a broken connection costs one chunk."""
CHUNK_BYTES = 16 << 20
MAX_RESUMES = 20

Progress = Callable[[int, int], None]
"""Called with (bytes sent, bytes in total)."""


def file_sha256(path: Path) -> str:
    """Hash a file in 1 MiB pieces."""
    digest = sha256()
    with path.open("rb") as stream:
        while piece := stream.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def media_type_of(path: Path) -> str:
    """Give the media type under which a model file is sent."""
    return "application/zip" if path.suffix.lower() == ".zip" else "application/octet-stream"


def upload_single(
    transport: Transport, path: Path, *, name: str, progress: Progress | None
) -> dict[str, Json]:
    """Stream a file as the raw body of one POST; the server checks the digest.

    A connection that breaks meanwhile is a server that refused early or a bad network: the
    resumable way then gets either the refusal or the rest of the file across.
    """
    size = path.stat().st_size
    digest = file_sha256(path)

    def pieces() -> Iterator[bytes]:
        sent = 0
        with path.open("rb") as stream:
            while piece := stream.read(READ_BYTES):
                yield piece
                sent += len(piece)
                if progress is not None:
                    progress(sent, size)

    try:
        response = transport.request(
            "POST",
            "/v1/models",
            params={"name": name, "digest": f"sha256:{digest}"},
            content=pieces(),
            headers={"Content-Type": media_type_of(path), "Content-Length": str(size)},
            timeout_s=600,
        )
    except ServerUnreachable:
        return upload_resumable(transport, path, name=name, progress=progress)
    return document(response)


def upload_arrays(transport: Transport, path: Path, *, name: str) -> dict[str, Json]:
    """Stream an .npz as the raw body of one POST; the server checks the digest."""

    def pieces() -> Iterator[bytes]:
        with path.open("rb") as stream:
            while piece := stream.read(READ_BYTES):
                yield piece

    response = transport.request(
        "POST",
        "/v1/calibrations",
        params={"name": name, "digest": f"sha256:{file_sha256(path)}"},
        content=pieces(),
        headers={
            "Content-Type": "application/zip",
            "Content-Length": str(path.stat().st_size),
        },
        timeout_s=600,
    )
    return document(response)


def upload_resumable(
    transport: Transport,
    path: Path,
    *,
    name: str,
    progress: Progress | None,
    chunk_bytes: int = CHUNK_BYTES,
) -> dict[str, Json]:
    """Send a file in chunks; after a broken connection go on where the server's offset is.

    Raises:
        ApiError: the server refused the upload.
        ServerUnreachable: the connection broke more often than MAX_RESUMES.
    """
    size = path.stat().st_size
    upload = document(
        transport.request(
            "POST",
            "/v1/uploads",
            json={"name": name, "size_bytes": size},
        )
    )
    location = f"/v1/uploads/{upload['id']}"
    offset, resumes = 0, 0
    digest, hashed = sha256(), 0
    with path.open("rb") as stream:
        while offset < size:
            stream.seek(offset)
            chunk = stream.read(chunk_bytes)
            if offset <= hashed < offset + len(chunk):  # not so after a resume that went back
                digest.update(memoryview(chunk)[hashed - offset :])
                hashed = offset + len(chunk)
            try:
                response = transport.request(
                    "PATCH",
                    location,
                    content=chunk,
                    headers={
                        "Upload-Offset": str(offset),
                        "Content-Type": "application/octet-stream",
                    },
                    timeout_s=300,
                )
                offset = int(response.headers["Upload-Offset"])
            except (ServerUnreachable, ApiError) as error:
                resumes += 1
                conflict = isinstance(error, ApiError) and error.status == 409
                if not (conflict or error.retryable) or resumes > MAX_RESUMES:
                    raise
                current = document(transport.request("GET", location)).get("offset")
                offset = current if isinstance(current, int) else 0
            if progress is not None:
                progress(offset, size)
    known = digest.hexdigest() if hashed == size else file_sha256(path)
    return document(
        transport.request("PUT", location, params={"digest": f"sha256:{known}"}, timeout_s=600)
    )
