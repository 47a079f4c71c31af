"""kill -9 of a real worker process at every step of the protocol: one result, nothing left over."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from service_fixtures import Desk, MakeSettings, delete_queue
from service_workers import Worker
from sqlalchemy import select, update
from webhook_receiver import Receiver, receiver, status

from benchmarks.faults.servers import free_port
from service.jobs import query
from service.jobs.webhooks import NewWebhook, create_webhook
from service.settings import Settings
from service.states import DeliveryState, ItemState, JobState
from service.store.records import DeliveryRecord, JobRecord
from service.store.repos import items
from service.store.tables import DeliveryRow
from worker.runner.tasks import Step

OpenDesk = Callable[[Settings], Desk]


@pytest.fixture
def listening() -> Iterator[Receiver]:
    with receiver() as state:
        yield state


ALLOWED = {"webhook_hosts": ("127.0.0.1",), "webhook_timeout_s": 5.0}


def _subscribe(desk: Desk, url: str) -> str:
    services = desk.services
    new = NewWebhook(url, "ci", ())
    return create_webhook(services.database, services.settings, new, owner="local")[0].id


def _told(desk: Desk, webhook_id: str, timeout_s: float = 20.0) -> list[DeliveryRecord]:
    """All messages, once none of them waits."""
    deadline = time.monotonic() + timeout_s
    while True:
        page = query.list_deliveries(desk.services.database, webhook_id, owner="local")
        if all(row.state is not DeliveryState.PENDING for row in page.rows):
            return list(page.rows)
        assert time.monotonic() < deadline, page.rows
        time.sleep(0.05)


def _check_told(desk: Desk, webhook_id: str, got: Receiver, job: JobRecord) -> None:
    """One message on the end of the job, which has arrived."""
    [message] = _told(desk, webhook_id)
    assert (message.job_id, message.type) == (job.id, "job.succeeded")
    assert message.state is DeliveryState.DELIVERED
    assert {one.id for one in got.got} == {message.id}


def _check(desk: Desk, job: JobRecord, fences: int) -> None:
    """One result, fences grow, nothing leased, nothing left on disk."""
    database, settings = desk.services.database, desk.services.settings
    assert job.state is JobState.SUCCEEDED, job.error
    states = [
        event.payload["state"]
        for event in query.list_events(database, job.id)
        if event.type == "state"
    ]
    assert states == ["queued", "running", "succeeded"]
    attempts = query.list_attempts(database, job.id)
    assert [attempt.fence for attempt in attempts] == list(range(1, fences + 1))
    assert [attempt.outcome for attempt in attempts] == ["lost"] * (fences - 1) + ["succeeded"]
    assert [artifact.name for artifact in query.list_artifacts(database, job.id)] == [
        "layers",
        "report",
    ]
    with database.read() as session:
        (item,) = items.of_job(session, job.id)
    assert (item.state, item.owner, item.lease_until) == (ItemState.DONE, None, None)
    deadline = time.monotonic() + 5
    while list(settings.work_dir.glob("*")):
        assert time.monotonic() < deadline, list(settings.work_dir.glob("*"))
        time.sleep(0.05)
    assert not list(desk.services.blobs.spool_dir.glob("*.part"))


USUAL = Step.BLOBS_STORED
"""The step that the default suite kills at: the work is done, and nobody knows it."""


@pytest.mark.parametrize(
    "step", [s if s is USUAL else pytest.param(s, marks=pytest.mark.campaign) for s in Step]
)
def test_embedded_process_killed_at(
    step: Step,
    make_settings: MakeSettings,
    open_desk: OpenDesk,
    workers: Callable[[Settings], Worker],
    listening: Receiver,
) -> None:
    settings = make_settings("quick", **ALLOWED)
    desk = open_desk(settings)
    hook = _subscribe(desk, listening.url)
    job = desk.submit()  # its bell rings in this process: lost, like that of a dead API
    worker = workers(settings)
    process = worker.start(step)
    worker.wait_paused()
    process.send_signal(signal.SIGKILL)
    process.wait()
    worker.start()
    _check(desk, desk.wait(job.id, timeout_s=40), fences=1 if step is Step.PUBLISHED else 2)
    _check_told(desk, hook, listening, job)


def test_killed_while_it_delivers(
    make_settings: MakeSettings,
    open_desk: OpenDesk,
    workers: Callable[[Settings], Worker],
    listening: Receiver,
) -> None:
    """The receiver has the message, and nobody knows: it comes again, with the same id."""
    settings = make_settings("quick", **ALLOWED)
    desk = open_desk(settings)
    hook = _subscribe(desk, listening.url)
    job = desk.submit()
    listening.answers = [lambda handler: time.sleep(30), status(200)]
    worker = workers(settings)
    process = worker.start()
    listening.wait(1, timeout_s=60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with desk.services.database.write() as session:  # instead of waiting for the lease to pass
        assert session.scalar(select(DeliveryRow.lease_until).where(DeliveryRow.job_id == job.id))
        session.execute(update(DeliveryRow).values(lease_until=0.0))
    worker.start()
    listening.wait(2, timeout_s=60)
    _check_told(desk, hook, listening, job)
    [message] = _told(desk, hook)
    log = query.get_delivery(desk.services.database, hook, message.id, "local")[1]
    assert [(a.number, a.status, a.duration_s is None) for a in log] == [
        (1, None, True), (2, 200, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("step", "broker"),
    [
        (Step.CHILD_STARTED, "redis"),
        *(
            pytest.param(step, broker, marks=pytest.mark.campaign)
            for step in Step
            for broker in ("redis", "amqp")
            if (step, broker) != (Step.CHILD_STARTED, "redis")
        ),
    ],
)
def test_scaled_out_worker_killed_at(
    step: Step,
    broker: str,
    request: pytest.FixtureRequest,
    make_settings: MakeSettings,
    open_desk: OpenDesk,
    workers: Callable[[Settings], Worker],
    pg_database_url: str,
    listening: Receiver,
) -> None:
    settings = make_settings(
        "quick",
        **ALLOWED,
        database_url=pg_database_url,
        broker_url=request.getfixturevalue(f"{broker}_url"),
        queue_name=f"tw-test-{secrets.token_hex(6)}",
        worker_pool="threads",
        lease_ttl_s=3.0,
        heartbeat_s=0.5,
    )
    desk = open_desk(settings)
    hook = _subscribe(desk, listening.url)
    worker = workers(settings)
    process = worker.start(step)
    job = desk.submit()
    worker.wait_paused()
    process.send_signal(signal.SIGKILL)
    process.wait()
    worker.start()
    try:
        fences = 1 if step is Step.PUBLISHED else 2
        _check(desk, desk.wait(job.id, timeout_s=40), fences)
        _check_told(desk, hook, listening, job)
    finally:
        delete_queue(desk.services)


@pytest.mark.parametrize("broker", ["redis", pytest.param("amqp", marks=pytest.mark.campaign)])
def test_prefork_worker_runs_jobs_and_stops_on_sigterm(
    broker: str,
    request: pytest.FixtureRequest,
    make_settings: MakeSettings,
    open_desk: OpenDesk,
    workers: Callable[[Settings], Worker],
    pg_database_url: str,
) -> None:
    settings = make_settings(
        "quick",
        database_url=pg_database_url,
        broker_url=request.getfixturevalue(f"{broker}_url"),
        worker_pool="prefork",
    )
    desk = open_desk(settings)
    process = workers(settings).start()
    try:
        made = [desk.submit({"n": n}) for n in range(4)]
        for job in made:
            assert desk.wait(job.id, timeout_s=40).state is JobState.SUCCEEDED
        process.terminate()
        assert process.wait(timeout=60) == 0
        assert query.list_workers(desk.services.database) == ()
    finally:
        delete_queue(desk.services)


def test_stopped_worker_loses_its_lease_and_its_child(
    make_settings: MakeSettings,
    open_desk: OpenDesk,
    workers: Callable[[Settings], Worker],
    pg_database_url: str,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """SIGSTOP past the lease: another worker finishes, and the first one's work is void."""
    gate = tmp_path / "gates" / "gate"
    settings = make_settings(
        "hold",
        database_url=pg_database_url,
        broker_url=redis_url,
        worker_pool="threads",
        lease_ttl_s=2.0,
        heartbeat_s=0.4,
        wall_limit_s=60.0,
    )
    desk = open_desk(settings)
    worker = workers(settings)
    try:
        first = worker.start()
        job = desk.submit({"gate": str(gate)})
        desk.wait(job.id, stage="ingest", timeout_s=40)
        first.send_signal(signal.SIGSTOP)
        worker.start(data_dir=str(tmp_path / "other"), blob_url=settings.blob_url)
        deadline = time.monotonic() + 40
        while desk.job(job.id).attempts < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        gate.touch()
        done = desk.wait(job.id)
        digest = done.bundle_digest
        first.send_signal(signal.SIGCONT)
        time.sleep(1.5)
        _check(desk, desk.job(job.id), fences=2)
        assert desk.job(job.id).bundle_digest == digest
        assert first.poll() is None
        assert not list(settings.work_dir.glob("*"))
    finally:
        delete_queue(desk.services)


