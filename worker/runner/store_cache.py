"""The compiler's cache port on the service's database.

Small values live in their row, large ones in the blob store.  A value that cannot be read any more
(blob lost or damaged) is a miss, and its row goes away, so that the next compile fills it again.
"""

from __future__ import annotations

from collections import Counter

from sqlalchemy.exc import DBAPIError

from service.errors import DigestMismatch, NotFound, Unavailable
from service.keys import LOCAL
from service.log import get_logger
from service.store.blobs import BlobStore, put_bytes, read_bytes
from service.store.repos import cache
from service.store.session import Database
from worker.compiler.cache import CacheKey

_MEDIA_TYPE = "application/octet-stream"


class StoreCache:
    """A `Cache` for one job.  Faults of the store are misses: caching must never fail a job.

    Used by one thread; `close` it.
    """

    def __init__(
        self, database: Database, blobs: BlobStore, *, job_id: str | None, inline_bytes: int,
        owner: str = LOCAL,
    ) -> None:  # fmt: skip
        """`owner`: the project whose entries it reads and fills."""
        self._database = database
        self._asker = database.asker()
        self._blobs = blobs
        self._job_id = job_id
        self._inline_bytes = inline_bytes
        self.owner = owner
        self.hits: Counter[str] = Counter()
        """Hits by digest, not yet written: counting each at once would cost a commit per hit."""

    def get(self, key: CacheKey) -> bytes | None:
        digest = key.digest
        try:
            found = self._asker.ask(lambda session: cache.load(session, digest, self.owner))
            if found is None:
                return None
            value, blob = found
            if value is None and blob is not None:
                value = read_bytes(self._blobs, blob)
        except (NotFound, DigestMismatch) as error:
            get_logger().warning("cached value lost", digest=digest, error=error.message)
            self._drop(digest, blob)
            return None
        except (DBAPIError, Unavailable, OSError) as error:
            get_logger().warning("cache unavailable", digest=digest, error=str(error))
            return None
        if value is not None:
            self.hits[digest] += 1
        return value

    def put(self, key: CacheKey, value: bytes) -> None:
        try:
            stored = (
                value
                if len(value) <= self._inline_bytes
                else put_bytes(self._blobs, value, _MEDIA_TYPE)
            )
            with self._database.write() as session:
                cache.store(
                    session,
                    digest=key.digest,
                    kind=str(key.kind),
                    fields=key.fields,
                    value=stored,
                    job_id=self._job_id,
                    owner=self.owner,
                )
        except (DBAPIError, Unavailable, OSError) as error:
            get_logger().warning("cache unavailable", digest=key.digest, error=str(error))

    def flush_hits(self) -> None:
        """Write the hit counts; counts are statistics, so a fault only loses them."""
        counts, self.hits = self.hits, Counter()
        if not counts:
            return
        try:
            with self._database.write() as session:
                cache.touch(session, counts.items(), self.owner)
        except DBAPIError as error:
            get_logger().warning("hit counts lost", error=str(error))

    def close(self) -> None:
        """Write what was counted, and give back what it asked by."""
        self.flush_hits()
        self._asker.close()

    def _drop(self, digest: str, blob: str | None) -> None:
        if blob is not None:
            # A damaged file would be adopted again as it is: remove the bytes, too.
            self._blobs.delete(blob)
        with self._database.write() as session:
            cache.drop(session, digest, self.owner)
