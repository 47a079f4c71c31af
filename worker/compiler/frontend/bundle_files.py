"""The uploaded file as bytes: a bare model, or a zip bundle with its external data.

Nothing is written to disk.  Stored zip members are used where they lie in the memory map; packed
ones are unpacked into anonymous memory while their real size is counted.  External data is looked
up in the bundle's own table of contents, so no name in a model ever reaches the file system.
"""

from __future__ import annotations

import mmap
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from worker.compiler.errors import Finding, ModelError
from worker.compiler.frontend.limits import PROTOBUF_LIMIT_BYTES, Limits

_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
_CHUNK_BYTES = 1 << 20
_SMALL_BYTES = 1 << 16
"""Members below this size may have any compression ratio."""
_MAX_DIRECTORY_BYTES = 8 << 20
_END_RECORD = b"PK\x05\x06"
_ZIP_ERRORS = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, zlib.error,
    struct.error, ValueError, OverflowError, KeyError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One upload: the model's bytes and, for a bundle, the members beside it."""

    model: memoryview
    sha256: str
    """Of the file as uploaded."""
    folder: str
    """Folder of the model inside the bundle, "" at the top."""
    members: Mapping[str, Member]
    """Empty for a bare model."""
    is_bundle: bool


@dataclass(frozen=True, slots=True)
class Member:
    """A zip member and where its packed bytes lie."""

    info: zipfile.ZipInfo
    start: int
    file: memoryview

    def content(self) -> memoryview:
        """The unpacked bytes, checked against size and CRC.

        Raises:
            ModelError: TW-MODEL-011 when they do not agree with the table of contents.
        """
        packed = self.file[self.start : self.start + self.info.compress_size]
        if self.info.compress_type == zipfile.ZIP_STORED:
            if zlib.crc32(packed) != self.info.CRC:
                raise _unsafe(self.info.filename, "its checksum is wrong")
            return packed
        return _inflated(self.info, packed)


