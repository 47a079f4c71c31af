"""Where results are read from: a job of a server, a bundle, or a folder that `-o` wrote."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from service.cli.connection import connect
from service.cli.failures import Failure
from worker.report.run import is_apart, run_of_old

if TYPE_CHECKING:
    from service.client import Client

FILES = {
    "report": "report.json",
    "run": "run.json",
    "schedule": "schedule.json",
    "trace": "trace.json.gz",
    "placement": "placement.json",
}
"""File names inside a bundle or a folder."""
MAX_MEMBER_BYTES = 2 << 30


class Results(Protocol):
    """Reads named results."""

    def read(self, name: str) -> bytes:
        """Give the bytes of one of `FILES`."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """Named results with their JSON decoded."""

    results: Results

    def read(self, name: str) -> bytes:
        """Give the bytes of one result."""
        return self.results.read(name)

    def json(self, name: str) -> Any:
        """Give one result as JSON.

        Raises:
            Failure: the bytes are not JSON.
        """
        try:
            return json.loads(self.results.read(name))
        except ValueError as error:
            raise Failure("TW-RUN-001", f"{name} is not JSON: {error}") from error

    def report(self) -> dict[str, Any]:
        """Give the report."""
        document = self.json("report")
        if not isinstance(document, dict):
            raise Failure("TW-RUN-001", "the report is not a JSON object")
        return document

    def run(self, report: Mapping[str, Any]) -> dict[str, Any]:
        """Give what the run was like that left the report; empty where nothing tells, as in a
        bundle."""
        try:
            document = self.json("run") if is_apart(report) else None
        except Failure:
            return {}
        return document if isinstance(document, dict) else run_of_old(report)


@dataclass(frozen=True, slots=True)
class _Folder:
    path: Path

    def read(self, name: str) -> bytes:
        file = self.path / FILES[name]
        if file.is_file():
            return file.read_bytes()
        bundles = sorted(self.path.glob("*.twb"))
        if bundles:
            return _Bundle(bundles[0]).read(name)
        raise Failure("TW-CLI-001", f"{self.path} holds neither {FILES[name]} nor a bundle")


@dataclass(frozen=True, slots=True)
class _Report:
    path: Path

    def read(self, name: str) -> bytes:
        if name == "report":
            return self.path.read_bytes()
        raise Failure("TW-CLI-001", f"{self.path} is a report alone: it holds no {name}")


@dataclass(frozen=True, slots=True)
class _Bundle:
    path: Path

    def read(self, name: str) -> bytes:
        try:
            with zipfile.ZipFile(self.path) as archive:
                member = archive.getinfo(FILES[name])
                if member.file_size > MAX_MEMBER_BYTES:
                    raise Failure("TW-RUN-001", f"{self.path}: {FILES[name]} is too large")
                return archive.read(member)
        except (zipfile.BadZipFile, KeyError) as error:
            raise Failure("TW-RUN-001", f"{self.path} is not a bundle with {name}") from error


@dataclass(frozen=True, slots=True)
class _Job:
    client: Client
    job_id: str

    def read(self, name: str) -> bytes:
        return self.client.raw(f"/v1/jobs/{self.job_id}/{name}")


@contextmanager
def open_source(text: str, server: str | None, data_dir: Path | None) -> Iterator[Source]:
    """Open what the user named: an existing path wins over a job id."""
    path = Path(text)
    if path.is_dir():
        yield Source(_Folder(path))
    elif path.name in FILES.values() and path.is_file():
        yield Source(_Folder(path.parent))
    elif path.is_file():
        yield Source(_Report(path) if path.suffix == ".json" else _Bundle(path))
    elif "/" in text or path.suffix:
        raise Failure("TW-CLI-001", f"{text}: there is no such bundle or folder")
    else:
        with connect(server, data_dir) as client:
            yield Source(_Job(client, text))


def bundle_of(source: Path) -> Path:
    """A bundle, or the one in a folder.

    Raises:
        Failure: TW-CLI-001, there is none, or several.
    """
    if source.is_file():
        return source
    bundles = sorted(source.glob("*.twb")) if source.is_dir() else []
    if len(bundles) != 1:
        raise Failure("TW-CLI-001", f"{source}: is no bundle, and no folder with exactly one")
    return bundles[0]
