"""Streams that were changed, with everything that guards them made right again."""

from __future__ import annotations

from hashlib import sha256
from zlib import crc32

import numpy as np

from worker.compiler.package.stream.records import DIRECTORY, HEADER, TABLES

_CHECKED_FROM = 16


def sealed(data: bytes) -> bytes:
    """The bytes with right length, digests and checksum, so that what lies behind is looked at."""
    made = bytearray(data)
    made[16:24] = len(made).to_bytes(8, "little")
    begin, size = HEADER.dtype.itemsize, DIRECTORY.dtype.itemsize
    if len(made) >= begin + size * len(TABLES):
        rows = np.frombuffer(bytes(made), DIRECTORY.dtype, len(TABLES), begin)
        for number, row in enumerate(rows):
            first = int(row["offset"])
            raw = bytes(made[first : first + int(row["count"]) * int(row["record_bytes"])])
            at = begin + size * number + size - 32
            made[at : at + 32] = sha256(raw).digest()
    made[12:16] = crc32(made[_CHECKED_FROM:]).to_bytes(4, "little")
    return bytes(made)