def open_model_file(path: Path, limits: Limits) -> ModelFile:
    """Map a file and find the model in it.

    Raises:
        ModelError: TW-MODEL-001/002/003 for the file itself, TW-MODEL-011 for a bad bundle.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                raise ModelError("TW-MODEL-002", "the model file is empty", actual=0)
            if size > limits.max_bytes:
                raise _too_large("the model file", size, limits.max_bytes)
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ModelError(
            "TW-MODEL-001", f"the model file cannot be read: {error.strerror}"
        ) from None
    digest = sha256(data).hexdigest()
    if bytes(data[:4]) not in _ZIP_MAGICS:
        if size > PROTOBUF_LIMIT_BYTES:
            raise _too_large("a model without external data", size, PROTOBUF_LIMIT_BYTES)
        return ModelFile(data, digest, "", MappingProxyType({}), False)
    members = _table_of_contents(data, path, limits)
    name = model_name(tuple(members))
    model = members[name].content()
    if len(model) == 0:
        raise ModelError("TW-MODEL-002", f"{name!r} in the bundle is empty", actual=0)
    if len(model) > PROTOBUF_LIMIT_BYTES:
        raise _too_large(f"{name!r} in the bundle", len(model), PROTOBUF_LIMIT_BYTES)
    return ModelFile(model, digest, name.rpartition("/")[0], members, True)


def unsafe_name(name: str) -> str | None:
    """Why a member or external-data name is refused, or None."""
    if not name or "\0" in name or any(ord(c) < 32 for c in name):
        return "it is empty or has control characters"
    if "\\" in name:
        return "it contains a backslash"
    if name.startswith("/") or (len(name) > 1 and name[1] == ":"):
        return "it is absolute"
    if any(part in ("", ".", "..") for part in name.rstrip("/").split("/")):
        return "it leaves its folder or has empty parts"
    return None


def _too_large(what: str, actual: int, limit: int) -> ModelError:
    return ModelError(
        "TW-MODEL-003", f"{what} has {actual} bytes, the limit is {limit}", limit=limit,
        actual=actual,
    )  # fmt: skip


def _unsafe(member: str, why: str) -> ModelError:
    message = f"zip member {member!r}: {why}"
    return ModelError(
        "TW-MODEL-011", message, findings=(Finding("TW-MODEL-011", message, actual=member),)
    )


def _table_of_contents(data: memoryview, path: Path, limits: Limits) -> Mapping[str, Member]:
    _guard_directory(data, limits)
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            directory = archive.start_dir
    except _ZIP_ERRORS as error:
        raise ModelError("TW-MODEL-011", f"the zip bundle is damaged: {error}") from None
    if len(infos) > limits.max_entries:
        raise ModelError(
            "TW-MODEL-011", f"the zip bundle has {len(infos)} members",
            limit=limits.max_entries, actual=len(infos),
        )  # fmt: skip
    problems = [
        Finding("TW-MODEL-011", f"zip member {info.filename!r}: {why}", actual=info.filename)
        for info in infos
        if (why := _refused(info, limits)) is not None
    ]
    names: set[str] = set()
    for info in infos:
        if info.filename in names:
            problems.append(Finding("TW-MODEL-011", f"zip member {info.filename!r} comes twice"))
        names.add(info.filename)
    total = sum(info.file_size for info in infos)
    packed = sum(info.compress_size for info in infos)
    if total > limits.max_bytes:
        problems.append(
            Finding(
                "TW-MODEL-011",
                f"the bundle unpacks to {total} bytes",
                None,
                None,
                limits.max_bytes,
                total,
            )
        )
    if total > _SMALL_BYTES and total > limits.max_ratio * max(packed, 1):
        problems.append(
            Finding(
                "TW-MODEL-011",
                f"the bundle unpacks {packed} bytes to {total}",
                None,
                None,
                limits.max_ratio,
                total // max(packed, 1),
            )
        )
    starts, overlaps = _extents(data, infos, directory)
    problems += overlaps
    if problems:
        raise ModelError(
            "TW-MODEL-011", problems[0].message, findings=tuple(problems[: limits.max_findings])
        )
    return MappingProxyType(
        {
            info.filename: Member(info, start, data)
            for info, start in zip(infos, starts, strict=True)
            if not info.is_dir()
        }
    )


def _guard_directory(data: memoryview, limits: Limits) -> None:
    """Refuse a huge table of contents before the zip library builds objects for it."""
    tail = bytes(data[-(1 << 16) - 22 :])
    at = tail.rfind(_END_RECORD)
    if at < 0 or len(tail) - at < 22:
        raise ModelError("TW-MODEL-011", "the zip bundle is damaged: no table of contents")
    (size,) = struct.unpack_from("<I", tail, at + 12)
    locator = tail.rfind(b"PK\x06\x06")
    if size == 0xFFFFFFFF and locator >= 0 and len(tail) - locator >= 48:
        (size,) = struct.unpack_from("<Q", tail, locator + 40)
    if size > _MAX_DIRECTORY_BYTES:
        raise ModelError(
            "TW-MODEL-011", f"the zip bundle's table of contents has {size} bytes (at most"
            f" {limits.max_entries} members are allowed)",
            limit=_MAX_DIRECTORY_BYTES, actual=size,
        )  # fmt: skip


def _refused(info: zipfile.ZipInfo, limits: Limits) -> str | None:
    # orig_filename: the library cuts the name at a NUL and rewrites separators
    why = unsafe_name(info.orig_filename)
    if why is not None:
        return f"the name is not allowed: {why}"
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "it is a link or a special file"
    if info.flag_bits & 0x1:
        return "it is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"compression method {info.compress_type} is not allowed (stored or deflated)"
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        return "it is stored, but its two sizes differ"
    if info.file_size > _SMALL_BYTES and info.file_size > limits.max_ratio * info.compress_size:
        return (
            f"it unpacks {info.compress_size} bytes to {info.file_size}"
            f" (ratio limit {limits.max_ratio})"
        )
    return None


def _extents(
    data: memoryview, infos: list[zipfile.ZipInfo], directory: int
) -> tuple[list[int], list[Finding]]:
    """Where each member's packed bytes start; a finding per overlap or bad local header."""
    starts: list[int] = []
    spans: list[tuple[int, int, str]] = []
    findings: list[Finding] = []
    for info in infos:
        at = info.header_offset
        header = bytes(data[at : at + 30]) if 0 <= at <= len(data) else b""
        if len(header) != 30 or header[:4] != _ZIP_MAGICS[0]:
            findings.append(
                Finding("TW-MODEL-011", f"zip member {info.filename!r}: its header is damaged")
            )
            starts.append(0)
            continue
        name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
        start = at + 30 + name_bytes + extra_bytes
        starts.append(start)
        spans.append((at, start + info.compress_size, info.filename))
    end_before, before = 0, ""
    for start, end, name in sorted(spans):
        if start < end_before:
            findings.append(Finding("TW-MODEL-011", f"zip members {before!r} and {name!r} overlap"))
        if end > directory:
            findings.append(
                Finding("TW-MODEL-011", f"zip member {name!r} runs into the table of contents")
            )
        if end > end_before:
            end_before, before = end, name
    return starts, findings


def _inflated(info: zipfile.ZipInfo, packed: memoryview) -> memoryview:
    if info.file_size == 0:
        return memoryview(b"")
    target = mmap.mmap(-1, info.file_size)
    inflate = zlib.decompressobj(-15)
    crc = done = 0
    pending: bytes | memoryview = b""
    position = 0
    try:
        while not inflate.eof:
            if not pending:
                pending = packed[position : position + _CHUNK_BYTES]
                position += len(pending)
            chunk = inflate.decompress(pending, _CHUNK_BYTES)
            stalled = not chunk and not pending
            pending = inflate.unconsumed_tail
            if done + len(chunk) > info.file_size:
                raise _unsafe(info.filename, f"it has more than the {info.file_size} bytes stated")
            if stalled and not inflate.eof:
                break
            target[done : done + len(chunk)] = chunk
            crc = zlib.crc32(chunk, crc)
            done += len(chunk)
    except zlib.error as error:
        raise _unsafe(info.filename, f"it cannot be unpacked: {error}") from None
    if done != info.file_size or crc != info.CRC:
        raise _unsafe(info.filename, "its size or checksum is wrong")
    return memoryview(target).toreadonly()


def model_name(names: tuple[str, ...]) -> str:
    """Which member of a bundle is the model.

    Raises:
        ModelError: TW-MODEL-011 unless there is exactly one, or one called model.onnx.
    """
    models = [name for name in names if name.lower().endswith(".onnx")]
    named = [name for name in models if name.rpartition("/")[2] == "model.onnx"]
    chosen = models if len(models) == 1 else named
    if len(chosen) != 1:
        raise ModelError(
            "TW-MODEL-011",
            f"the zip bundle has {len(models)} .onnx files; exactly one is needed"
            " (or one named model.onnx)",
            limit=1,
            actual=len(models),
        )
    return chosen[0]
