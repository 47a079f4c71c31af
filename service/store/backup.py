"""A whole store in one file: the database as of one moment, and all content that it names.

A tar archive: `backup.json`, then `blobs/DIGEST`, the database last, so that an archive that was
cut off has none and is refused.  The service may run meanwhile: the database is copied as of one
moment, and content that it names stays for a day after its last row is gone.
"""

from __future__ import annotations

import io
import json
import os
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, cast

from sqlalchemy import text
from sqlalchemy.engine import make_url

from service.errors import Conflict, Malformed
from service.settings import Settings
from service.store.blobs import BlobStore, BlobWriter, is_digest
from service.store.pg_programs import run_program
from service.store.session import Database, current_revision, is_sqlite, migrate

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

FORMAT = 1
_ABOUT, _BLOBS, _DATABASE = "backup.json", "blobs/", "database"
_MOST_ABOUT_BYTES = 65_536
_COPY_BYTES = 1 << 20
_REMEDY = "Take a file that `tilewright backup` wrote, to its end."
_ALL_BLOBS = "SELECT sha256, media_type FROM blob ORDER BY sha256"


@dataclass(frozen=True, slots=True)
class Copied:
    """What went into a backup, or came out of one."""

    blobs: int
    size_bytes: int
    """Of all content."""
    lost: tuple[str, ...]
    """Digests of content that is not in the store, or damaged."""
    revision: str
    """Schema of the database in the backup."""


