"""What is read from a store without SQLAlchemy is what the API says of it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from migrations import HEAD
from service.cli.connection import connect
from service.cli.main import app
from service.store.glance import schema_revision, stored_hardware
from service.store.session import migrate

SPECS = Path(__file__).parents[2] / "examples" / "my_chip.yaml"


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'tilewright.db'}"


def listed(folder: Path) -> str:
    done = CliRunner().invoke(app, ["hardware", "ls", "--json", "--data-dir", str(folder)])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_the_list_is_the_apis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for preset in ("a100", "kapla-edge"):
        with connect(None, tmp_path) as client:
            client.create_hardware({"inherits": preset, "name": f"my-{preset}"})
    glanced = listed(tmp_path)
    assert [row["name"] for row in json.loads(glanced)["stored"]] == ["my-kapla-edge", "my-a100"]
    monkeypatch.setattr("service.store.glance.stored_hardware", lambda url, limit: None)
    assert listed(tmp_path) == glanced


def test_a_list_creates_no_store(tmp_path: Path) -> None:
    document = json.loads(listed(tmp_path / "data"))
    assert document["stored"] == []
    assert len(document["presets"]) > 10
    assert not (tmp_path / "data").exists()


def test_what_cannot_be_told_is_left_to_the_api(tmp_path: Path) -> None:
    assert stored_hardware("postgresql+psycopg://u@h/d", limit=1) is None
    assert schema_revision("postgresql+psycopg://u@h/d") is None
    assert schema_revision(url_of(tmp_path)) is None
    (tmp_path / "tilewright.db").write_bytes(b"not a database, and long enough to be read")
    assert stored_hardware(url_of(tmp_path), limit=1) is None
    (tmp_path / "tilewright.db").unlink()
    sqlite3.connect(tmp_path / "tilewright.db").execute("CREATE TABLE other (x)").close()
    assert stored_hardware(url_of(tmp_path), limit=1) is None


def test_a_store_that_is_up_to_date_is_not_migrated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(url_of(tmp_path), "0001")
    assert schema_revision(url_of(tmp_path)) == "0001"
    migrate(url_of(tmp_path))
    assert schema_revision(url_of(tmp_path)) == HEAD

    def never(url: str, revision: str) -> None:
        raise AssertionError((url, revision))

    monkeypatch.setattr("migrations.runner.run", never)
    migrate(url_of(tmp_path))
