"""`doctor --fix` mends what a crash left, says what it did, and refuses what could do harm."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from service_fixtures import Desk, MakeSettings
from sqlalchemy import text
from typer.testing import CliRunner

from migrations import HEAD
from service.cli.main import app
from service.jobs import claim as protocol
from service.jobs import query
from service.settings import Settings
from service.states import JobState
from service.store.blobs import put_bytes
from service.store.session import current_revision, migrate
from worker.runner.main import EmbeddedWorker

OpenDesk = Callable[[Settings], Desk]
DAY_S = 86_400.0


def doctor(settings: Settings, *words: str) -> dict[str, tuple[str, str]]:
    """Its checks of the store: level and detail by name."""
    names = {"TILEWRIGHT_DATA_DIR": str(settings.data_dir)}
    if not settings.database_url.startswith("sqlite"):
        names["TILEWRIGHT_DATABASE_URL"] = settings.database_url
    result = CliRunner().invoke(app, ["doctor", "--json", *words], env=names)
    said = json.loads(result.stdout)
    assert said["healthy"] is (result.exit_code == 0)
    found = {check["name"]: (check["level"], check["detail"]) for check in said["checks"]}
    kinds = {"schema", "leases", "work folders", "files", "content", "spool"}
    return {name: check for name, check in found.items() if name in kinds}


def _aged(path: Path) -> Path:
    then = time.time() - 2 * DAY_S
    os.utime(path, (then, then))
    return path


@pytest.fixture
def desk(database_url: str, make_settings: MakeSettings, open_desk: OpenDesk) -> Desk:
    return open_desk(make_settings("quick", database_url=database_url))


def test_nothing_is_found_in_a_good_store(desk: Desk) -> None:
    desk.submit()
    assert doctor(desk.services.settings) == {}
    assert doctor(desk.services.settings, "--fix") == {}


def test_what_a_crash_left_is_mended(desk: Desk) -> None:
    services = desk.services
    settings = services.settings
    job = desk.submit()
    held = protocol.claim(services.database, "gone", 10.0)
    assert held is not None
    with services.database.write() as session:
        session.execute(text("UPDATE work_item SET lease_until = 1.0"))
    (settings.work_dir / "job_x.compile.1").mkdir(parents=True)
    spool = services.blobs.spool_dir
    old, young = (put_bytes(services.blobs, content, "x").sha256 for content in (b"old", b"young"))
    store = settings.data_dir / "blobs" / "cas" / "sha256"
    _aged(store / old[:2] / old[2:4] / old)
    (spool / "a.part").touch()
    _aged(spool / "a.part")
    (spool / "b.part").touch()

    looked = doctor(settings)
    assert {name: level for name, (level, _) in looked.items()} == dict.fromkeys(
        ("leases", "work folders", "files", "spool"), "warning"
    )
    assert looked["files"][1].startswith("2 that no row names")
    assert services.blobs.head(old) == 3  # only told

    mended = doctor(settings, "--fix")
    assert {level for level, _ in mended.values()} == {"fixed"}
    assert "took back 1" in mended["leases"][1]
    assert "removed 1" in mended["work folders"][1]
    for name in ("files", "spool"):
        assert "removed 1; 1 are younger than a day and stay" in mended[name][1]
    assert (services.blobs.head(old), services.blobs.head(young)) == (None, 5)
    assert [path.name for path in spool.iterdir()] == ["b.part"]
    with EmbeddedWorker(services):
        done = desk.wait(job.id)
    outcomes = [a.outcome for a in query.list_attempts(services.database, job.id)]
    assert (done.state, outcomes) == (JobState.SUCCEEDED, ["lost", "succeeded"])


def test_lost_content_is_told_and_not_mended(desk: Desk) -> None:
    desk.submit(model=b"lost")
    digest = sha256(b"lost").hexdigest()
    (path,) = (desk.services.settings.data_dir / "blobs").rglob(digest)
    path.unlink()
    for words in ((), ("--fix",)):
        level, detail = doctor(desk.services.settings, *words)["content"]
        assert level == "error"
        assert f"1 are lost that rows name, as sha256:{digest}" in detail
    assert "not mended: nothing can bring it back but a backup" in detail


def test_an_older_schema_is_migrated_and_the_file_kept(make_settings: MakeSettings) -> None:
    settings = make_settings("quick")
    migrate(settings.database_url, "0003")
    assert doctor(settings)["schema"][0] == "warning"
    assert current_revision(settings.database_url) == "0003"
    level, detail = doctor(settings, "--fix")["schema"]
    assert (level, f"brought to {HEAD}" in detail) == ("fixed", True)
    assert current_revision(settings.database_url) == HEAD
    (kept,) = settings.data_dir.glob("*.before-0003")
    with sqlite3.connect(kept) as old:
        assert old.execute("SELECT version_num FROM alembic_version").fetchone() == ("0003",)
    old.close()


def test_a_store_that_a_server_works_on_is_not_migrated(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    desk = open_desk(make_settings("quick"))
    settings = desk.services.settings
    with EmbeddedWorker(desk.services):
        with desk.services.database.write() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '0003'"))
        level, detail = doctor(settings, "--fix")["schema"]
    assert (level, "a server works on it: stop it" in detail) == ("error", True)
    assert current_revision(settings.database_url) == "0003"


def test_a_newer_schema_is_left_alone(desk: Desk) -> None:
    with desk.services.database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    level, detail = doctor(desk.services.settings, "--fix")["schema"]
    assert (level, "not mended: going back would drop" in detail) == ("error", True)
    with desk.services.database.write() as session:
        assert session.scalar(text("SELECT version_num FROM alembic_version")) == "9999"


def test_loops_are_compiled(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are not, and where they cannot be, it says so."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def compile_into(folder: Path) -> None:
        (folder / "loop.nbc").write_bytes(b"compiled")

    monkeypatch.setattr("worker.sandbox.compiled_loops.compile_into", compile_into)
    names = {"TILEWRIGHT_DATA_DIR": str(make_settings("quick").data_dir)}
    levels = []
    for words in ([], ["--fix"], []):
        result = CliRunner().invoke(app, ["doctor", "--json", *words], env=names)
        checks = json.loads(result.stdout)["checks"]
        levels.append([c["level"] for c in checks if c["name"] == "compiled loops"])
    assert levels == [["warning"], ["fixed"], []]


def test_loops_that_cannot_be_compiled_are_no_error(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").write_text("a file, so that nothing can be kept below")
    names = {"TILEWRIGHT_DATA_DIR": str(make_settings("quick").data_dir)}
    result = CliRunner().invoke(app, ["doctor", "--json", "--fix"], env=names)
    (check,) = (c for c in json.loads(result.stdout)["checks"] if c["name"] == "compiled loops")
    assert (check["level"], "not mended" in check["detail"]) == ("warning", True)
    assert result.exit_code == 0
