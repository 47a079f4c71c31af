"""Arrays from an .npz file that anybody may have written.

What the archive claims is checked before anything of it is allocated: members are stored or
deflated, their sizes add up to no more than a limit, and a header describes exactly the bytes
behind it.  Nothing is unpickled.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NoReturn

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import Detail, ModelError

Array = npt.NDArray[Any]
MAX_ARRAYS = 10_000
MAX_TOTAL_BYTES = 4 << 30
"""Of all arrays together, unpacked; calibration batches are the largest there are."""
MAX_NAME_CHARS = 1000
MAX_HEADER_BYTES = 10_000
"""As numpy's own: a header is parsed as Python text."""
_HEADERS: dict[tuple[int, int], tuple[str, Callable[[BytesIO], tuple[Any, bool, Any]]]] = {
    (1, 0): ("<H", np.lib.format.read_array_header_1_0),
    (2, 0): ("<I", np.lib.format.read_array_header_2_0),
}
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_PIECE_BYTES = 1 << 20


class _Unreadable(Exception):
    """Why a member, or the archive, is refused."""

    def __init__(self, why: str, limit: Detail = None, actual: Detail = None) -> None:
        super().__init__(why)
        self.limit = limit
        self.actual = actual


def read_arrays(
    path: Path, code: str, what: str, *, limit_bytes: int = MAX_TOTAL_BYTES
) -> dict[str, Array]:
    """The arrays of an .npz file by name, sorted; no array is not enough.

    Shapes: as stored, C order.

    Raises:
        ModelError: `code`, it is no such file, or larger than `limit_bytes` unpacked; `what` is
            what the message calls it.

    Cost: the arrays are read once, after a look at the archive's directory.
    """

    def refuse(why: str, limit: Detail, actual: Detail) -> NoReturn:
        raise ModelError(code, f"{what} cannot be read: {why}", limit=limit, actual=actual)

    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(archive, limit_bytes)
            arrays = {name: _array(archive, members[name]) for name in sorted(members)}
    except _Unreadable as error:
        refuse(str(error), error.limit or "an .npz of plain arrays", error.actual)
    except (OSError, ValueError, EOFError, KeyError, TypeError, SyntaxError, RecursionError,
            RuntimeError, struct.error, zipfile.BadZipFile, zlib.error, MemoryError, TokenError,
            NotImplementedError) as error:  # fmt: skip
        refuse(" ".join(str(error).split())[:200], "an .npz of plain arrays", None)
    if not arrays:
        raise ModelError(code, f"{what} holds no array", limit=1, actual=0)
    return arrays


def _members(archive: zipfile.ZipFile, limit_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Members by the array's name, with what the directory alone tells checked."""
    infos = archive.infolist()
    if len(infos) > MAX_ARRAYS:
        raise _Unreadable("it has too many members", MAX_ARRAYS, len(infos))
    total = sum(info.file_size for info in infos)
    if total > limit_bytes:
        raise _Unreadable(f"its arrays have {total} bytes in all", limit_bytes, total)
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename.removesuffix(".npy")
        if len(name) > MAX_NAME_CHARS:
            raise _Unreadable("a name is too long", MAX_NAME_CHARS, len(name))
        if name in members:
            raise _Unreadable(f"it has two arrays {name[:80]!r}")
        if info.compress_type not in _PLAIN or info.flag_bits & _ENCRYPTED:
            raise _Unreadable(f"member {name[:80]!r} is neither stored nor deflated")
        members[name] = info
    return members


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    """One member.  Its header is read alone, so that what it claims is known before it is made."""
    with archive.open(info) as stream:
        dtype, shape, is_column_major, offset = _header(stream, info.filename[:80])
        num_bytes = math.prod(shape) * dtype.itemsize
        if offset + num_bytes != info.file_size:
            raise _Unreadable(
                f"{info.filename[:80]!r} says it holds {dtype}{list(shape)}",
                offset + num_bytes, info.file_size,
            )  # fmt: skip
        if num_bytes == 0:
            return np.empty(shape, dtype)
        stored = bytearray(num_bytes)
        view, filled = memoryview(stored), 0
        while filled < num_bytes and (piece := stream.read(_PIECE_BYTES)):
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
        if filled < num_bytes:
            raise _Unreadable(f"{info.filename[:80]!r} breaks off", num_bytes, filled)
        stream.read(1)  # behind the last byte the check sum is compared
    array = np.frombuffer(stored, dtype=dtype, count=math.prod(shape))
    order: tuple[int, ...] = shape[::-1] if is_column_major else shape
    shaped = array.reshape(order)
    return np.ascontiguousarray(shaped.T) if is_column_major else shaped


def _header(stream: IO[bytes], name: str) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """(type, shape, whether the first axis is innermost, bytes of the header)."""
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise _Unreadable(f"{name!r} has the format {version}", "format 1.0 or 2.0")
    layout, read = _HEADERS[version]
    counted = stream.read(struct.calcsize(layout))
    (length,) = struct.unpack(layout, counted)
    if length > MAX_HEADER_BYTES:
        raise _Unreadable(f"the header of {name!r} is too long", MAX_HEADER_BYTES, length)
    text = stream.read(length)
    shape, is_column_major, dtype = read(BytesIO(counted + text))
    if dtype.hasobject:
        raise _Unreadable(f"{name!r} holds pickled objects, which nobody unpickles")
    if dtype.itemsize == 0 or any(extent < 0 for extent in shape):
        raise _Unreadable(f"{name!r} holds {dtype}{list(shape)}, which has no size")
    offset = np.lib.format.MAGIC_LEN + len(counted) + len(text)
    return dtype, shape, is_column_major, offset
