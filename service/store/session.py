"""Engine, transactions and migrations.

One request or one step of a task is one transaction: `with database.write() as session`.
SQLite takes its write lock at BEGIN, because a deferred transaction that reads first and writes
later fails at once under contention instead of waiting.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from migrations import HEAD
from service.store.glance import schema_revision
from service.store.group_commit import GroupCommit

_SQLITE_BUSY_MS = 15_000
_POSTGRES_OPTIONS = {
    # A worker that is stopped in mid-transaction must not hold its row locks for ever.
    "idle_in_transaction_session_timeout": "60000",
    "lock_timeout": "15000",
    "statement_timeout": "60000",
}
_SQLITE_CACHE_KIB = 512
_WRITE = "tilewright_write"
T = TypeVar("T")


def is_sqlite(url: str) -> bool:
    """Tell whether `url` names a SQLite file."""
    return make_url(url).get_backend_name() == "sqlite"


def _sqlite_pragmas(connection: Any, record: ConnectionPoolEntry) -> None:
    del record
    connection.isolation_level = None
    for pragma in (
        "journal_mode=WAL",
        f"busy_timeout={_SQLITE_BUSY_MS}",
        "foreign_keys=ON",
        # NORMAL survives kill -9 but may lose acknowledged jobs on power loss.
        "synchronous=FULL",
        # Each connection keeps pages of its own, by default 2 MB: 80 MB with all that a pool opens.
        # What is not here is in the system's cache.
        f"cache_size=-{_SQLITE_CACHE_KIB}",
    ):
        connection.execute(f"PRAGMA {pragma}").close()


def _sqlite_begin(connection: Connection) -> None:
    write = connection.get_execution_options().get(_WRITE, True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def create_database_engine(url: str, *, pool_size: int = 20) -> Engine:
    """Make an engine with this project's rules for the backend of `url`."""
    if is_sqlite(url):
        path = make_url(url).database
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(
            url, pool_size=pool_size, max_overflow=pool_size, connect_args={"timeout": 15}
        )
        event.listen(engine, "connect", _sqlite_pragmas)
        event.listen(engine, "begin", _sqlite_begin)
        return engine
    options = " ".join(f"-c {name}={value}" for name, value in _POSTGRES_OPTIONS.items())
    return create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_pre_ping=True,
        connect_args={
            "options": options,
            "connect_timeout": 5,
            "keepalives": 1,
            "keepalives_idle": 15,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "application_name": "tilewright",
        },
    )


class Database:
    """Transactions on one database.  Safe across threads and across fork."""

    def __init__(self, url: str, *, pool_size: int = 20) -> None:
        self.url = url
        self._pool_size = pool_size
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._writer = threading.Lock()
        """Queue of this process's SQLite writers: SQLite itself makes them poll with growing
        pauses, and under load the unlucky wait for seconds."""
        self._group = GroupCommit()
        mine = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget_engine(mine))

    @property
    def engine(self) -> Engine:
        """The engine of this process, made on first use."""
        with self._lock:
            if self._engine is None:
                self._engine = create_database_engine(self.url, pool_size=self._pool_size)
            return self._engine

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a transaction that commits at the end of the block and rolls back on any exception.

        Keep I/O out of the block: on SQLite it holds the only write lock.
        """
        engine = self.engine
        with ExitStack() as stack:
            if is_sqlite(self.url):
                stack.enter_context(self._writer)
            session = stack.enter_context(Session(engine, expire_on_commit=False))
            stack.enter_context(session.begin())
            yield session

    def write_together(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a transaction that it may share with what other threads write now.

        On SQLite every commit waits for the disk, one after the other; what arrives meanwhile is
        committed as one, each piece in a savepoint of its own.  Returns or raises after the commit
        what `work` did.  PostgreSQL groups concurrent commits itself.
        """
        if not is_sqlite(self.url):
            with self.write() as session:
                return work(session)
        return self._group.run(work, self.write)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a consistent read-only view; takes no write lock."""
        engine = self.engine.execution_options(**{_WRITE: False})
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session

    def asker(self) -> Asker:
        """Somebody who has many small questions."""
        return Asker(self)

    def close(self) -> None:
        """Give back every connection."""
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
            self._engine = None

    def _after_fork(self) -> None:
        # The parent's sockets are not ours to close, and its lock may have been held by a thread
        # that does not exist here.
        self._lock = threading.Lock()
        self._writer = threading.Lock()
        self._group = GroupCommit()
        if self._engine is not None:
            self._engine.dispose(close=False)
            self._engine = None


class Asker:
    """Asks one question after the other, each of its own time; one thread only.

    On PostgreSQL it keeps one connection, on which every statement is a transaction: taking one out
    of the pool with a ping, BEGIN and ROLLBACK would be most of what a small question costs.  A
    connection that has broken meanwhile is replaced once.  SQLite is in this process: as `read`.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._session: Session | None = None

    def ask(self, question: Callable[[Session], T]) -> T:
        """What `question` finds.

        Raises:
            DBAPIError: the database does not answer.
        """
        if is_sqlite(self._database.url):
            with self._database.read() as session:
                return question(session)
        was_open = self._session is not None
        try:
            return question(self._opened())
        except DBAPIError:
            self.close()
            if not was_open:
                raise
        try:
            return question(self._opened())
        except DBAPIError:
            self.close()
            raise

    def _opened(self) -> Session:
        if self._session is None:
            engine = self._database.engine.execution_options(isolation_level="AUTOCOMMIT")
            self._session = Session(engine, expire_on_commit=False)
        return self._session

    def close(self) -> None:
        """Give the connection back; one that has broken is thrown away."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(DBAPIError):
                session.close()


def _forget_engine(reference: weakref.ref[Database]) -> None:
    database = reference()
    if database is not None:
        database._after_fork()


def migrate(url: str, revision: str = "head") -> None:
    """Bring the database at `url` to `revision` (up or down), holding a migration lock.

    On SQLite an existing file is copied aside first (`<name>.before-<revision>`).  Works from an
    installed package: the migration scripts are the importable package `migrations`.
    """
    if revision == "head" and schema_revision(url) == HEAD:
        return
    from migrations.runner import run  # imports alembic

    run(url, revision)


def current_revision(url: str) -> str | None:
    """Give the schema revision of the database at `url`, None when it is empty."""
    from migrations.runner import current

    return current(url)
