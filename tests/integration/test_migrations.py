"""Migrations: up, down, up with rows present; the models equal the head; one at a time."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from migrations.runner import connect
from service.errors import Conflict
from service.jobs import query, submit
from service.store.records import BlobRef
from service.store.session import Database, create_database_engine, current_revision, migrate
from service.store.tables import Base

HEAD = "0013"


def _tables(url: str) -> set[str]:
    with connect(url) as connection:
        return set(inspect(connection).get_table_names()) - {"alembic_version"}


def test_up_down_up(database_url: str) -> None:
    assert current_revision(database_url) == HEAD
    assert _tables(database_url) == set(Base.metadata.tables)
    migrate(database_url, "base")
    assert current_revision(database_url) is None
    assert _tables(database_url) == set()
    migrate(database_url)
    assert _tables(database_url) == set(Base.metadata.tables)


def test_models_equal_head(database_url: str) -> None:
    with connect(database_url) as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "render_as_batch": True}
        )
        found = compare_metadata(context, Base.metadata)
        if connection.dialect.name == "sqlite":
            # It does not tell the direction of an index's columns, so the two look different.
            (made,) = connection.execute(
                text("SELECT sql FROM sqlite_master WHERE name = 'ix_work_item_queue'")
            ).one()
            assert "(state, priority DESC, created, id)" in made
            found = [one for one in found if getattr(one[1], "name", "") != "ix_work_item_queue"]
        assert found == []


def test_every_design_table_exists() -> None:
    assert set(Base.metadata.tables) == {
        "api_key",
        "artifact",
        "attempt",
        "audit",
        "blob",
        "cache_entry",
        "calibration",
        "dep",
        "event",
        "hw_owner",
        "hw_spec",
        "idempotency",
        "job",
        "job_item",
        "model",
        "project_limit",
        "share_link",
        "sweep",
        "sweep_item",
        "upload",
        "webhook",
        "webhook_attempt",
        "webhook_delivery",
        "work_item",
        "worker",
    }


def test_migrating_twice_keeps_rows(database_url: str) -> None:
    database = Database(database_url)
    ref = BlobRef("a" * 64, 3, "application/octet-stream")
    model, created = submit.add_model(database, ref, name="m", kind="onnx")
    assert created
    database.close()
    migrate(database_url)
    assert query.get_model(database, model.id).name == "m"
    database.close()


def test_concurrent_migrations_of_an_empty_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: migrate(url), range(4)))
    assert current_revision(url) == HEAD


def test_file_is_backed_up_before_a_change(tmp_path: Path) -> None:
    path = tmp_path / "tw.db"
    url = f"sqlite:///{path}"
    migrate(url)
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO blob VALUES ('b', 1, 'text/plain', 0, NULL)")
    migrate(url, "base")
    with sqlite3.connect(f"{path}.before-{HEAD}") as saved:
        assert saved.execute("SELECT sha256 FROM blob").fetchall() == [("b",)]


@pytest.mark.parametrize("pragma", ["journal_mode", "synchronous", "foreign_keys", "cache_size"])
def test_sqlite_pragmas(tmp_path: Path, pragma: str) -> None:
    url = f"sqlite:///{tmp_path / 'tw.db'}"
    migrate(url)
    database = Database(url)
    with database.engine.connect() as connection:
        value = connection.exec_driver_sql(f"PRAGMA {pragma}").scalar()
    database.close()
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "cache_size": -512}
    assert value == wanted[pragma]


def test_the_next_release_s_schema_is_left_alone(database_url: str) -> None:
    """A process of this release that starts late in an upgrade; two steps on are refused."""
    for step, is_known in ((1, True), (2, False)):
        newer = f"{int(HEAD) + step:04}"
        engine = create_database_engine(database_url)
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = :to"), {"to": newer})
        engine.dispose()
        if is_known:
            migrate(database_url)
        else:
            with pytest.raises(Conflict, match=newer):
                migrate(database_url)
        assert current_revision(database_url) == newer
