"""Sweeps on both databases: how items get jobs, what a kill or a deletion leaves, how they go."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from service_fixtures import Desk, MakeSettings, delete_queue
from service_workers import Worker
from sqlalchemy import update

from service.errors import NotFound, QuotaExceeded, TooLarge
from service.jobs import claim as protocol
from service.jobs import query, submit, sweeps
from service.jobs.feed import feed, feed_all
from service.jobs.reconcile import reconcile
from service.jobs.retention import Retired, retire
from service.jobs.sweep_figures import progress
from service.jobs.sweeps import NewPoint, NewSweep, Sweep
from service.settings import Settings
from service.states import JobState, SweepItemState, SweepState
from service.store.blobs import put_bytes
from service.store.records import JobFilter, JobRecord
from service.store.repos import workers as worker_rows
from service.store.tables import CalibrationRow, JobRow, ModelRow, SweepRow, db_now
from worker.compiler.options import CompileOptions
from worker.runner.tasks import Step

OpenDesk = Callable[[Settings], Desk]
HOUR_S = 3600.0
AHEAD = 3


@pytest.fixture
def desk(database_url: str, open_desk: OpenDesk, make_settings: MakeSettings) -> Desk:
    return open_desk(make_settings(database_url=database_url, sweep_ahead=AHEAD))


def model_of(desk: Desk, content: bytes = b"fake model") -> str:
    ref = put_bytes(desk.services.blobs, content, "application/octet-stream")
    return submit.add_model(desk.services.database, ref, name="fake", kind="onnx")[0].id


def swept(desk: Desk, machines: int, *models: str, **changes: Any) -> str:
    points = tuple(
        NewPoint(submit.NewSpec({"name": f"toy-{n}"}, f"{n:064}", f"toy-{n}"), f"toy-{n}", (n,), n)
        for n in range(machines)
    )
    new = NewSweep(models or (model_of(desk),), points, ("n",), **changes)
    services = desk.services
    sweep, is_new = sweeps.submit_sweep(services.database, services.settings, new)
    assert is_new
    return sweep.record.id


def fed(desk: Desk, sweep_id: str) -> int:
    services = desk.services
    return feed(services.database, services.outbox, services.settings, sweep_id)


def seen(desk: Desk, sweep_id: str) -> Sweep:
    return sweeps.get_sweep(desk.services.database, sweep_id)


def jobs_of(desk: Desk, sweep_id: str, *states: JobState) -> list[JobRecord]:
    wanted = JobFilter(states=states, sweep=sweep_id)
    return list(query.list_jobs(desk.services.database, wanted=wanted, limit=200).rows)


def taken(desk: Desk) -> protocol.Claim:
    held = protocol.claim(desk.services.database, "w", 60.0)
    assert held is not None
    return held


def succeed(desk: Desk, held: protocol.Claim, **summary: float) -> None:
    protocol.succeed(
        desk.services.database, held, artifacts=(), bundle_digest="b", summary=summary,
        usage=protocol.Usage(),
    )  # fmt: skip


def test_a_few_items_have_jobs_and_in_order(desk: Desk) -> None:
    sweep_id = swept(desk, 8)
    assert fed(desk, sweep_id) == AHEAD
    assert fed(desk, sweep_id) == 0
    order = []
    for number in range(8):
        held = taken(desk)
        order.append(held.hardware.name)
        assert fed(desk, sweep_id) == (1 if number < 8 - AHEAD else 0)
        succeed(desk, held, latency_s=1.0 + number, energy_pj=2.0)
        fed(desk, sweep_id)
    assert order == [f"toy-{n}" for n in range(8)]
    done = seen(desk, sweep_id)
    assert done.record.state is SweepState.SUCCEEDED
    assert done.record.finished is not None
    assert [item.latency_s for item in done.items] == [1.0 + n for n in range(8)]
    assert all(item.seconds is not None and item.seconds >= 0 for item in done.items)


def test_idle_workers_get_more(desk: Desk) -> None:
    with desk.services.database.write() as session:
        worker_rows.register(
            session, worker_id="w", host="h", pid=1, slots=6, version="0", sandbox_tier="none",
            strategies="",
        )  # fmt: skip
    desk.submit()  # takes one of the slots
    assert fed(desk, swept(desk, 20)) == 5
    assert fed(desk, swept(desk, 20)) == AHEAD  # nobody is idle any more


def test_feeding_at_the_same_time_makes_each_job_once(desk: Desk) -> None:
    sweep_id = swept(desk, 9)
    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(lambda _: fed(desk, sweep_id), range(12))) == AHEAD
    assert len(jobs_of(desk, sweep_id)) == AHEAD
    assert sum(item.job_id is not None for item in seen(desk, sweep_id).items) == AHEAD


def test_figures_that_are_none_are_not_shown(desk: Desk) -> None:
    """A summary is written by the job's own process: it may say anything."""
    sweep_id = swept(desk, 4)
    for odd in (float("inf"), 10**400, True, "fast"):
        fed(desk, sweep_id)
        succeed(desk, taken(desk), latency_s=odd, energy_pj=1.0)  # type: ignore[arg-type]
    fed(desk, sweep_id)
    done = seen(desk, sweep_id)
    assert done.record.state is SweepState.SUCCEEDED
    assert [(item.latency_s, item.energy_pj) for item in done.items] == [(None, 1.0)] * 4


