"""Deterministic zip archives: same members, same bytes.

Fixed timestamps, modes and compression level; members in the order given.  Reading refuses unsafe
names and checks every digest while it streams.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO

from worker.compiler.errors import InputError

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644 << 16
_LEVEL = 1
_CHUNK_BYTES = 1 << 20
_BIG_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive."""

    name: str
    chunks: Iterable[bytes]
    """Consumed once, in order."""
    size_bytes: int
    stored: bool = False
    """True: kept uncompressed (float weights do not shrink)."""


@dataclass(frozen=True, slots=True)
class Written:
    """What went into the archive under one name."""

    name: str
    sha256: str
    size_bytes: int


class ArchiveWriter:
    """Writes members one by one into a file that appears only when it is complete."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.written: list[Written] = []

    def add(self, member: Member) -> None:
        """Stream one member into the archive."""
        entry = zipfile.ZipInfo(member.name, _EPOCH)
        entry.create_system = 3
        entry.external_attr = _MODE
        entry.compress_type = zipfile.ZIP_STORED if member.stored else zipfile.ZIP_DEFLATED
        entry.file_size = member.size_bytes
        if not member.stored:
            data = b"".join(member.chunks)
            self._archive.writestr(entry, data, compresslevel=_LEVEL)
            self.written.append(Written(member.name, sha256(data).hexdigest(), len(data)))
            return
        digest = sha256()
        size = 0
        with self._archive.open(entry, "w", force_zip64=member.size_bytes >= _BIG_BYTES) as out:
            for chunk in member.chunks:
                digest.update(chunk)
                size += len(chunk)
                out.write(chunk)
        self.written.append(Written(member.name, digest.hexdigest(), size))


@contextmanager
def create_archive(path: Path) -> Iterator[ArchiveWriter]:
    """Write an archive beside `path` and rename it into place at the end."""
    temporary = path.with_name(path.name + ".part")
    try:
        with zipfile.ZipFile(
            temporary, "w", zipfile.ZIP_DEFLATED, allowZip64=True, compresslevel=_LEVEL
        ) as archive:
            yield ArchiveWriter(archive)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """Hex sha256 of a file."""
    digest = sha256()
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def damaged(message: str) -> InputError:
    """The refusal of a bundle."""
    return InputError("TW-RUN-001", message)


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive for reading.

    Raises:
        InputError: TW-RUN-001 when it is not a readable archive, or a name or size is unsafe.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if len(set(names)) != len(names):
                raise damaged("the bundle names a member twice")
            for name in names:
                if name.startswith("/") or "\\" in name or ".." in name.split("/"):
                    raise damaged(f"the bundle has an unsafe member name {name!r}")
            yield archive
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise damaged(f"the bundle cannot be read: {error}") from error


def read_member(archive: zipfile.ZipFile, name: str, limit_bytes: int) -> bytes:
    """One small member whole.

    Raises:
        InputError: TW-RUN-001 when it is missing, damaged or larger than `limit_bytes`.
    """
    with open_member(archive, name) as source:
        content = source.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise damaged(f"member {name} is larger than {limit_bytes} bytes")
    return content


@contextmanager
def open_member(archive: zipfile.ZipFile, name: str) -> Iterator[IO[bytes]]:
    """Stream one member.

    Raises:
        InputError: TW-RUN-001 when it is missing or damaged.
    """
    try:
        with archive.open(name) as source:
            yield source
    except KeyError as error:
        raise damaged(f"the bundle has no {name}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise damaged(f"member {name} is damaged: {error}") from error