def test_second_instance_is_refused(
    make_settings: MakeSettings,
    open_desk: OpenDesk,
    workers: Callable[[Settings], Worker],
    tmp_path: Path,
) -> None:
    settings = make_settings("quick")
    open_desk(settings)
    worker = workers(settings)
    first = worker.start()
    deadline = time.monotonic() + 30
    while not worker.marker.with_suffix(".up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second = worker.start()
    assert second.wait(timeout=30) != 0
    assert "another tilewright process" in (tmp_path / "workers.log").read_text()
    assert first.poll() is None


@pytest.mark.campaign(smoke=False)
def test_chaos_of_random_kills(
    make_settings: MakeSettings,
    open_desk: OpenDesk,
    workers: Callable[[Settings], Worker],
) -> None:
    """20 jobs, the only process killed every second: all succeed, each once."""
    settings = make_settings("patient", max_attempts=50)
    desk = open_desk(settings)
    made = [desk.submit({"n": n, "seconds": 0.3}) for n in range(20)]
    worker = workers(settings)
    deadline = time.monotonic() + 180
    while any(desk.job(job.id).state is not JobState.SUCCEEDED for job in made):
        assert time.monotonic() < deadline
        process = worker.start()
        time.sleep(2.5)
        process.kill()
        process.wait()
    database = desk.services.database
    for job in made:
        done = [
            e
            for e in query.list_events(database, job.id)
            if e.type == "state" and e.payload["state"] == "succeeded"
        ]
        assert len(done) == 1
        outcomes = [a.outcome for a in query.list_attempts(database, job.id)]
        assert outcomes.count("succeeded") == 1


def test_work_goes_on_without_a_broker(
    make_settings: MakeSettings, open_desk: OpenDesk, workers: Callable[[Settings], Worker]
) -> None:
    """Nothing listens there, from the start on: the database alone tells what there is to do."""
    settings = make_settings("quick", broker_url=f"redis://127.0.0.1:{free_port()}/0")
    desk = open_desk(settings)
    job = desk.submit()
    workers(settings).start()
    _check(desk, desk.wait(job.id, timeout_s=60), fences=1)
