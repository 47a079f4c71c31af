"""What a verb needs of a local SQLite store before SQLAlchemy could even be imported.

Read-only but for hit counts.  A store of another kind, or with another schema, is left to the API.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

_PREFIX = "sqlite:///"
_COLUMNS = ("id", "name", "machine_digest", "created")
_STORED = f"SELECT {', '.join(_COLUMNS)} FROM hw_spec ORDER BY created DESC, id DESC LIMIT ?"
_ENTRY = "SELECT value, blob_sha256 FROM cache_entry WHERE digest = ?"
_HITS = (
    "UPDATE cache_entry SET hits = hits + ?,"
    " last_used = (julianday('now') - 2440587.5) * 86400.0 WHERE digest = ?"
)
"""The clock is `tables.db_now`'s."""
_BUSY_S = 15.0


def stored_hardware(url: str, *, limit: int) -> list[dict[str, Any]] | None:
    """Stored specs as `GET /v1/hardware` lists them, newest first; none where no store is yet.

    None: only the API can say, because the store is no SQLite file, is busy, or has a schema that
    must be migrated first.
    """
    path = _file_of(url)
    if path is None:
        return None
    rows = _rows(path, _STORED, limit) if path.exists() else []
    return None if rows is None else [dict(zip(_COLUMNS, row, strict=True)) for row in rows]


def schema_revision(url: str) -> str | None:
    """Revision of the schema; None: there is none, or it cannot be told from here."""
    path = _file_of(url)
    rows = _rows(path, "SELECT version_num FROM alembic_version") if path else None
    return str(rows[0][0]) if rows and len(rows) == 1 else None


class CacheGlance:
    """Cache entries of one store, found by one connection as long as they are all that is asked."""

    def __init__(self, url: str) -> None:
        """`url`: of a store whose schema is the present one."""
        path = _file_of(url)
        self._store: sqlite3.Connection | None = None
        if path is not None:
            try:
                # Each statement is a transaction of its own: entries of others are seen at once.
                self._store = sqlite3.connect(
                    f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None,
                    timeout=_BUSY_S,
                )  # fmt: skip
            except sqlite3.Error:
                return

    @property
    def is_open(self) -> bool:
        """Whether it can tell; once it cannot, it does not try again."""
        return self._store is not None

    def load(self, digest: str) -> tuple[bytes | None, str | None] | None:
        """(inline bytes, digest of a blob) of an entry, one of them None; None: there is none, or,
        where it is not open any more, only the store can say."""
        if self._store is None:
            return None
        try:
            row = self._store.execute(_ENTRY, (digest,)).fetchone()
        except sqlite3.Error:
            self.close()
            return None
        return None if row is None else (row[0], row[1])

    def count(self, hits: Iterable[tuple[str, int]]) -> bool:
        """Count hits by digest, as `repos.cache.touch`; False: nothing was written."""
        if self._store is None:
            return False
        try:
            with self._store:
                self._store.execute("BEGIN IMMEDIATE")
                self._store.executemany(_HITS, [(count, digest) for digest, count in hits])
        except sqlite3.Error:
            return False
        return True

    def close(self) -> None:
        """Give the connection back."""
        if self._store is not None:
            self._store.close()
            self._store = None


def _file_of(url: str) -> Path | None:
    plain = url.startswith(_PREFIX) and "?" not in url
    return Path(url.removeprefix(_PREFIX)) if plain else None


def _rows(path: Path, query: str, *values: int) -> list[tuple[Any, ...]] | None:
    """What the store answers; None when it cannot."""
    try:
        store = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
        try:
            return store.execute(query, values).fetchall()
        finally:
            store.close()
    except sqlite3.Error:
        return None
