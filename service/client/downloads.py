"""Fetching a stored file: resumed by Range after a break, published only when its digest fits."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from service.client.errors import DigestMismatch, ServerUnreachable
from service.client.transport import Transport

MAX_RESUMES = 5


def download(transport: Transport, location: str, target: Path) -> str:
    """Write the body of `location` to `target` and give its sha256.

    The server's strong ETag is the digest; the file appears under its name only when the bytes
    have that digest.

    Raises:
        DigestMismatch: the bytes differ from what the server announced.
        ServerUnreachable: the connection broke more often than MAX_RESUMES.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.part")
    partial.unlink(missing_ok=True)
    digest, etag, resumes = sha256(), "", 0
    try:
        with partial.open("wb") as stream:
            while True:
                headers = {}
                if stream.tell():
                    headers = {"Range": f"bytes={stream.tell()}-", "If-Range": etag}
                try:
                    with transport.stream(location, headers=headers) as response:
                        if stream.tell() and response.status_code != 206:
                            stream.seek(0)
                            stream.truncate()
                            digest = sha256()
                        etag = response.headers.get("ETag", "")
                        for piece in response.iter_bytes():
                            stream.write(piece)
                            digest.update(piece)
                    break
                except ServerUnreachable:
                    resumes += 1
                    if resumes > MAX_RESUMES:
                        raise
        actual, expected = digest.hexdigest(), etag.strip('"')
        if len(expected) == 64 and expected != actual:
            raise DigestMismatch(target.name, expected, actual)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return actual
