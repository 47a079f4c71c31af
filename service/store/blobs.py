"""Content-addressed storage: bytes under the sha256 of what they are.

Writers spool to a local file while hashing; `commit` makes the content durable under its digest.
Nothing is ever overwritten: equal digests are equal bytes.  Two back ends: a local directory
(`cas/sha256/ab/cd/<hex>`) and S3 through the optional `obstore` package (`service.store.s3`).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from service.errors import DigestMismatch, NotFound, TooLarge, Unavailable
from service.settings import Settings
from service.store.records import BlobRef
from service.store.writeback import EarlyWriteback

CHUNK_BYTES = 1024 * 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_digest(digest: str) -> str:
    """Give `digest` back if it is a lower-case hex sha256.

    Raises:
        NotFound: it is not: such content cannot exist, and the text must not become a path.
    """
    if not _DIGEST.fullmatch(digest):
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
        digest = self._hash.hexdigest()
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


class LocalBlobStore:
    """Blobs as read-only files below one directory of a local disk."""

    def __init__(self, root: Path, spool_dir: Path) -> None:
        self.root = root
        self.spool_dir = spool_dir

    def path(self, digest: str) -> Path:
        """Where the content of `digest` is, or would be."""
        check_digest(digest)
        return self.root / "cas" / "sha256" / digest[:2] / digest[2:4] / digest

    def adopt(self, spooled: Path, ref: BlobRef) -> None:
        target = self.path(ref.sha256)
        if target.exists() and target.stat().st_size == ref.size_bytes:
            # A fresh modification time keeps the collector away from what is used again.
            os.utime(target)
            spooled.unlink()
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        spooled.chmod(0o444)
        try:
            spooled.replace(target)
        except OSError:
            # The spool may be another file system: copy beside the target, then rename.
            beside = target.with_name(f".{ref.sha256}.{secrets.token_hex(8)}")
            shutil.copyfile(spooled, beside)
            beside.chmod(0o444)
            with beside.open("rb") as file:
                os.fsync(file.fileno())
            beside.replace(target)
            spooled.unlink()
        _sync_directory(target.parent)

    def head(self, digest: str) -> int | None:
        try:
            return self.path(digest).stat().st_size
        except (FileNotFoundError, NotFound):
            return None

    def open_range(self, digest: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        path = self.path(digest)
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise NotFound(
                "the content is not in the store", actual=digest, limit=str(path.name)
            ) from error
        return _chunks(file, start, length)

    def delete(self, digest: str, *, older_than_s: float = 0.0) -> bool:
        path = self.path(digest)
        try:
            if time.time() - path.stat().st_mtime < older_than_s:
                return False
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def list_digests(self) -> Iterator[str]:
        base = self.root / "cas" / "sha256"
        return iter(
            sorted(path.name for path in base.glob("??/??/*") if _DIGEST.fullmatch(path.name))
        )

    def presign_get(self, digest: str, expires_s: int, file_name: str) -> str | None:
        del digest, expires_s, file_name
        return None


def _chunks(file: BinaryIO, start: int, length: int | None) -> Iterator[bytes]:
    with file:
        file.seek(start)
        left = length
        while left is None or left > 0:
            chunk = file.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
            if not chunk:
                return
            if left is not None:
                left -= len(chunk)
            yield chunk


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _faults_as_unavailable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the blob store cannot be used: {error}") from error


def open_blob_store(settings: Settings) -> BlobStore:
    """Open the store that `settings.blob_url` names (`file://` or `s3://bucket/prefix`).

    Raises:
        Unavailable: the directory cannot be made, or the S3 client is not installed.
    """
    url = urlsplit(settings.blob_url)
    with _faults_as_unavailable():
        if url.scheme == "s3":
            from service.store.s3 import S3BlobStore  # optional dependency

            return S3BlobStore(
                bucket=url.netloc,
                prefix=url.path.strip("/"),
                endpoint=settings.s3_endpoint,
                region=settings.s3_region,
                spool_dir=settings.spool_dir,
            )
        root = Path(unquote(url.path))
        root.mkdir(parents=True, exist_ok=True)
        # Spool beside the content, so that adopting a file is one atomic rename.
        return LocalBlobStore(root, root / "spool")


def sweep_spool(spool_dir: Path, older_than_s: float) -> int:
    """Delete spooled files that no writer has touched for a while; give how many."""
    if not spool_dir.is_dir():
        return 0
    limit = time.time() - older_than_s
    removed = 0
    for path in sorted(spool_dir.glob("*.part")):
        try:
            if path.stat().st_mtime <= limit:
                path.unlink()
                removed += 1
        except FileNotFoundError:
            continue
    return removed
