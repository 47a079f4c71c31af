"""Runs out of what `-o` wrote, reports, bundles, and whatever else holds a job's artifacts."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from service.compare.run import Run
from worker.compiler.errors import InputError

FILES = {"report": "report.json", "graph": "graph.json", "schedule": "schedule.json"}
"""File names of the artifacts that are compared."""
MOST_BYTES = 256 << 20
"""Of one document."""
BUNDLE_FORMAT = 4
_SPEC = "hardware.json"
_MANIFEST = "manifest.json"


def read_path(path: Path) -> Run:
    """Read a folder that `-o` wrote, a bundle, or a report.

    A report that is called report.json is read with what lies beside it; any other by itself.

    Raises:
        InputError: TW-CLI-001, there is nothing of the kind; TW-RUN-001, a file is damaged;
            TW-RUN-004, the bundle has another format; TW-CMP-001, as `Run.of`.
    """
    if path.is_dir():
        return _folder(path, str(path))
    if not path.is_file():
        raise InputError("TW-CLI-001", f"{path}: there is no such file or folder")
    if path.suffix == ".json":
        if path.name == FILES["report"]:
            return _folder(path.parent, str(path))
        return Run.of(str(path), _parsed(_file(path), str(path)))
    with path.open("rb") as stream:
        return read_run(str(path), lambda name: None, lambda: stream)


def _folder(path: Path, name: str) -> Run:
    bundles = sorted(path.glob("*.twb"))
    if not bundles and not (path / FILES["report"]).is_file():
        raise InputError("TW-CLI-001", f"{path}: holds neither report.json nor a bundle")

    def artifact(which: str) -> bytes | None:
        file = path / FILES[which]
        return _file(file) if file.is_file() else None

    if len(bundles) != 1:
        return read_run(name, artifact, lambda: None)
    with bundles[0].open("rb") as stream:
        return read_run(name, artifact, lambda: stream)


def _file(path: Path) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise _damaged(str(path), f"has more than {MOST_BYTES} bytes")
    return data


def read_run(
    name: str,
    artifact: Callable[[str], bytes | None],
    bundle: Callable[[], BinaryIO | None],
) -> Run:
    """Read a run from its artifacts.

    Args:
        name: what the user calls it.
        artifact: gives one of `FILES`, None where there is none.
        bundle: opens the bundle, seekable; None where there is none.

    Raises:
        InputError: TW-RUN-001, a document is damaged, or neither has a report; TW-RUN-004,
            TW-CMP-001.
    """
    found: dict[str, Any] = {}
    for which in FILES:
        data = artifact(which)
        if data is not None:
            found[which] = _parsed(data, f"{name}: {FILES[which]}")
    stream = bundle()
    if stream is not None:
        found = {**_bundle(stream, name, is_alone="graph" not in found), **found}
    if "report" not in found:
        raise _damaged(name, "holds no report")
    return Run.of(name, **found)


def _bundle(stream: BinaryIO, name: str, *, is_alone: bool) -> dict[str, Any]:
    """What a bundle tells; `is_alone`: there is no other graph, so its regions have to do."""
    try:
        with zipfile.ZipFile(stream) as archive:
            manifest = _member(archive, _MANIFEST, name)
            version = manifest.get("format_version") if isinstance(manifest, dict) else None
            if version != BUNDLE_FORMAT:
                raise InputError(
                    "TW-RUN-004", f"{name}: the bundle has format {version}", limit=BUNDLE_FORMAT,
                    actual=str(version),
                )  # fmt: skip
            members = archive.namelist()
            found = {
                which: _member(archive, file, name)
                for which, file in (*FILES.items(), ("spec", _SPEC))
                if which != "graph" and file in members
            }
            if is_alone:
                regions = [m for m in members
                           if m.startswith("regions/") and m.endswith("/graph.json")]  # fmt: skip
                regions.sort(key=lambda member: (len(member), member))
                found["regions"] = [_member(archive, member, name) for member in regions]
            return found
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
        raise _damaged(name, f"is no bundle: {error}") from error


def _member(archive: zipfile.ZipFile, member: str, name: str) -> Any:
    try:
        with archive.open(member) as stream:
            data = stream.read(MOST_BYTES + 1)
    except (KeyError, RuntimeError) as error:
        raise _damaged(name, f"is no bundle: {error}") from error
    if len(data) > MOST_BYTES:
        raise _damaged(name, f"{member} has more than {MOST_BYTES} bytes")
    return _parsed(data, f"{name}: {member}")


def _parsed(data: bytes, what: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _damaged(what, f"is not JSON: {error}") from error


def _damaged(name: str, why: str) -> InputError:
    return InputError("TW-RUN-001", f"{name} {why}", actual=why)


class RangedFile(io.RawIOBase):
    """A stored file that is read piece by piece, so that a few members cost no whole bundle."""

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        """`fetch`: gives the bytes from a place on, as many as asked for."""
        self._size = size
        self._fetch = fetch
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        data = self._fetch(self._at, length)[:length]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def ranged(size: int, fetch: Callable[[int, int], bytes]) -> BinaryIO:
    """A buffered, seekable file over ranges of a stored one."""
    return io.BufferedReader(RangedFile(size, fetch), buffer_size=1 << 16)
