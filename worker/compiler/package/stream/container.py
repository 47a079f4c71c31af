"""The bytes of a stream: header, directory, tables.  Nothing here knows what a table means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from zlib import crc32

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import InputError
from worker.compiler.package.archive import damaged
from worker.compiler.package.stream.records import (
    CHECKED_FROM,
    DIRECTORY,
    HEADER,
    MAGIC,
    TABLES,
)
from worker.compiler.package.stream.version import STREAM_VERSION

Rows = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, eq=False)
class Container:
    """A stream's tables, with the strings that they number."""

    region: int
    target: int
    function: int
    cores: int
    tables: Mapping[str, Rows]
    """By name: arrays of records, plain arrays where a record has one field.  Read-only."""
    strings: tuple[str, ...]

    def text(self, number: int) -> str:
        """A string by its number.

        Raises:
            InputError: TW-RUN-001, there is none.
        """
        if not 0 <= number < len(self.strings):
            raise damaged(f"the stream names string {number} of {len(self.strings)}")
        return self.strings[number]


def pack(region: int, target: int, function: int, cores: int, tables: Mapping[str, Rows]) -> bytes:
    """The bytes; `tables` has all of `TABLES`.  Cost: a copy, and two passes of digests."""
    start = HEADER.dtype.itemsize + len(TABLES) * DIRECTORY.dtype.itemsize
    directory = np.zeros(len(TABLES), dtype=DIRECTORY.dtype)
    parts: list[bytes] = []
    at = start
    for number, table in enumerate(TABLES):
        raw = np.ascontiguousarray(tables[table.name]).tobytes()
        size = table.dtype.itemsize
        digest = np.frombuffer(sha256(raw).digest(), dtype=np.uint8)
        directory[number] = (number, size, at, len(raw) // size, digest)
        parts.append(raw + bytes(-len(raw) % 8))
        at += len(parts[-1])
    header = np.zeros(1, dtype=HEADER.dtype)
    header["magic"] = np.frombuffer(MAGIC, dtype=np.uint8)
    header["version"], header["size_bytes"], header["region"] = STREAM_VERSION, at, region
    header["target"], header["function"], header["cores"] = target, function, cores
    header["tables"] = len(TABLES)
    content = b"".join([header.tobytes()[CHECKED_FROM:], directory.tobytes(), *parts])
    header["checksum"] = crc32(content)
    return header.tobytes()[:CHECKED_FROM] + content


def unpack(data: bytes) -> Container:
    """The tables, every bit accounted for.

    Raises:
        InputError: TW-RUN-001 when the bytes are no whole, undamaged stream of this version.
    Cost: two passes of digests; memory is that of the bytes.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise damaged("the stream does not start with its magic number")
    if len(data) < HEADER.dtype.itemsize:
        raise _short(HEADER.dtype.itemsize, len(data))
    (header,) = np.frombuffer(data, dtype=HEADER.dtype, count=1)
    if header["version"] != STREAM_VERSION:
        raise damaged(
            f"the stream has version {header['version']}, this reader knows {STREAM_VERSION}"
        )
    if header["size_bytes"] != len(data):
        raise _short(int(header["size_bytes"]), len(data))
    if crc32(data[CHECKED_FROM:]) != header["checksum"]:
        raise damaged("the stream does not match its checksum")
    if header["zero"] or header["tables"] != len(TABLES):
        raise damaged(f"the stream has {header['tables']} tables, its version has {len(TABLES)}")
    at = HEADER.dtype.itemsize + len(TABLES) * DIRECTORY.dtype.itemsize
    if at > len(data):
        raise _short(at, len(data))
    directory = np.frombuffer(
        data, dtype=DIRECTORY.dtype, count=len(TABLES), offset=HEADER.dtype.itemsize
    )
    tables: dict[str, Rows] = {}
    for number, (row, table) in enumerate(zip(directory, TABLES, strict=True)):
        size = table.dtype.itemsize
        count = int(row["count"])
        if (row["table"], row["record_bytes"], row["offset"]) != (number, size, at):
            raise damaged(f"row {number} of the stream's directory is not that of {table.name}")
        if count > (len(data) - at) // size:
            raise _short(at + count * size, len(data))
        raw = data[at : at + count * size]
        gap = data[at + len(raw) : at + len(raw) + -len(raw) % 8]
        if sha256(raw).digest() != row["sha256"].tobytes() or any(gap):
            raise damaged(f"table {table.name} of the stream does not match its digest")
        tables[table.name] = _plain(np.frombuffer(raw, dtype=table.dtype), table.name)
        at += len(raw) + len(gap)
    if at != len(data):
        raise _short(at, len(data))
    strings = _strings(tables["strings"].astype(np.int64), tables["text"].tobytes())
    return Container(
        int(header["region"]), int(header["target"]), int(header["function"]),
        int(header["cores"]), tables, strings,
    )  # fmt: skip


def _plain(rows: npt.NDArray[np.void], name: str) -> Rows:
    """A table of one field is a plain array."""
    names = rows.dtype.names or ()
    zeros = [rows[field] for field in names if field.startswith("zero")]
    if any(np.any(values) for values in zeros):
        raise damaged(f"a reserved field of the stream's table {name} is not zero")
    return rows[names[0]] if len(names) == 1 else rows


def _strings(sizes: npt.NDArray[np.int64], text: bytes) -> tuple[str, ...]:
    ends = np.cumsum(sizes)
    if (ends[-1] if len(ends) else 0) != len(text):
        raise damaged("the stream's strings do not fill its text")
    found = []
    for end, size in zip(ends.tolist(), sizes.tolist(), strict=True):
        try:
            found.append(text[end - size : end].decode())
        except UnicodeDecodeError as error:
            raise damaged(f"a string of the stream is not UTF-8: {error}") from error
    return tuple(found)


def _short(expected: int, actual: int) -> InputError:
    return InputError(
        "TW-RUN-001", f"the stream has {actual} bytes, its fields promise {expected}",
        limit=expected, actual=actual,
    )  # fmt: skip
