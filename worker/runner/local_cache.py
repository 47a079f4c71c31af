"""The cache of a local compile: hits come out of SQLite alone, the rest is the store's.

A compile that finds all it asks for needs neither SQLAlchemy nor its tables: importing them and
setting them up takes 0.2 s of CPU, longer than all the entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from service.errors import ServiceError
from service.store.blobs import BlobStore, read_bytes
from service.store.glance import CacheGlance
from worker.compiler.cache import CacheKey

if TYPE_CHECKING:
    from worker.runner.store_cache import StoreCache


class LocalCache:
    """A `Cache` for one job; `open_store` opens the one that can do everything, when it must."""

    def __init__(
        self, glance: CacheGlance, blobs: BlobStore, open_store: Callable[[], StoreCache]
    ) -> None:
        self._glance = glance
        self._blobs = blobs
        self._open_store = open_store
        self._opened: StoreCache | None = None
        self._hits: Counter[str] = Counter()
        """By digest, of entries that the glance found."""

    def get(self, key: CacheKey) -> bytes | None:
        """The stored value, or None; what is lost or damaged is the store's business."""
        digest = key.digest
        found = self._glance.load(digest)
        if found is None:
            return None if self._glance.is_open else self._store.get(key)
        value, blob = found
        if value is None and blob is not None:
            try:
                value = read_bytes(self._blobs, blob)
            except (ServiceError, OSError):
                return self._store.get(key)
        if value is not None:
            self._hits[digest] += 1
        return value

    def put(self, key: CacheKey, value: bytes) -> None:
        """As `StoreCache.put`."""
        self._store.put(key, value)

    def flush_hits(self) -> None:
        """Write the hit counts."""
        counts, self._hits = self._hits, Counter()
        if counts and not self._glance.count(sorted(counts.items())):
            self._store.hits.update(counts)
        if self._opened is not None:
            self._opened.flush_hits()

    @property
    def _store(self) -> StoreCache:
        if self._opened is None:
            self._opened = self._open_store()
        return self._opened
