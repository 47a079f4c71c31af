"""Blobs in an S3 bucket, through the optional `obstore` package.

Keys are `<prefix>/cas/sha256/ab/cd/<hex>`.  An object appears whole or not at all, and equal keys
hold equal bytes, so writing one twice is harmless.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from service.errors import NotFound, Unavailable
from service.store.blobs import CHUNK_BYTES, check_digest
from service.store.records import BlobRef

if TYPE_CHECKING:
    from obstore.store import S3Config  # exists for type checkers only

_FAULTS = (BaseError, OSError)
"""obstore maps missing buckets and refused credentials to the built-in OS errors."""


def _refused(what: str, error: Exception) -> Unavailable:
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return Unavailable(f"the blob store refused {what}: {first_line[:300]}")


class S3BlobStore:
    """Blobs as objects below one prefix of a bucket.  Credentials come from the environment."""

    def __init__(
        self,
        *,
        bucket: str,
        prefix: str,
        endpoint: str | None,
        region: str,
        spool_dir: Path,
        credentials: tuple[str, str] | None = None,
    ) -> None:
        self.spool_dir = spool_dir
        self._prefix = f"{prefix}/cas/sha256" if prefix else "cas/sha256"
        config: dict[str, Any] = {"region": region}
        if endpoint is not None:
            config["endpoint"] = endpoint
            config["virtual_hosted_style_request"] = False
        if credentials is not None:
            config["access_key_id"], config["secret_access_key"] = credentials
        plain = endpoint is not None and endpoint.startswith("http://")
        self._store = S3Store(
            bucket,
            config=cast("S3Config", config),
            client_options={"allow_http": plain, "timeout": "30s", "connect_timeout": "5s"},
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=60)},
        )

    def _key(self, digest: str) -> str:
        check_digest(digest)
        return f"{self._prefix}/{digest[:2]}/{digest[2:4]}/{digest}"

    def adopt(self, spooled: Path, ref: BlobRef) -> None:
        # Written even if present: the new modification time keeps the collector away from it.
        try:
            with spooled.open("rb") as file:
                obstore.put(self._store, self._key(ref.sha256), file)
        except _FAULTS as error:
            raise _refused("a write", error) from error
        spooled.unlink()

    def head(self, digest: str) -> int | None:
        try:
            return int(obstore.head(self._store, self._key(digest))["size"])
        except (FileNotFoundError, NotFound):
            return None
        except _FAULTS as error:
            raise _refused("a look-up", error) from error

    def open_range(self, digest: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        size = self.head(digest)
        if size is None:
            raise NotFound("the content is not in the store", actual=digest)
        end = size if length is None else min(size, start + length)
        return self._chunks(digest, start, end)

    def _chunks(self, digest: str, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            stop = min(end, start + 8 * CHUNK_BYTES)
            try:
                piece = obstore.get_range(self._store, self._key(digest), start=start, end=stop)
            except FileNotFoundError as error:
                raise NotFound("the content is not in the store", actual=digest) from error
            except _FAULTS as error:
                raise _refused("a read", error) from error
            data = bytes(piece)
            for offset in range(0, len(data), CHUNK_BYTES):
                yield data[offset : offset + CHUNK_BYTES]
            start = stop

    def delete(self, digest: str, *, older_than_s: float = 0.0) -> bool:
        try:
            meta = obstore.head(self._store, self._key(digest))
            age = (datetime.now(UTC) - meta["last_modified"]).total_seconds()
            if age < older_than_s:
                return False
            obstore.delete(self._store, self._key(digest))
        except FileNotFoundError:
            return False
        except _FAULTS as error:
            raise _refused("a delete", error) from error
        return True

    def list_digests(self) -> Iterator[str]:
        try:
            found = [
                str(meta["path"]).rsplit("/", 1)[-1]
                for batch in obstore.list(self._store, prefix=self._prefix)
                for meta in batch
            ]
        except _FAULTS as error:
            raise _refused("a listing", error) from error
        return iter(sorted(found))

    def presign_get(self, digest: str, expires_s: int, file_name: str) -> str | None:
        del file_name  # the bucket's own headers apply; the API proxies when a name matters
        return str(
            obstore.sign(
                self._store, "GET", self._key(digest), expires_in=timedelta(seconds=expires_s)
            )
        )
