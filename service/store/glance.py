"""What a verb needs of a local SQLite store before SQLAlchemy could even be imported.

Read-only.  A store of another kind, or with another schema, is left to the API.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

_PREFIX = "sqlite:///"
_COLUMNS = ("id", "name", "machine_digest", "created")
_STORED = f"SELECT {', '.join(_COLUMNS)} FROM hw_spec ORDER BY created DESC, id DESC LIMIT ?"


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
