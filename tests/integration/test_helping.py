"""An idle worker fills the cache of a job that runs, and is in nobody's way."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from service_fixtures import Desk, MakeSettings, delete_queue
from service_workers import Worker
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from service.jobs import helping, query
from service.jobs.claim import Stage, Units, claim, record
from service.settings import Settings
from service.states import JobState
from service.store.records import JobRecord
from service.store.repos import helps, workers
from service.store.repos.rows import affected
from service.store.session import Database
from service.store.tables import WorkerRow, db_now
from worker.compiler.options import CompileOptions
from worker.runner.main import EmbeddedWorker
from worker.sandbox.compiled_loops import ensure_compiled_loops, has_compiled_loops

OpenDesk = Callable[[Settings], Desk]


@pytest.fixture(autouse=True, scope="module")
def loops() -> None:
    """No job is helped by a process that would have to compile the loops first."""
    deadline = time.monotonic() + 300.0
    while not has_compiled_loops() and time.monotonic() < deadline:
        ensure_compiled_loops()  # unless another process is at it
        time.sleep(0.5)


def _of(desk: Desk, job: JobRecord, kind: str) -> list[object]:
    return [e.payload for e in query.list_events(desk.services.database, job.id) if e.type == kind]


def _helpers(desk: Desk) -> list[Path]:
    return sorted(desk.services.settings.work_dir.glob("help.*"))


def _helped(desk: Desk) -> list[str | None]:
    """What each worker helps, as the database knows it."""
    with desk.services.database.read() as session:
        return list(session.scalars(select(WorkerRow.helps)))


def _until(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_helper_solves_what_a_job_comes_to_last(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    desk = open_desk(make_settings("long_search", help_from_s=1.0))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
        _until(lambda: not _helpers(desk))
        assert job.state is JobState.SUCCEEDED, job.error
        assert job.units_solved + job.units_cached == 60
        assert job.units_cached >= 3  # all that it found, somebody else must have solved
        assert len(_of(desk, job, "help")) == 1
        _until(lambda: _helped(desk) == [None])


@pytest.mark.parametrize("helper", ["dies", "hangs"])
def test_a_helper_that_fails_is_not_noticed(
    helper: str, make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    desk = open_desk(make_settings("long_search", help_from_s=1.0))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit({"name": "toy", "helper": helper}).id)
        _until(lambda: not _helpers(desk))
    assert job.state is JobState.SUCCEEDED, job.error
    assert (job.units_solved, job.units_cached, job.attempts) == (60, 0, 1)
    assert _of(desk, job, "help")
    assert not _of(desk, job, "crash")


def test_a_helper_makes_room_for_work(
    make_settings: MakeSettings, open_desk: OpenDesk, tmp_path: Path
) -> None:
    desk = open_desk(make_settings("long_search", help_from_s=1.0))
    toy = {"name": "toy", "helper": "hangs"}
    with EmbeddedWorker(desk.services):
        job = desk.submit(toy)
        _until(lambda: bool(_helpers(desk)))
        other = desk.submit({"name": "toy", "helper": "waits"})
        desk.wait(other.id, JobState.RUNNING, timeout_s=5.0)
        _until(lambda: not _helpers(desk), 5.0)
        assert desk.job(job.id).state is JobState.RUNNING
        (tmp_path / "gates" / "open").touch()
        assert desk.wait(job.id).state is JobState.SUCCEEDED
        assert desk.wait(other.id).state is JobState.SUCCEEDED


def test_a_database_that_is_away_at_the_end_is_told_later(
    make_settings: MakeSettings, open_desk: OpenDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody could help that job any more."""
    end, tries = helping.end, count(1)

    def away(database: Database, worker_id: str) -> None:
        if next(tries) == 1:
            raise OperationalError("UPDATE worker", {}, Exception("gone"))
        end(database, worker_id)

    monkeypatch.setattr(helping, "end", away)
    desk = open_desk(make_settings("long_search", help_from_s=1.0))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
        assert _of(desk, job, "help")

        def said() -> list[str | None]:
            with desk.services.database.read() as session:
                return list(session.scalars(select(WorkerRow.helps)))

        _until(lambda: said() == [None])
    assert next(tries) == 3


