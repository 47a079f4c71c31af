"""Run migrations programmatically: lock, back up, upgrade or downgrade, check.

Alembic's command line needs an ini file beside the scripts; this needs only a database URL.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.pool import NullPool

from migrations import HEAD
from service.errors import Conflict

_ADVISORY_LOCK = 7_301_552_014
"""Any constant: all migrating processes of one PostgreSQL database must agree on it."""


def config() -> Config:
    """Give an Alembic configuration that points at this package's scripts."""
    result = Config()
    result.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return result


@contextmanager
def connect(url: str) -> Iterator[Connection]:
    """Connect for a migration: on SQLite with foreign keys OFF.

    Batch mode rebuilds a table by dropping it; with the pragma on, ON DELETE CASCADE would empty
    its child tables.
    """
    engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
                connection.exec_driver_sql("PRAGMA busy_timeout=15000")
                connection.commit()
            yield connection
    finally:
        engine.dispose()


@contextmanager
def _lock(url: str, connection: Connection) -> Iterator[None]:
    """Let one process migrate at a time."""
    database = make_url(url).database
    if connection.dialect.name == "sqlite":
        if not database:
            yield
            return
        with Path(database + ".migrate-lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        return
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _ADVISORY_LOCK})
    connection.commit()
    try:
        yield
    finally:
        connection.rollback()
        connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _ADVISORY_LOCK})
        connection.commit()


def _back_up(url: str, revision: str | None) -> None:
    database = make_url(url).database
    if not database or revision is None:
        return
    with (
        sqlite3.connect(database) as source,
        sqlite3.connect(f"{database}.before-{revision}") as target,
    ):
        source.backup(target)


def _is_newer(now: str | None, head: str) -> bool:
    """Whether a schema is the next release's.

    Raises:
        Conflict: it is of one after that.
    """
    if now is None or now <= head:
        return False
    if int(now) > int(head) + 1:
        raise Conflict(
            f"the database has schema {now}, and this release knows {head}",
            limit=head,
            actual=now,
            remedy="Upgrade one release after the other; start the newer one here.",
        )
    return True


def run(url: str, revision: str) -> None:
    """Move the database at `url` to `revision` (`head`, `base` or an id).

    The next release's schema is left as it is: while a service is upgraded process by process, one
    of this release may start after one of the next, and one step only adds.

    Raises:
        Conflict: the schema is of a release further on.
    """
    database = make_url(url).database
    sqlite = make_url(url).get_backend_name() == "sqlite"
    if sqlite and database:
        Path(database).parent.mkdir(parents=True, exist_ok=True)
    alembic = config()
    script = ScriptDirectory.from_config(alembic)
    target = script.get_current_head() if revision == "head" else revision
    with connect(url) as connection, _lock(url, connection):
        now = MigrationContext.configure(connection).get_current_revision()
        connection.rollback()
        if now == target or (now is None and target == "base"):
            return
        if revision == "head" and _is_newer(now, HEAD):
            return
        if sqlite:
            _back_up(url, now)
        alembic.attributes["connection"] = connection
        down = target == "base" or (
            now is not None
            and target is not None
            and target not in {step.revision for step in script.iterate_revisions("head", now)}
        )
        if down:
            command.downgrade(alembic, str(target))
        else:
            command.upgrade(alembic, str(target))
        if sqlite:
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
            if broken:
                raise RuntimeError(f"migration to {target} broke foreign keys: {broken[:5]}")
        connection.commit()


def current(url: str) -> str | None:
    """Give the revision of the database at `url`, None when it has no schema."""
    with connect(url) as connection:
        return MigrationContext.configure(connection).get_current_revision()
