"""The compiler's cache port on the service's database.

Small values live in their row, large ones in the blob store.  A value that cannot be read any more
(blob lost or damaged) is a miss, and its row goes away, so that the next compile fills it again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256

from sqlalchemy.exc import DBAPIError

from service.errors import DigestMismatch, NotFound, Unavailable
from service.keys import LOCAL
from service.log import get_logger
from service.store.blobs import BlobStore, put_bytes, read_bytes
from service.store.repos import cache
from service.store.session import Database
from worker.compiler.cache import CacheKey, CacheKind

_MEDIA_TYPE = "application/octet-stream"
_MOST_AHEAD = 1 << 10
"""Entries that are read at once: with inline values of 64 KiB, 64 MiB at the most."""
Row = tuple[bytes | None, str | None]
"""An entry's value, or the blob that has it."""


class StoreCache:
    """A `Cache` for one job.  Faults of the store are misses: caching must never fail a job.

    A warm compile has some tens of small questions, each a transaction: what the last job `like`
    this one found is read at once, with the first question.  That is a guess; what it leaves out is
    asked for when it is needed.  Used by one thread; `close` it.
    """

    def __init__(
        self, database: Database, blobs: BlobStore, *, job_id: str | None, inline_bytes: int,
        owner: str = LOCAL, like: CacheKey | None = None,
    ) -> None:  # fmt: skip
        """`owner`: the project whose entries it reads and fills."""
        self._database = database
        self._asker = database.asker()
        self._blobs = blobs
        self._job_id = job_id
        self._inline_bytes = inline_bytes
        self.owner = owner
        self._like = like
        self._expected: tuple[str, ...] | None = None
        """What was read ahead; None until something is asked."""
        self._ahead: Mapping[str, Row] = {}
        self._found: set[str] = set()
        self.hits: Counter[str] = Counter()
        """Hits by digest, not yet written: counting each at once would cost a commit per hit."""

    def get(self, key: CacheKey) -> bytes | None:
        digest, blob = key.digest, None
        try:
            self._read_ahead()
            found = self._ahead.get(digest)
            if found is None:
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
            self._found.add(digest)
        return value

    def _read_ahead(self) -> None:
        if self._expected is not None or self._like is None:
            return
        self._expected = ()
        reads = self._like.digest
        found = self._asker.ask(lambda session: cache.load(session, reads, self.owner))
        if found is None or found[0] is None:
            return
        self._expected = tuple(json.loads(found[0]))
        expected = self._expected
        self._ahead = self._asker.ask(
            lambda session: cache.load_many(session, expected, self.owner)
        )
        self.hits[reads] += 1

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

    def keep_reads(self) -> None:
        """Let the next job like this one have at once what this one found."""
        like, found = self._like, tuple(sorted(self._found))
        if like is None or found == self._expected or not 1 < len(found) <= _MOST_AHEAD:
            return
        try:
            with self._database.write() as session:
                cache.drop(session, like.digest, self.owner)
                cache.store(
                    session, digest=like.digest, kind=str(like.kind), fields=like.fields,
                    value=json.dumps(found).encode(), job_id=self._job_id, owner=self.owner,
                )  # fmt: skip
        except DBAPIError as error:
            get_logger().warning("what was asked for is not kept", error=str(error))

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
        self._ahead = {name: row for name, row in self._ahead.items() if name != digest}


def reads_of(model: str, machine: str, asked: Mapping[str, object]) -> CacheKey:
    """What jobs have in common that find the same things in the cache: digests of the model's file
    and of the machine, and all else that was asked for."""
    said = sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return CacheKey(CacheKind.READS, (("model", model), ("machine", machine), ("asked", said)))