class _Content(io.RawIOBase):
    """A blob as a file, hashed on its way."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""
        self.hash = sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        room = memoryview(buffer).cast("B")
        if not self._rest:
            self._rest = next(self._chunks, b"")
            self.hash.update(self._rest)
        count = min(len(room), len(self._rest))
        room[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def write_backup(settings: Settings, database: Database, blobs: BlobStore, target: Path) -> Copied:
    """Write everything to a new file.

    Cost: reads all content once.

    Raises:
        Conflict: the file exists.
        Unavailable: pg_dump is not installed, or failed.
        FileNotFoundError: there is no database.
    """
    if target.exists():
        raise Conflict(f"{target} exists", remedy="Name a new file; none is written over.")
    part = target.with_name(f"{target.name}.part")
    try:
        with (
            TemporaryDirectory(dir=target.parent, prefix=".backup-") as folder,
            part.open("wb") as file,
        ):
            copy = Path(folder) / _DATABASE
            digests = _copy_database(settings.database_url, database, copy)
            revision = current_revision(settings.database_url) or ""
            with tarfile.open(fileobj=file, mode="w") as archive:
                _add_about(archive, settings, revision)
                copied = _add_blobs(archive, blobs, digests, revision)
                archive.add(copy, _DATABASE, filter=_plain)
            file.flush()
            os.fsync(file.fileno())
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    return copied


def _copy_database(url: str, database: Database, copy: Path) -> list[tuple[str, str]]:
    """Copy the database as of one moment; give all content that it names, with its media type."""
    if is_sqlite(url):
        path = Path(make_url(url).database or "")
        if not path.is_file():
            raise FileNotFoundError(2, "there is no database", str(path))
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as made:
            source.backup(made)
            return [(digest, media) for digest, media in made.execute(_ALL_BLOBS)]
    engine = database.engine.execution_options(isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        snapshot = connection.scalar(text("SELECT pg_export_snapshot()"))
        found = connection.execute(text(_ALL_BLOBS)).all()
        run_program(
            "pg_dump", "--format=custom", "--no-owner", "--no-privileges",
            f"--snapshot={snapshot}", f"--file={copy}", url=url,
        )  # fmt: skip
    return [(digest, media) for digest, media in found]


def _add_about(archive: tarfile.TarFile, settings: Settings, revision: str) -> None:
    kind = "sqlite" if is_sqlite(settings.database_url) else "postgresql"
    document = {"format": FORMAT, "database": kind, "schema": revision}
    data = json.dumps(document, sort_keys=True).encode()
    info = tarfile.TarInfo(_ABOUT)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def _add_blobs(
    archive: tarfile.TarFile, blobs: BlobStore, digests: list[tuple[str, str]], revision: str
) -> Copied:
    size_bytes, lost = 0, []
    for digest, _ in digests:
        size = blobs.head(digest)
        if size is None:
            lost.append(digest)
            continue
        info = tarfile.TarInfo(f"{_BLOBS}{digest}")
        info.size, info.mode = size, 0o444
        content = _Content(blobs.open_range(digest))
        archive.addfile(info, io.BufferedReader(cast("io.RawIOBase", content), _COPY_BYTES))
        if content.hash.hexdigest() != digest:
            lost.append(digest)
        size_bytes += size
    return Copied(len(digests) - len(lost), size_bytes, tuple(lost), revision)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def restore_backup(settings: Settings, blobs: BlobStore, source: Path) -> Copied:
    """Fill an empty store from a backup, and bring its schema to that of this release.

    The database comes last: what is interrupted before leaves content that nobody refers to, and
    can be done again.

    Raises:
        Conflict: there is a database already, or it is of another kind than the backup's.
        Malformed: the file is no whole backup.
    """
    _check_empty(settings.database_url)
    count, size_bytes = 0, 0
    lost: list[str] = []
    try:
        with tarfile.open(source, "r:") as archive:
            members = iter(archive)
            about = _about(archive, next(members, None), settings)
            for member in members:
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    raise Malformed(f"{member.name[:200]!r} is no plain file", remedy=_REMEDY)
                if member.name == _DATABASE:
                    _restore_database(settings.database_url, content)
                    migrate(settings.database_url)
                    return Copied(count, size_bytes, tuple(lost), str(about["schema"]))
                digest = member.name.removeprefix(_BLOBS)
                if member.name != f"{_BLOBS}{digest}" or not is_digest(digest):
                    raise Malformed(
                        f"{member.name[:200]!r} is nothing that a backup holds", remedy=_REMEDY
                    )
                if _take(blobs, digest, content, member.size):
                    count, size_bytes = count + 1, size_bytes + member.size
                else:
                    lost.append(digest)
    except tarfile.TarError as error:
        raise Malformed(f"{source} is no whole backup: {error}", remedy=_REMEDY) from error
    raise Malformed(f"{source} ends before its database", remedy=_REMEDY)


def _check_empty(url: str) -> None:
    path = Path(make_url(url).database or "") if is_sqlite(url) else None
    if path.exists() if path is not None else current_revision(url) is not None:
        raise Conflict(
            "there is a database already, and nothing is written over",
            actual=str(path) if path is not None else make_url(url).database,
            remedy="Restore to an empty data directory, or an empty database.",
        )


def _about(
    archive: tarfile.TarFile, first: tarfile.TarInfo | None, settings: Settings
) -> dict[str, object]:
    content = None if first is None or first.name != _ABOUT else archive.extractfile(first)
    try:
        about = json.loads(b"" if content is None else content.read(_MOST_ABOUT_BYTES))
        found = (about["format"], about["database"], about["schema"])
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed("this is no backup of Tilewright", remedy=_REMEDY) from error
    if found[0] != FORMAT:
        raise Malformed(
            f"the backup has format {found[0]!r}",
            limit=FORMAT,
            actual=str(found[0]),
            remedy="Restore it with the release that wrote it.",
        )
    kind = "sqlite" if is_sqlite(settings.database_url) else "postgresql"
    if found[1] != kind:
        raise Conflict(
            "the backup is of another kind of database", limit=kind, actual=str(found[1]),
            remedy="Set TILEWRIGHT_DATABASE_URL to a database of the backup's kind.",
        )  # fmt: skip
    return dict(about)


def _take(blobs: BlobStore, digest: str, content: IO[bytes], size: int) -> bool:
    """Store content under its digest; False where it has another."""
    with BlobWriter(blobs, limit_bytes=size, media_type="application/octet-stream") as writer:
        while chunk := content.read(_COPY_BYTES):
            writer.write(chunk)
        if writer.digest != digest:
            return False
        writer.commit()
    return True


def _restore_database(url: str, content: IO[bytes]) -> None:
    with _beside(url) as copy:
        with copy.open("xb") as file:
            while chunk := content.read(_COPY_BYTES):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if is_sqlite(url):
            copy.rename(make_url(url).database or "")
            return
        run_program(
            "pg_restore", "--no-owner", "--no-privileges", "--single-transaction",
            "--exit-on-error", str(copy), url=url,
        )  # fmt: skip


@contextmanager
def _beside(url: str) -> Iterator[Path]:
    """A new file: beside the database where that is one, so that it can be renamed."""
    home = Path(make_url(url).database or "").parent if is_sqlite(url) else None
    if home is not None:
        home.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=home, prefix=".restore-") as folder:
        yield Path(folder) / _DATABASE
