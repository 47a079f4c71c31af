"""The machine is lost: a new one goes on from a backup, on SQLite with files and on PostgreSQL."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from document_commands import commands
from service_fixtures import Desk, MakeSettings
from typer.testing import CliRunner, Result

from service.cli.main import app
from service.jobs import query
from service.settings import Settings
from service.states import JobState
from service.store.blobs import read_bytes
from service.store.records import JobRecord
from worker.runner.main import EmbeddedWorker

OpenDesk = Callable[[Settings], Desk]


def tilewright(settings: Settings, *words: object) -> Result:
    names = {"TILEWRIGHT_DATABASE_URL": settings.database_url, "TILEWRIGHT_BLOB_URL": ""}
    if settings.database_url.startswith("sqlite"):
        del names["TILEWRIGHT_DATABASE_URL"]
    arguments = [*map(str, words), "--data-dir", str(settings.data_dir), "--json"]
    return CliRunner().invoke(app, arguments, env=names)


def downloads(desk: Desk, job: JobRecord) -> dict[str, bytes]:
    """Everything a job made."""
    found = query.list_artifacts(desk.services.database, job.id)
    return {one.name: read_bytes(desk.services.blobs, one.sha256) for one in found}


@pytest.fixture
def new_database(database_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database without tables, of the kind of `database_url`."""
    if database_url.startswith("sqlite"):
        return f"sqlite:///{tmp_path / 'new' / 'tilewright.db'}"
    return str(request.getfixturevalue("bare_pg_url"))


@pytest.fixture
def desk(database_url: str, make_settings: MakeSettings, open_desk: OpenDesk) -> Desk:
    return open_desk(make_settings("hold", database_url=database_url, workers=1))


def test_the_machine_is_lost(
    desk: Desk, new_database: str, make_settings: MakeSettings, open_desk: OpenDesk, tmp_path: Path
) -> None:
    settings, file = desk.services.settings, tmp_path / "backup.tar"
    gates = tmp_path / "gates"
    (gates / "open").touch()
    with EmbeddedWorker(desk.services):
        finished = desk.wait(desk.submit({"gate": str(gates / "open")}).id)
        running = desk.submit({"gate": str(gates / "shut")})
        desk.wait(running.id, stage="ingest")
        waiting = desk.submit({"gate": str(gates / "open"), "n": 2})
        made = tilewright(settings, "backup", file)
        assert made.exit_code == 0, made.output
    had = downloads(desk, finished)
    assert had
    desk.services.close()
    shutil.rmtree(settings.data_dir)

    new = make_settings("hold", database_url=new_database, data_dir=tmp_path / "new")
    done = tilewright(new, "restore", file)
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["queued_again"], said["lost"]) == (1, [])
    (gates / "shut").touch()
    again = open_desk(new)
    assert downloads(again, again.job(finished.id)) == had
    with EmbeddedWorker(again.services):
        ended = [again.wait(job.id) for job in (running, waiting)]
    assert [(job.state, job.attempts) for job in ended] == [(JobState.SUCCEEDED, 1)] * 2
    outcomes = [a.outcome for a in query.list_attempts(again.services.database, running.id)]
    assert outcomes == ["given_back", "succeeded"]


def test_nothing_is_written_over(desk: Desk, tmp_path: Path) -> None:
    settings, file = desk.services.settings, tmp_path / "backup.tar"
    job = desk.submit()
    assert tilewright(settings, "backup", file).exit_code == 0
    before = file.read_bytes()
    for verb, what in (("backup", "exists"), ("restore", "a database already")):
        refused = tilewright(settings, verb, file)
        assert refused.exit_code == 3
        problem = json.loads(refused.stdout)
        assert (problem["code"], what in problem["detail"]) == ("TW-SVC-002", True)
    assert file.read_bytes() == before
    assert desk.job(job.id).state is JobState.QUEUED