def test_a_job_that_was_deleted_too_early_is_made_again(desk: Desk) -> None:
    """By a release that knows no sweeps: this one refuses."""
    sweep_id = swept(desk, 2)
    fed(desk, sweep_id)
    held = taken(desk)
    succeed(desk, held, latency_s=1.0)
    with desk.services.database.write() as session:
        session.execute(JobRow.__table__.delete().where(JobRow.id == held.job.id))
    fed(desk, sweep_id)
    first = seen(desk, sweep_id).items[0]
    assert first.state is SweepItemState.ACTIVE
    assert first.job_id not in (None, held.job.id)


def test_a_model_that_is_gone_fails_its_items_alone(desk: Desk) -> None:
    gone, kept = model_of(desk, b"gone"), model_of(desk, b"kept")
    sweep_id = swept(desk, 1, gone, kept)
    with desk.services.database.write() as session:
        session.execute(ModelRow.__table__.delete().where(ModelRow.id == gone))
    assert fed(desk, sweep_id) == 1
    first, second = seen(desk, sweep_id).items
    assert (first.state, first.model_name) == (SweepItemState.FAILED, None)
    assert first.error is not None
    assert first.error["code"] == "TW-SVC-001"
    assert second.state is SweepItemState.ACTIVE


def test_a_quota_of_jobs_holds_for_sweeps(
    database_url: str, open_desk: OpenDesk, make_settings: MakeSettings
) -> None:
    desk = open_desk(make_settings(database_url=database_url, max_active_jobs=2, sweep_ahead=9))
    sweep_id = swept(desk, 5)
    assert fed(desk, sweep_id) == 2
    with pytest.raises(QuotaExceeded):
        desk.submit()
    succeed(desk, taken(desk))
    assert fed(desk, sweep_id) == 1


def test_limits_hold_for_who_does_not_come_over_http(
    database_url: str, open_desk: OpenDesk, make_settings: MakeSettings
) -> None:
    settings = make_settings(database_url=database_url, max_sweep_items=3, max_active_sweeps=1)
    desk = open_desk(settings)
    with pytest.raises(TooLarge) as refused:
        swept(desk, 4)
    assert (refused.value.limit, refused.value.actual) == (3, 4)
    swept(desk, 3)
    with pytest.raises(QuotaExceeded):
        swept(desk, 1)


def test_a_cancel_that_nobody_finished_is_finished_by_the_reconciler(desk: Desk) -> None:
    """The process that accepted it is killed right after its commit."""
    services = desk.services
    sweep_id = swept(desk, 6)
    fed(desk, sweep_id)
    held = taken(desk)
    sweeps.cancel_sweep(services.database, sweep_id)
    waiting = seen(desk, sweep_id)
    assert waiting.record.state is SweepState.CANCELING
    assert progress(waiting.items).canceled == 6 - AHEAD
    reconcile(services.database, services.outbox, services.settings)
    assert desk.job(held.job.id).state is JobState.CANCELING
    assert len(jobs_of(desk, sweep_id, JobState.CANCELED)) == AHEAD - 1
    protocol.canceled(services.database, held, protocol.Usage())
    reconcile(services.database, services.outbox, services.settings)
    assert seen(desk, sweep_id).record.state is SweepState.CANCELED


def test_a_sweep_goes_on_without_who_submitted_it(desk: Desk) -> None:
    """Nobody fed it: every reconciler does."""
    services = desk.services
    sweep_id = swept(desk, 2)
    assert jobs_of(desk, sweep_id) == []
    repairs = reconcile(services.database, services.outbox, services.settings)
    assert (repairs.fed, repairs.rung) == (2, 0)  # its own bells rang at once
    assert feed_all(services.database, services.outbox, services.settings) == 0


def finished(desk: Desk, *models: str, **changes: Any) -> str:
    sweep_id = swept(desk, 2, *models, **changes)
    while seen(desk, sweep_id).record.state is SweepState.RUNNING:
        fed(desk, sweep_id)
        for _ in jobs_of(desk, sweep_id, JobState.QUEUED):
            succeed(desk, taken(desk), latency_s=1.0)
        fed(desk, sweep_id)
    return sweep_id


