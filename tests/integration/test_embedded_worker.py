"""The embedded service end to end: submit, run in the sandbox, succeed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from service_fixtures import Desk, MakeSettings, broker_of, database_of, delete_queue

from service.errors import Conflict
from service.jobs import query
from service.queue import RUN_ITEM, ring
from service.settings import Settings
from service.states import JobState
from service.store.blobs import read_bytes
from worker.runner import tasks
from worker.runner.main import DataDirectory, EmbeddedWorker, sweep_workplaces
from worker.sandbox.held import held_folder

OpenDesk = Callable[[Settings], Desk]


USUAL = {("sqlite", "memory"), ("postgres", "redis"), ("sqlite", "amqp")}
"""Each database and each broker; the other pairs of them are campaigns."""


@pytest.fixture(
    params=[
        pytest.param(pair, marks=() if pair in USUAL else pytest.mark.campaign, id="-".join(pair))
        for pair in product(("sqlite", "postgres"), ("memory", "redis", "amqp"))
    ]
)
def desk(
    request: pytest.FixtureRequest, make_settings: MakeSettings, open_desk: OpenDesk
) -> Iterator[Desk]:
    database, broker = request.param
    database_url, broker_url = database_of(database, request), broker_of(broker, request)
    desk = open_desk(make_settings("quick", database_url=database_url, broker_url=broker_url))
    yield desk
    if not desk.services.settings.embedded:
        delete_queue(desk.services)


def test_job_succeeds_with_artifacts_events_and_cache(desk: Desk) -> None:
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
        again = desk.wait(desk.submit().id)
    database = desk.services.database
    assert job.state is JobState.SUCCEEDED, job.error
    assert job.summary == {"latency_cycles": 42}
    assert (job.units_solved, job.units_cached, job.units_total) == (3, 0, 3)
    assert (again.units_solved, again.units_cached) == (0, 3)
    artifacts = {a.name: a for a in query.list_artifacts(database, job.id)}
    assert sorted(artifacts) == ["layers", "report"]
    assert read_bytes(desk.services.blobs, artifacts["layers"].sha256) == b"index\n0\n"
    events = query.list_events(database, job.id)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert [e.payload["state"] for e in events if e.type == "state"] == [
        "queued",
        "running",
        "succeeded",
    ]
    stats = {row.kind: (row.entries, row.hits) for row in query.cache_stats(database)}
    assert stats == {"schedule": (3, 3), "reads": (1, 0)}  # for a third like them
    assert not list(desk.services.settings.work_dir.iterdir())


def test_every_attempt_leaves_a_line(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []

    class Log:
        def info(self, event: str, **fields: Any) -> None:
            if event == "attempt ended":
                lines.append(fields)

        def warning(self, event: str, **fields: Any) -> None:
            raise AssertionError((event, fields))

    monkeypatch.setattr(tasks, "get_logger", Log)
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
        deadline = time.monotonic() + 10
        while not lines and time.monotonic() < deadline:  # written when the job has ended
            time.sleep(0.01)
    [line] = lines
    assert (line["job"], line["project"], line["attempt"]) == (job.id, "local", 1)
    assert line["state"] == "succeeded"
    assert line["model"] == job.model_id
    assert line["seconds"] > 0
    assert line["max_rss_bytes"] > 1 << 20


def test_bells_that_are_none_are_ignored(desk: Desk) -> None:
    """Unknown ids, doubled bells and garbage must not disturb the next job."""
    app = desk.services.celery
    with EmbeddedWorker(desk.services):
        for args in ([], [17], [{"a": 1}], ["job_unknown:compile"], ["x", "y"]):
            app.send_task(RUN_ITEM, args=args)
        job = desk.submit()
        for _ in range(5):
            ring(app, f"{job.id}:compile")
        done = desk.wait(job.id)
        again = desk.wait(desk.submit({"n": 2}).id)
    assert (done.state, again.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert (done.attempts, again.attempts) == (1, 1)


def test_preparing_for_longer_than_a_lease_lasts_keeps_it(
    make_settings: MakeSettings, open_desk: OpenDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "ensure_compiled_loops", lambda: time.sleep(2.5))
    desk = open_desk(make_settings("quick", lease_ttl_s=1.0, heartbeat_s=0.2))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 1)


def test_folders_in_use_outlast_the_lease(make_settings: MakeSettings, open_desk: OpenDesk) -> None:
    """Who lost its lease may run for a moment longer; who was killed left its folder behind."""
    desk = open_desk(make_settings("quick"))
    folder = desk.services.settings.work_dir / "job_x.compile.1"
    with held_folder(folder):
        assert sweep_workplaces(desk.services) == 0
        assert folder.is_dir()
    assert sweep_workplaces(desk.services) == 1
    assert not folder.exists()


def test_a_long_queue_drains_through_two_slots(desk: Desk) -> None:
    """More jobs than one round of bells, submitted before the worker exists."""
    made = [desk.submit({"n": n}, priority=n % 3) for n in range(6)]
    with EmbeddedWorker(desk.services):
        states = [desk.wait(job.id, timeout_s=40).state for job in made]
        workers = query.list_workers(desk.services.database)
    assert states == [JobState.SUCCEEDED] * 6
    assert [worker.slots for worker in workers] == [2]
    assert query.list_workers(desk.services.database) == ()


def test_jobs_are_taken_by_priority(make_settings: MakeSettings, open_desk: OpenDesk) -> None:
    desk = open_desk(make_settings("quick", workers=1))
    made = [desk.submit({"n": n}, priority=n) for n in range(4)]
    with EmbeddedWorker(desk.services):
        done = [desk.wait(job.id) for job in made]
    started = [job.started for job in done]
    assert started == sorted(started, key=lambda at: -(at or 0.0))


def test_submitting_while_the_broker_is_down_loses_nothing(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    settings = make_settings("quick")
    away = open_desk(settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0"}))
    job = away.submit()
    assert away.job(job.id).state is JobState.QUEUED
    back = open_desk(settings)
    with EmbeddedWorker(back.services):
        assert back.wait(job.id).state is JobState.SUCCEEDED


def test_one_embedded_worker_per_process_and_per_directory(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    desk = open_desk(make_settings("quick"))
    with EmbeddedWorker(desk.services), pytest.raises(Conflict):
        EmbeddedWorker(desk.services).start()
    directory = DataDirectory(desk.services.settings)
    identity = directory.lock()
    with pytest.raises(Conflict, match="another tilewright process"):
        EmbeddedWorker(desk.services).start()
    directory.unlock()
    with EmbeddedWorker(desk.services):
        (worker,) = query.list_workers(desk.services.database)
    assert worker.id.startswith(f"{identity}.")
