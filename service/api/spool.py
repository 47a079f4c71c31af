"""Request bodies go to disk while they are hashed, in 1 MiB batches off the event loop.

One batch is written by a thread while the next one is received, so memory stays at two batches
whatever the size of the body, and the event loop never waits for the disk or for sha256.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from service.errors import Malformed, TooLarge, Unavailable
from worker.compiler.errors import DISK_FULL, Detail

BATCH_BYTES = 1 << 20
DISK_RESERVE_BYTES = 64 << 20
"""An upload is refused when it would leave less than this free."""


Write = Callable[[bytes], object]
"""Stores one batch; called in a thread, never twice at once."""


async def append_stream(
    write: Write,
    chunks: AsyncIterator[bytes],
    *,
    limit_bytes: int,
    is_known: Callable[[], bool],
) -> int:
    """Hand a body to `write` in batches and give the number of bytes.

    Until `is_known`, chunks are handed over one by one as they come: what `write` refuses by its
    first bytes is refused before the rest is received.

    Everything received before a failure has been written when this raises, so that a resumable
    upload keeps it.

    Raises:
        TooLarge: the body passed `limit_bytes`; the bytes up to the limit are written.
    """
    loop = asyncio.get_running_loop()
    pending: asyncio.Future[object] | None = None
    written, batch = 0, bytearray()

    try:
        async for chunk in chunks:
            if written + len(batch) + len(chunk) > limit_bytes:
                raise TooLarge(
                    f"the body is larger than the limit of {limit_bytes} bytes",
                    limit=limit_bytes,
                    headers={"Connection": "close"},
                )
            batch += chunk
            if not is_known():
                piece, batch = bytes(batch), bytearray()
                written += len(piece)
                await loop.run_in_executor(None, write, piece)
            elif len(batch) >= BATCH_BYTES:
                if pending is not None:
                    await pending
                piece, batch = bytes(batch), bytearray()
                written += len(piece)
                pending = loop.run_in_executor(None, write, piece)
    finally:
        if pending is not None:
            await asyncio.shield(pending)
        if batch:
            written += len(batch)
            await loop.run_in_executor(None, write, bytes(batch))
    return written


def check_declared(declared: int | None, *, limit_bytes: int, folder: Path) -> None:
    """Refuse a body by its declared length before a byte of it is read.

    Raises:
        TooLarge: over the limit, or over what the whole disk holds.
        Unavailable: TW-SVC-030, over what is free on the disk now.
    """
    if declared is None:
        return
    if declared > limit_bytes:
        raise TooLarge(
            f"the body has {declared} bytes, the limit is {limit_bytes}",
            limit=limit_bytes,
            actual=declared,
            headers={"Connection": "close"},
        )
    stats = os.statvfs(folder)
    free, size = (
        max(0, blocks * stats.f_frsize - DISK_RESERVE_BYTES)
        for blocks in (stats.f_bavail, stats.f_blocks)
    )
    if declared > size:
        raise TooLarge(
            f"the body has {declared} bytes, the server's disk holds {size}",
            limit=size,
            actual=declared,
            headers={"Connection": "close"},
        )
    if declared > free:
        raise Unavailable(
            f"the body has {declared} bytes, the server's disk has room for {free}",
            code=DISK_FULL,
            limit=free,
            actual=declared,
            remedy="Free disk space in the server's data directory.",
            headers={"Connection": "close"},
        )


def parse_digest(text: str | None) -> str | None:
    """Read `sha256:<64 hex digits>` (the prefix may be left out).

    Raises:
        Malformed: it is something else.
    """
    if text is None:
        return None
    value = text.removeprefix("sha256:")
    if len(value) == 64 and all(c in "0123456789abcdef" for c in value):
        return value
    allowed: Detail = "sha256:<64 lower-case hex digits>"
    raise Malformed(
        "the digest is not a sha256", pointer="query:digest", limit=allowed, actual=text[:100]
    )


def hash_file(path: Path) -> hashlib._Hash:
    """Hash what is on disk: how a partial upload goes on after a restart."""
    hasher = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(BATCH_BYTES):
            hasher.update(piece)
    return hasher