def test_lost_and_damaged_content_is_named(
    make_settings: MakeSettings, open_desk: OpenDesk, tmp_path: Path
) -> None:
    """The rest is in the backup, and comes out of it."""
    desk = open_desk(make_settings("quick"))
    for content in (b"lost", b"damaged", b"kept"):
        desk.submit(model=content)
    folder = desk.services.settings.data_dir / "blobs" / "cas" / "sha256"
    lost, damaged, kept = (sha256(c).hexdigest() for c in (b"lost", b"damaged", b"kept"))
    (folder / lost[:2] / lost[2:4] / lost).unlink()
    path = folder / damaged[:2] / damaged[2:4] / damaged
    path.chmod(0o644)
    path.write_bytes(b"DAMAGED")
    file = tmp_path / "backup.tar"
    result = tilewright(desk.services.settings, "backup", file)
    assert result.exit_code == 5
    assert set(json.loads(result.stdout)["lost"]) == {lost, damaged}
    new = make_settings("quick", data_dir=tmp_path / "new")
    done = tilewright(new, "restore", file)
    assert done.exit_code == 5
    assert json.loads(done.stdout)["lost"] == [damaged]
    assert read_bytes(open_desk(new).services.blobs, kept) == b"kept"


def _cut(file: Path, target: Path) -> None:
    """Leave the end off."""
    target.write_bytes(file.read_bytes()[: file.stat().st_size // 3])


def _other(file: Path, target: Path) -> None:
    with tarfile.open(target, "w") as archive:
        archive.add(file, "something")


def _newer(file: Path, target: Path) -> None:
    del file
    about = target.with_name("backup.json")
    about.write_text(json.dumps({"format": 99, "database": "sqlite", "schema": "0001"}))
    with tarfile.open(target, "w") as archive:
        archive.add(about, "backup.json")


def _escaping(file: Path, target: Path) -> None:
    with tarfile.open(file) as good, tarfile.open(target, "w") as archive:
        about = good.getmember("backup.json")
        archive.addfile(about, good.extractfile(about))
        archive.add(file, "blobs/../../escaped")


BROKEN: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "cut": (_cut, "no whole backup|ends before its database"),
    "other": (_other, "no backup of Tilewright"),
    "newer": (_newer, "format 99"),
    "escaping": (_escaping, "nothing that a backup holds"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_no_backup_is_refused(
    fault: str, make_settings: MakeSettings, open_desk: OpenDesk, tmp_path: Path
) -> None:
    desk = open_desk(make_settings("quick"))
    desk.submit(model=bytes(100_000))
    good, bad = tmp_path / "good.tar", tmp_path / "bad.tar"
    assert tilewright(desk.services.settings, "backup", good).exit_code == 0
    spoil, words = BROKEN[fault]
    spoil(good, bad)
    new = make_settings("quick", data_dir=tmp_path / "new")
    refused = tilewright(new, "restore", bad)
    problem: dict[str, Any] = json.loads(refused.stdout)
    assert (refused.exit_code, problem["code"]) == (2, "TW-SVC-004")
    assert any(word in problem["detail"] for word in words.split("|")), problem
    assert not (tmp_path / "new" / "tilewright.db").exists()
    assert not list(tmp_path.rglob("escaped"))
    # The same folder takes a good one.
    assert tilewright(new, "restore", good).exit_code == 0


def test_another_kind_of_database_is_refused(
    make_settings: MakeSettings, open_desk: OpenDesk, tmp_path: Path, bare_pg_url: str
) -> None:
    desk = open_desk(make_settings("quick"))
    file = tmp_path / "backup.tar"
    assert tilewright(desk.services.settings, "backup", file).exit_code == 0
    new = make_settings("quick", database_url=bare_pg_url, data_dir=tmp_path / "new")
    refused = tilewright(new, "restore", file)
    assert json.loads(refused.stdout)["code"] == "TW-SVC-002"


def test_commands_of_the_page(
    make_settings: MakeSettings,
    open_desk: OpenDesk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that docs/backup.md prints, one after the other."""
    desk = open_desk(make_settings("quick"))
    desk.submit()
    page = Path(__file__, "../../../docs/backup.md").resolve().read_text()
    lines = [command.line for command in commands(page)]
    assert len(lines) >= 2
    assert all(line.startswith("tilewright ") for line in lines)
    monkeypatch.chdir(tmp_path)
    for line in lines:
        names = {"TILEWRIGHT_DATA_DIR": str(desk.services.settings.data_dir)}
        result = CliRunner().invoke(app, line.split()[1:], env=names)
        assert result.exit_code == 0, (line, result.output)
    assert (tmp_path / "restored" / "tilewright.db").is_file()
