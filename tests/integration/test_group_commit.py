"""Writers that arrive together share a transaction, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from service.errors import NotFound
from service.store.group_commit import MAX_TOGETHER, GroupCommit


class Table:
    """One in-memory table and a count of its transactions."""

    def __init__(self) -> None:
        self.engine = create_engine(
            "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        self.commits = 0
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE t (id INTEGER PRIMARY KEY)"))

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        with Session(self.engine) as session:
            self.entered.set()
            self.gate.wait(10)
            # The driver's own BEGIN comes too late for savepoints.
            session.execute(text("BEGIN"))
            yield session
            session.commit()
            self.commits += 1

    def ids(self) -> list[int]:
        with self.engine.connect() as connection:
            return [row[0] for row in connection.execute(text("SELECT id FROM t ORDER BY id"))]


def _insert(number: int, session: Session) -> int:
    session.execute(text("INSERT INTO t VALUES (:id)"), {"id": number})
    return number * 10


def _run(group: GroupCommit, table: Table, number: int) -> int | str:
    def work(session: Session) -> int:
        result = _insert(number, session)
        if number % 5 == 0:
            raise NotFound(f"number {number}")
        if number == 7:
            _insert(number, session)  # breaks the primary key
        if number == 8:
            raise RuntimeError("this answer cannot be built")
        return result

    try:
        return group.run(work, table.transaction)
    except (NotFound, IntegrityError, RuntimeError) as error:
        return type(error).__name__


def test_pieces_commit_together_and_fail_alone() -> None:
    table, group = Table(), GroupCommit()
    table.gate.clear()
    with ThreadPoolExecutor(MAX_TOGETHER + 40) as pool:
        first = pool.submit(_run, group, table, 1)
        assert table.entered.wait(10)
        others = [pool.submit(_run, group, table, n) for n in range(2, MAX_TOGETHER + 30)]
        while group.waiting < len(others):
            threading.Event().wait(0.005)
        table.gate.set()
        got = [first.result(10), *(f.result(10) for f in others)]
    numbers = range(1, MAX_TOGETHER + 30)
    broken = dict.fromkeys(range(5, MAX_TOGETHER + 30, 5), "NotFound")
    broken |= {7: "IntegrityError", 8: "RuntimeError"}
    assert got == [broken.get(n, n * 10) for n in numbers]
    assert table.ids() == [n for n in numbers if n not in broken]
    assert table.commits == 3  # the first alone, MAX_TOGETHER others, the rest


def test_alone_a_refusal_rolls_back() -> None:
    table, group = Table(), GroupCommit()
    assert _run(group, table, 5) == "NotFound"
    assert (table.ids(), table.commits) == ([], 0)
    assert _run(group, table, 6) == 60


def test_nobody_believes_in_a_failed_commit() -> None:
    table, group = Table(), GroupCommit()

    @contextmanager
    def disk_full() -> Iterator[Session]:
        with table.transaction() as session:
            yield session
            raise OperationalError("COMMIT", {}, Exception("disk is full"))

    with pytest.raises(OperationalError):
        group.run(lambda session: _insert(1, session), disk_full)
    assert table.ids() == []
    assert group.run(lambda session: _insert(2, session), table.transaction) == 20