def age(desk: Desk, row: type, column: str, **where: str) -> None:
    statement = update(row).values({column: db_now() - 2 * HOUR_S})
    with desk.services.database.write() as session:
        session.execute(
            statement.where(*(getattr(row, name) == value for name, value in where.items())),
            execution_options={"synchronize_session": False},
        )


def test_a_sweep_goes_as_a_whole_when_it_ended_long_ago(desk: Desk) -> None:
    database = desk.services.database
    old, young = finished(desk), finished(desk)
    age(desk, JobRow, "finished")
    keep = desk.services.settings.model_copy(update={"keep_jobs_s": HOUR_S})
    assert retire(database, keep) == Retired()  # jobs stay as long as their sweep
    age(desk, SweepRow, "finished", id=old)
    assert retire(database, keep) == Retired(sweeps=1)
    with pytest.raises(NotFound):
        seen(desk, old)
    assert jobs_of(desk, old) == []
    assert len(jobs_of(desk, young)) == 2
    assert seen(desk, young).record.state is SweepState.SUCCEEDED


def test_what_a_sweep_needs_stays(desk: Desk) -> None:
    services = desk.services
    ref = put_bytes(services.blobs, b"arrays", "application/zip")
    submit.add_calibration(services.database, ref, name="a")
    waits, done = model_of(desk, b"waits"), model_of(desk, b"done")
    swept(desk, 1, waits, options=CompileOptions(inputs=ref.sha256))
    finished_id = finished(desk, done)
    for row in (ModelRow, CalibrationRow):
        age(desk, row, "created")
    keep = services.settings.model_copy(update={"keep_unused_s": HOUR_S})
    assert retire(services.database, keep) == Retired()
    sweeps.delete_sweep(services.database, finished_id)
    assert retire(services.database, keep) == Retired(models=1)
    assert query.get_model(services.database, waits).id == waits


def each_once(desk: Desk, sweep_id: str, number: int) -> None:
    """Every item succeeded, by one job that has one result."""
    done = seen(desk, sweep_id)
    assert done.record.state is SweepState.SUCCEEDED
    assert [item.number for item in done.items] == list(range(number))
    jobs = jobs_of(desk, sweep_id)
    assert {job.id for job in jobs} == {item.job_id for item in done.items}
    assert len(jobs) == number
    for job in jobs:
        outcomes = [a.outcome for a in query.list_attempts(desk.services.database, job.id)]
        assert outcomes.count("succeeded") == 1
        assert set(outcomes) <= {"succeeded", "lost"}


def until_ended(desk: Desk, sweep_id: str, number: int) -> None:
    for item in range(number):  # jobs are made one after the other: each shows up in the end
        while (job := seen(desk, sweep_id).items[item].job_id) is None:
            assert seen(desk, sweep_id).record.state is SweepState.RUNNING
        desk.wait(job, timeout_s=60)
    while seen(desk, sweep_id).record.state is SweepState.RUNNING:
        reconcile(desk.services.database, desk.services.outbox, desk.services.settings)


@pytest.mark.parametrize("step", [Step.BLOBS_STORED, Step.PUBLISHED], ids=str)
def test_a_killed_process_loses_nothing_of_a_sweep(
    step: Step, make_settings: MakeSettings, open_desk: OpenDesk, tmp_path: Path
) -> None:
    settings = make_settings("quick", sweep_ahead=2, workers=1)
    desk = open_desk(settings)
    sweep_id = swept(desk, 4)
    worker = Worker(settings, tmp_path)
    try:
        process = worker.start(step)
        worker.wait_paused()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert seen(desk, sweep_id).record.state is SweepState.RUNNING
        worker.start()
        until_ended(desk, sweep_id, 4)
    finally:
        worker.close()
    each_once(desk, sweep_id, 4)


def test_workers_apart_share_a_sweep_and_one_is_killed(
    make_settings: MakeSettings, open_desk: OpenDesk, tmp_path: Path, pg_database_url: str,
    redis_url: str,
) -> None:  # fmt: skip
    settings = make_settings(
        "quick", database_url=pg_database_url, broker_url=redis_url, worker_pool="threads",
        queue_name=f"tw-test-{secrets.token_hex(6)}", lease_ttl_s=3.0, heartbeat_s=0.5,
        sweep_ahead=2, workers=1,
    )  # fmt: skip
    desk = open_desk(settings)
    worker = Worker(settings, tmp_path)
    try:
        killed = worker.start(Step.CHILD_STARTED, data_dir=str(tmp_path / "first"))
        sweep_id = swept(desk, 6)
        fed(desk, sweep_id)
        worker.wait_paused()
        for name in ("second", "third"):
            worker.start(data_dir=str(tmp_path / name))
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        until_ended(desk, sweep_id, 6)
        each_once(desk, sweep_id, 6)
    finally:
        worker.close()
        delete_queue(desk.services)
