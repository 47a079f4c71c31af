"""Partial uploads on disk: one data file and one small record each, nothing in memory that matters.

The data file's size is the offset, so a killed server loses only what never reached the disk.  Hash
states are kept while the process lives; after a restart the partial file is hashed again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from service.api.ingest import ONNX_TYPE, ZIP_TYPE, kind_of
from service.api.looks import LOOK_BYTES, FirstLook, NotAModel, look_at_model
from service.api.spool import append_stream, check_declared, hash_file
from service.errors import Conflict, DigestMismatch, NotFound, TooLarge
from service.keys import LOCAL
from service.store.blobs import KEEP_UPLOADS_S, UPLOADS, BlobStore, sweep_uploads
from service.store.ids import new_id
from service.store.records import BlobRef
from service.store.writeback import EarlyWriteback

CHUNK_BYTES = 16 << 20
_ID = re.compile(r"upload_[0-9a-hjkmnp-tv-z]{26}")

_hashers: dict[str, tuple[int, hashlib._Hash]] = {}
"""Running hashes of this process, by upload: (bytes hashed, state)."""


@dataclass(frozen=True, slots=True)
class Upload:
    """One unfinished upload."""

    id: str
    name: str
    offset: int
    size_bytes: int | None
    sha256: str | None
    size_limit_bytes: int
    expires: float


class UploadFolder:
    """A project's unfinished uploads beside one blob store."""

    def __init__(self, blobs: BlobStore, *, limit_bytes: int, project: str) -> None:
        self._project = project
        self._blobs = blobs
        self._limit_bytes = limit_bytes
        self._root = blobs.spool_dir / UPLOADS

    def start(
        self,
        name: str,
        *,
        size_bytes: int | None,
        sha256: str | None,
        before_start: Callable[[Upload], None] | None = None,
    ) -> Upload:
        """Create an empty upload; what `before_start` raises leaves none.

        Raises:
            TooLarge: the announced size is over the limit or the free space.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        self._sweep()
        check_declared(size_bytes, limit_bytes=self._limit_bytes, folder=self._root)
        upload_id = new_id("upload")
        record = {
            "name": name, "size_bytes": size_bytes, "sha256": sha256, "project": self._project,
        }  # fmt: skip
        upload = self._upload(upload_id, record, 0, time.time())
        if before_start is not None:
            before_start(upload)
        self._data(upload_id).touch()
        temporary = self._record(upload_id).with_suffix(".new")
        temporary.write_text(json.dumps(record), encoding="utf-8")
        os.replace(temporary, self._record(upload_id))
        return upload

    def get(self, upload_id: str) -> Upload:
        """Give one upload.

        Raises:
            NotFound: it is unknown, another project's, finished or expired.
        """
        if _ID.fullmatch(upload_id) is None:
            raise NotFound("no such upload", actual=upload_id[:80])
        try:
            record = json.loads(self._record(upload_id).read_text(encoding="utf-8"))
            stat = self._data(upload_id).stat()
        except FileNotFoundError as error:
            raise _gone(upload_id) from error
        if record.get("project", LOCAL) != self._project:
            raise _gone(upload_id)
        return self._upload(upload_id, record, stat.st_size, stat.st_mtime)

    def held_bytes(self) -> int:
        """Bytes of the project's unfinished uploads.  Cost: a file read for each of anybody's."""
        held = 0
        for path in self._root.glob("*.json") if self._root.exists() else ():
            try:
                held += self.get(path.stem).offset
            except NotFound:
                continue  # another project's, or finished meanwhile
        return held

    def _upload(
        self, upload_id: str, record: Mapping[str, Any], offset: int, touched: float
    ) -> Upload:
        return Upload(
            id=upload_id,
            name=record["name"],
            offset=offset,
            size_bytes=record["size_bytes"],
            sha256=record["sha256"],
            size_limit_bytes=min(record["size_bytes"] or self._limit_bytes, self._limit_bytes),
            expires=touched + KEEP_UPLOADS_S,
        )

    async def append(
        self, upload_id: str, offset: int, chunks: AsyncIterator[bytes], *, declared: int | None
    ) -> Upload:
        """Append a chunk; whatever arrives is kept, also when the connection breaks.

        Raises:
            Conflict: `offset` is not the number of bytes received, or another request is writing.
            TooLarge: the upload would pass its announced size or the limit.
            NotAModel: its first bytes are not a model's; it is dropped.
        """
        upload = self.get(upload_id)
        with self._data(upload_id).open("r+b") as target:
            self._lock(target, upload)
            received = target.seek(0, os.SEEK_END)
            if offset != received:
                raise Conflict(
                    f"the upload has {received} bytes, the chunk starts at {offset}",
                    pointer="header:Upload-Offset",
                    limit=received,
                    actual=offset,
                    headers={"Upload-Offset": str(received)},
                    remedy=f"Continue at offset {received}.",
                )
            room = upload.size_limit_bytes - received
            if declared is not None and declared > room:
                raise TooLarge(
                    f"the chunk has {declared} bytes, the upload has room for {room}",
                    limit=room,
                    actual=declared,
                    headers={"Connection": "close"},
                )
            check_declared(declared, limit_bytes=room, folder=self._root)
            hasher = self._hasher(upload_id, received)
            writeback = EarlyWriteback(target.fileno(), received)
            first = FirstLook(look_at_model)
            first.head = os.pread(target.fileno(), LOOK_BYTES, 0)
            first.is_done = len(first.head) == LOOK_BYTES

            def write(piece: bytes) -> None:
                nonlocal received
                first.see(piece)
                target.write(piece)
                hasher.update(piece)
                received += len(piece)
                _hashers[upload_id] = (received, hasher)
                writeback.reached(received)

            try:
                await append_stream(write, chunks, limit_bytes=room, is_known=lambda: first.is_done)
            except NotAModel:
                self._forget(upload_id)
                raise
            finally:
                target.flush()
        return self.get(upload_id)

    def check(self, upload_id: str, expected_sha256: str | None) -> tuple[str, BlobRef, str]:
        """Check that the upload is whole and what was announced: (name, content, kind).

        Raises:
            DigestMismatch: bytes are missing, or the digest differs; the upload is kept.
            Conflict: a chunk is being written.
            NotAModel: nothing was uploaded, or too little to be a model.
        """
        upload = self.get(upload_id)
        path = self._data(upload_id)
        with path.open("r+b") as target:
            self._lock(target, upload)
            size = target.seek(0, os.SEEK_END)
            head = os.pread(target.fileno(), LOOK_BYTES, 0)
            if size == 0:
                look_at_model(head, is_whole=True)
            if upload.size_bytes is not None and size != upload.size_bytes:
                raise DigestMismatch(
                    f"received {size} bytes, {upload.size_bytes} were announced",
                    limit=upload.size_bytes,
                    actual=size,
                    remedy=f"Continue at offset {size}.",
                )
            actual = self._hasher(upload_id, size).hexdigest()
            for announced in (expected_sha256, upload.sha256):
                if announced is not None and announced != actual:
                    raise DigestMismatch(
                        "the uploaded bytes do not have the announced sha256",
                        limit=announced,
                        actual=actual,
                    )
            look_at_model(head, is_whole=size < LOOK_BYTES)
            kind = kind_of(head)
            os.fsync(target.fileno())
        return upload.name, BlobRef(actual, size, ZIP_TYPE if kind == "zip" else ONNX_TYPE), kind

    def finish(self, upload_id: str, ref: BlobRef) -> None:
        """Move a checked upload into the blob store.

        Raises:
            NotFound: it is gone.
            Conflict: a chunk is being written, or was since the check.
        """
        upload = self.get(upload_id)
        path = self._data(upload_id)
        with path.open("r+b") as target:
            self._lock(target, upload)
            size = target.seek(0, os.SEEK_END)
            if size != ref.size_bytes:
                raise Conflict(
                    "the upload has grown since it was checked",
                    limit=ref.size_bytes,
                    actual=size,
                )
            self._blobs.adopt(path, ref)
        self._forget(upload_id)

    def drop(self, upload_id: str) -> None:
        """Delete an upload.

        Raises:
            NotFound: it is unknown.
        """
        self.get(upload_id)
        self._forget(upload_id)

    def _hasher(self, upload_id: str, received: int) -> hashlib._Hash:
        hashed, hasher = _hashers.get(upload_id, (0, hashlib.sha256()))
        if hashed != received:
            hasher = hash_file(self._data(upload_id))
        return hasher

    def _lock(self, target: BinaryIO, upload: Upload) -> None:
        """Keep other requests, also those of other processes, from writing at the same time."""
        try:
            fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                "another request is writing to this upload",
                actual=upload.id,
                headers={"Retry-After": "1"},
                remedy="Wait, ask for the offset, and continue there.",
            ) from error

    def _forget(self, upload_id: str) -> None:
        _hashers.pop(upload_id, None)
        self._record(upload_id).unlink(missing_ok=True)
        self._data(upload_id).unlink(missing_ok=True)

    def _sweep(self) -> None:
        if sweep_uploads(self._root, KEEP_UPLOADS_S):
            for upload_id in [one for one in _hashers if not self._data(one).exists()]:
                _hashers.pop(upload_id, None)

    def _data(self, upload_id: str) -> Path:
        return self._root / f"{upload_id}.data"

    def _record(self, upload_id: str) -> Path:
        return self._root / f"{upload_id}.json"


def _gone(upload_id: str) -> NotFound:
    return NotFound("no such upload, or it is finished", actual=upload_id)