def test_a_worker_that_stops_ends_its_helper(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    desk = open_desk(make_settings("long_search", help_from_s=1.0))
    with EmbeddedWorker(desk.services):
        job = desk.submit({"name": "toy", "helper": "hangs"})
        _until(lambda: bool(_helpers(desk)))
        began = time.monotonic()
    assert time.monotonic() - began < 20.0
    assert not _helpers(desk)
    assert desk.job(job.id).attempts == 0  # given back


@pytest.mark.parametrize(
    ("help_from_s", "options"),
    [(0.0, CompileOptions()), (1.0, CompileOptions(no_cache=True)), (60.0, CompileOptions())],
    ids=["switched off", "keeps no cache", "soon over"],
)
def test_a_job_that_is_not_helped(
    help_from_s: float, options: CompileOptions, make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    desk = open_desk(make_settings("long_search", help_from_s=help_from_s))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit(options=options).id)
    assert job.state is JobState.SUCCEEDED
    assert not _of(desk, job, "help")


def test_one_worker_helps_a_job(
    database_url: str, make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    desk = open_desk(make_settings(database_url=database_url))
    database = desk.services.database
    with database.write() as session:
        for name in ("busy", "idle", "too"):
            workers.register(
                session, worker_id=name, host="h", pid=1, slots=1, version="1",
                sandbox_tier="none", strategies="",
            )  # fmt: skip
    job = desk.submit()
    held = claim(database, "busy", 30.0)
    assert held is not None
    assert helping.needing(database, "idle", 1) == ()  # it is not in that stage
    record(database, held, [(Stage("schedule", "started"), 0.0), (Units(3, 1, 40), 0.0)])
    assert helping.needing(database, "busy", 1) == ()  # it has work
    (found,) = helping.needing(database, "idle", 1)
    assert (found.job_id, found.done, found.left) == (job.id, 4, 36)
    begun = helping.begin(database, "idle", found)
    assert begun is not None
    assert begun.job.id == job.id
    assert helping.begin(database, "too", found) is None
    assert helping.needing(database, "too", 1) == ()
    assert helping.is_needed(database, begun, 1)
    with database.write() as session:  # it was killed a while ago
        silent = update(WorkerRow).where(WorkerRow.id == "idle")
        affected(session, silent.values(beat=db_now() - workers.ALIVE_S - 1))
    (again,) = helping.needing(database, "too", 1)
    assert helping.begin(database, "too", again) is not None
    other = desk.submit()
    assert not helping.is_needed(database, begun, 1)  # work waits
    second = claim(database, "too", 30.0)
    assert second is not None
    assert second.job.id == other.id
    helping.end(database, "too")
    record(database, held, [(Stage("codegen", "started"), 0.0)])
    with database.read() as session:
        assert not helps.is_scheduling(session, held.item_id, held.fence)
        assert helps.scheduling(session, 10) == []
    told = len(_of(desk, job, "help"))
    assert helping.begin(database, "too", again) is None  # seen before it went on
    assert len(_of(desk, job, "help")) == told
    with database.read() as session:
        mine = select(WorkerRow.helps).where(WorkerRow.id == "too")
        assert session.scalar(mine) is None


def test_a_helper_that_is_killed_with_its_worker_leaves_nothing(
    make_settings: MakeSettings, open_desk: OpenDesk, workers: Callable[[Settings], Worker],
    pg_database_url: str, redis_url: str, tmp_path: Path,
) -> None:  # fmt: skip
    """kill -9 of the worker that helps; the one that runs the job clears up after it."""
    settings = make_settings(
        "long_search", help_from_s=1.0, workers=1, database_url=pg_database_url,
        broker_url=redis_url, reconcile_s=0.5,
    )  # fmt: skip
    desk = open_desk(settings)
    group = workers(settings)
    processes = [group.start(), group.start()]
    _until(lambda: len(query.list_workers(desk.services.database)) == 2, 40.0)
    job = desk.submit({"name": "toy", "helper": "hangs"})
    _until(lambda: bool(_helpers(desk)), 40.0)
    _until(lambda: bool(_inside(_helpers(desk)[0])))
    payloads = _inside(_helpers(desk)[0])
    with desk.services.database.read() as session:
        pid = session.scalar(select(WorkerRow.pid).where(WorkerRow.helps == job.id))
    (process,) = [each for each in processes if each.pid == pid]
    process.kill()
    process.wait()
    _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in payloads))
    assert desk.wait(job.id, timeout_s=60.0).state is JobState.SUCCEEDED
    _until(lambda: not _helpers(desk), 30.0)
    delete_queue(desk.services)


def _inside(folder: Path) -> list[int]:
    """Processes whose command names the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found
