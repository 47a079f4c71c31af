"""Content-addressed storage: bytes under the sha256 of what they are.

Writers spool to a local file while hashing; `commit` makes the content durable under its digest.
Nothing is ever overwritten: equal digests are equal bytes.  Two back ends: a local directory
(`service.store.local_blobs`) and S3 through the optional `obstore` package (`service.store.s3`).
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol

from service.errors import DigestMismatch, NotFound, TooLarge
from service.store.records import BlobRef
from service.store.writeback import EarlyWriteback

CHUNK_BYTES = 1024 * 1024
UPLOADS = "uploads"
"""Below the spool: a data file and a record of each unfinished upload."""
KEEP_UPLOADS_S = 24 * 3600.0
"""An upload nobody has touched for this long is dropped."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Whether `text` is a lower-case hex sha256."""
    return _DIGEST.fullmatch(text) is not None


def check_digest(digest: str) -> str:
    """Give `digest` back if it is a lower-case hex sha256.

    Raises:
        NotFound: it is not: such content cannot exist, and the text must not become a path.
    """
    if not is_digest(digest):
        raise NotFound("no content has this digest", actual=digest[:80], limit="64 hex digits")
    return digest


class BlobStore(Protocol):
    """What the service needs of a store of immutable bytes.  Thread-safe."""

    spool_dir: Path

    def adopt(self, spooled: Path, ref: BlobRef) -> None:
        """Make a complete spooled file durable as `ref` and remove it; content may exist."""
        ...

    def head(self, digest: str) -> int | None:
        """Give the size in bytes, or None when the content is not here."""
        ...

    def open_range(self, digest: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Yield the content (or a range of it) in chunks of at most `CHUNK_BYTES`.

        Raises:
            NotFound: at the call, not at the first chunk.
        """
        ...

    def delete(self, digest: str, *, older_than_s: float = 0.0) -> bool:
        """Remove content unless it was stored (again) less than `older_than_s` ago."""
        ...

    def list_digests(self) -> Iterator[str]:
        """Yield every stored digest in sorted order."""
        ...

    def presign_get(self, digest: str, expires_s: int, file_name: str) -> str | None:
        """Give a URL from which a client may fetch directly, or None if the store has none."""
        ...


class BlobWriter:
    """Receives bytes, hashes them on the way, and commits them under their digest.

    Use as a context manager: leaving it without `commit` drops the spooled bytes.
    """

    def __init__(self, store: BlobStore, *, limit_bytes: int, media_type: str) -> None:
        store.spool_dir.mkdir(parents=True, exist_ok=True)
        self._store = store
        self._limit_bytes = limit_bytes
        self._media_type = media_type
        self._hash = sha256()
        self._path = store.spool_dir / f"{secrets.token_hex(16)}.part"
        self._file: BinaryIO = self._path.open("xb")
        self._writeback = EarlyWriteback(self._file.fileno())
        self.size_bytes = 0

    @property
    def digest(self) -> str:
        """The sha256 of what was written so far."""
        return self._hash.hexdigest()

    def write(self, chunk: bytes | memoryview) -> None:
        """Append a chunk.

        Raises:
            TooLarge: the content is over the limit.
        """
        size = self.size_bytes + len(chunk)
        if size > self._limit_bytes:
            raise TooLarge(
                f"the content is over the limit of {self._limit_bytes} bytes",
                limit=self._limit_bytes,
                actual=size,
            )
        self._file.write(chunk)
        self._hash.update(chunk)
        self.size_bytes = size
        self._writeback.reached(size)

    def commit(
        self, *, expected_sha256: str | None = None, expected_bytes: int | None = None
    ) -> BlobRef:
        """Make the content durable.

        Raises:
            DigestMismatch: the received bytes are not what the sender declared.
        """
        digest = self.digest
        if expected_bytes is not None and expected_bytes != self.size_bytes:
            raise DigestMismatch(
                "the received length is not the declared one",
                limit=expected_bytes,
                actual=self.size_bytes,
            )
        if expected_sha256 is not None and expected_sha256 != digest:
            raise DigestMismatch(
                "the received bytes do not have the declared sha256",
                limit=expected_sha256,
                actual=digest,
            )
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        ref = BlobRef(digest, self.size_bytes, self._media_type)
        self._store.adopt(self._path, ref)
        return ref

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        with suppress(OSError):  # on a full disk closing fails, too, and what is dropped may
            self._file.close()
        self._path.unlink(missing_ok=True)


def put_bytes(store: BlobStore, data: bytes, media_type: str) -> BlobRef:
    """Store a small value."""
    with BlobWriter(store, limit_bytes=len(data), media_type=media_type) as writer:
        writer.write(data)
        return writer.commit()


def put_stream(store: BlobStore, source: BinaryIO, limit_bytes: int, media_type: str) -> BlobRef:
    """Store everything `source` yields.

    Raises:
        TooLarge: the source is over the limit.
    """
    with BlobWriter(store, limit_bytes=limit_bytes, media_type=media_type) as writer:
        while chunk := source.read(CHUNK_BYTES):
            writer.write(chunk)
        return writer.commit()


def read_bytes(store: BlobStore, digest: str) -> bytes:
    """Read a small value and check it against its digest.

    Raises:
        NotFound: it is not in the store.
        DigestMismatch: the stored bytes are damaged.
    """
    data = b"".join(store.open_range(digest))
    actual = sha256(data).hexdigest()
    if actual != digest:
        raise DigestMismatch("stored content is damaged", limit=digest, actual=actual)
    return data


def copy_to(store: BlobStore, digest: str, target: Path) -> int:
    """Copy content to a new file, checking its digest; give the number of bytes.

    A copy, not a link: ONNX refuses hard links for external data, and the store must stay intact.

    Raises:
        NotFound: it is not in the store.
        DigestMismatch: the stored bytes are damaged.
    """
    running = sha256()
    size = 0
    with target.open("xb") as file:
        for chunk in store.open_range(digest):
            file.write(chunk)
            running.update(chunk)
            size += len(chunk)
    if running.hexdigest() != digest:
        target.unlink()
        raise DigestMismatch("stored content is damaged", limit=digest, actual=running.hexdigest())
    return size


def sweep_spool(spool_dir: Path, older_than_s: float) -> int:
    """Delete spooled files that no writer has touched for a while; give how many.

    Unfinished uploads outlive their server: they stay for KEEP_UPLOADS_S at least.
    """
    removed = 0
    limit = time.time() - older_than_s
    for path in sorted(spool_dir.glob("*.part")):
        if _touched(path) <= limit:
            path.unlink(missing_ok=True)
            removed += 1
    return removed + sweep_uploads(spool_dir / UPLOADS, max(older_than_s, KEEP_UPLOADS_S))


def sweep_uploads(folder: Path, older_than_s: float) -> int:
    """Delete unfinished uploads that nobody has touched for a while, and what a crash has left of
    one; give how many files."""
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*")):
        files.setdefault(path.stem, []).append(path)
    limit = time.time() - older_than_s
    removed = 0
    for paths in files.values():
        if max(map(_touched, paths)) <= limit:
            for path in paths:
                path.unlink(missing_ok=True)
                removed += 1
    return removed


def _touched(path: Path) -> float:
    """When it was last written; now, where somebody has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
