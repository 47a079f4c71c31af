"""Stored bytes over HTTP: strong ETag, conditional requests, byte ranges, immutable caching."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from service.errors import ServiceError

CACHE_FOREVER = "private, max-age=31536000, immutable"
"""By whoever asked: what passes a key is nobody else's."""
SANDBOXED = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline';"
    " script-src 'unsafe-inline'; img-src data:"
)
"""Content-Security-Policy of what users stored: it has no origin, and reaches nothing."""
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
"""More digits than a size has are a malformed header; they would not even convert."""

OpenRange = Callable[[int, int], Iterator[bytes]]
"""Give the bytes from `start`, `length` of them, piece by piece."""


class RangeNotSatisfiable(ServiceError):
    """The Range header asks for bytes behind the end."""

    code = "TW-SVC-014"


def etag_matches(header: str | None, etag: str) -> bool:
    """Say whether an If-None-Match (or If-Match) header names this ETag; weak marks are ignored."""
    if header is None:
        return False
    named = [part.strip().removeprefix("W/") for part in header.split(",")]
    return "*" in named or etag.removeprefix("W/") in named


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Read one byte range as (start, length); None means: send everything.

    Several ranges, other units and malformed headers are ignored, as RFC 9110 allows.

    Raises:
        RangeNotSatisfiable: well-formed, but nothing of it exists.
    """
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.group(1) == match.group(2) == "":
        return None
    first, last = match.group(1), match.group(2)
    if first == "":
        start, stop = max(size - int(last), 0), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    if start >= size or stop <= start:
        raise RangeNotSatisfiable(
            f"the range {header} lies outside the {size} bytes of this resource",
            limit=size,
            actual=header,
            headers={"Content-Range": f"bytes */{size}"},
        )
    return start, stop - start


def serve_bytes(
    request: Request,
    *,
    sha256: str,
    size: int,
    media_type: str,
    file_name: str,
    open_range: OpenRange,
    immutable: bool = True,
    policy: str = SANDBOXED,
) -> Response:
    """Answer GET or HEAD for one stored blob.

    `immutable` is for addresses that contain the digest; others may point elsewhere tomorrow and
    are revalidated.
    """
    etag = f'"{sha256}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": CACHE_FOREVER if immutable else "no-cache",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": policy,
        "Content-Disposition": f'inline; filename="{_header_name(file_name)}"',
    }
    if etag_matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    wanted = None
    condition = request.headers.get("if-range")
    if condition is None or condition == etag:
        wanted = parse_range(request.headers.get("range"), size)
    start, length = wanted or (0, size)
    headers["Content-Length"] = str(length)
    if wanted is not None:
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{size}"
    status = 200 if wanted is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=media_type)
    return StreamingResponse(
        open_range(start, length),
        status_code=status,
        headers=headers,
        media_type=media_type,
    )


def _header_name(name: str) -> str:
    """Keep what is safe inside a quoted header string; names come from users."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:120] or "download"
