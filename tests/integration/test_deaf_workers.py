"""A worker that no bell reaches any more takes what is ready, and learns to hear again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from service_fixtures import Desk, MakeSettings
from service_workers import Worker
from sqlalchemy import update

from benchmarks.faults.servers import OwnRedis
from service.jobs import claim as protocol
from service.settings import Settings
from service.states import JobState
from service.store.tables import ItemRow, db_now

OpenDesk = Callable[[Settings], Desk]


def test_a_broker_that_dies_between_two_bells_leaves_nobody_deaf(
    make_settings: MakeSettings,
    open_desk: OpenDesk,
    workers: Callable[[Settings], Worker],
    tmp_path: Path,
) -> None:
    """A bell that waits for the slot is acknowledged while the broker is away: the client counts it
    as under way for ever, and takes no other one."""
    broker = OwnRedis(tmp_path)
    if not broker.installed or not broker.start():
        pytest.skip("no Redis is installed")
    gate = tmp_path / "gates" / "gate"
    settings = make_settings("hold", broker_url=broker.url, worker_pool="threads", workers=1)
    desk = open_desk(settings)
    try:
        first = desk.submit({"gate": str(gate)})
        workers(settings).start()
        desk.wait(first.id, stage="ingest", timeout_s=40)
        second = desk.submit({"gate": str(gate), "n": 2})
        time.sleep(1.0)  # its bell is fetched
        broker.stop(signal.SIGKILL)
        gate.touch()
        for job in (first, second):
            assert desk.wait(job.id, timeout_s=40).state is JobState.SUCCEEDED
        assert broker.start()
        third = desk.submit({"gate": str(gate), "n": 3})
        assert desk.wait(third.id, timeout_s=90).state is JobState.SUCCEEDED
        began = time.monotonic()
        for n in range(4, 10):
            job = desk.submit({"gate": str(gate), "n": n})
            assert desk.wait(job.id, timeout_s=40).state is JobState.SUCCEEDED
        assert time.monotonic() - began < 20, "it hears: none waited to be looked for"
    finally:
        broker.stop()


def test_who_works_is_not_deaf_nor_who_was_not_rung_for(
    make_settings: MakeSettings, open_desk: OpenDesk, database_url: str
) -> None:
    desk = open_desk(make_settings(database_url=database_url))
    database = desk.services.database
    made = [desk.submit({"n": n}) for n in range(3)]
    with database.write() as session:
        session.execute(update(ItemRow).values(dispatched_at=db_now()))
    assert all(f"{job.id}:compile" in protocol.unheard(database, "idle") for job in made)
    held = protocol.claim(database, "busy", 60.0)
    assert held is not None
    assert protocol.unheard(database, "busy") == frozenset()
    others = {f"{job.id}:compile" for job in made} - {held.item_id}
    assert protocol.unheard(database, "idle") == others
    with database.write() as session:
        gone, later = sorted(others)
        session.execute(update(ItemRow).where(ItemRow.id == gone).values(dispatched_at=None))
        session.execute(
            update(ItemRow).where(ItemRow.id == later).values(not_before=db_now() + 60.0)
        )
    assert protocol.unheard(database, "idle") == frozenset()
    with database.write() as session:
        session.execute(
            update(ItemRow).where(ItemRow.id == later).values(not_before=0.0, strategies="none 1")
        )
    assert protocol.unheard(database, "idle") == frozenset(), "no strategy of this worker"
