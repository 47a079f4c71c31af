"""Blobs in a directory of a local disk."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from service.errors import NotFound
from service.store.blobs import CHUNK_BYTES, check_digest, is_digest
from service.store.records import BlobRef


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
        return iter(sorted(path.name for path in base.glob("??/??/*") if is_digest(path.name)))

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
