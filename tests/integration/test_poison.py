"""Payloads that misbehave: the job ends with the right problem, the worker goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from service_fixtures import Desk, MakeSettings

from service.jobs import query
from service.jobs.cancel import cancel_job
from service.settings import Settings
from service.states import JobState
from service.store.blobs import read_bytes
from worker.runner.main import EmbeddedWorker

OpenDesk = Callable[[Settings], Desk]


def _processes_of(settings: Settings) -> list[str]:
    """Command lines that name the service's work folder: payloads, and what they forked."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(line.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return [text for text in found if str(settings.work_dir) in text]


def _code(desk: Desk, job_id: str) -> object:
    error = desk.job(job_id).error
    return None if error is None else error["code"]


@pytest.mark.parametrize(
    ("runner", "state", "code", "attempts"),
    [
        ("refuse", JobState.FAILED, "TW-MODEL-004", 1),
        ("bug", JobState.FAILED, "TW-INT-001", 1),
        ("segfault", JobState.FAILED, "TW-SVC-006", 3),
        ("killed", JobState.FAILED, "TW-SVC-006", 3),
        ("exits", JobState.FAILED, "TW-SVC-006", 3),
        ("greedy", JobState.FAILED, "TW-SVC-009", 1),
        ("native_greedy", JobState.FAILED, "TW-SVC-009", 1),
        ("gibberish", JobState.FAILED, "TW-SVC-006", 3),
        ("thief", JobState.FAILED, "TW-SVC-006", 3),
        ("disk_bomb", JobState.FAILED, "TW-SVC-017", 1),
        ("killed_once", JobState.SUCCEEDED, None, 2),
        ("flood", JobState.SUCCEEDED, None, 1),
        ("daemon", JobState.SUCCEEDED, None, 1),
    ],
)
def test_poison(
    runner: str,
    state: JobState,
    code: str | None,
    attempts: int,
    make_settings: MakeSettings,
    open_desk: OpenDesk,
) -> None:
    desk = open_desk(make_settings(runner, file_limit_bytes=16 << 20))  # loops take 4
    settings = desk.services.settings
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id, timeout_s=20)
        stats = query.queue_stats(desk.services.database)
        assert stats.workers_alive == 1
    assert (job.state, _code(desk, job.id), job.attempts) == (state, code, attempts)
    assert not list(settings.work_dir.iterdir())
    assert not list(desk.services.blobs.spool_dir.glob("*.part"))
    assert not _processes_of(settings)


def test_refused_job_keeps_the_artifacts_of_its_finished_stages(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    desk = open_desk(make_settings("refuse"))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
    assert job.error is not None
    assert (job.error["node"], job.error["exit_code"]) == ("conv_1", 3)
    (artifact,) = query.list_artifacts(desk.services.database, job.id)
    assert artifact.name == "placement"
    assert read_bytes(desk.services.blobs, artifact.sha256) == b"{}"


def test_wall_limit_times_out(make_settings: MakeSettings, open_desk: OpenDesk) -> None:
    desk = open_desk(make_settings("sleeper"))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit(wall_limit_s=4.0).id)
    assert job.state is JobState.TIMED_OUT
    assert job.error is not None
    assert (job.error["code"], job.error["limit"]) == ("TW-SVC-008", 4.0)
    assert job.error["stage"] == "schedule"
    assert job.attempts == 1


def test_a_stage_limit_times_out_and_is_named(
    make_settings: MakeSettings, open_desk: OpenDesk
) -> None:
    desk = open_desk(make_settings("sleeper", stage_limits_s={"schedule": 0.5}))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
    assert job.state is JobState.TIMED_OUT
    assert job.error is not None
    assert (job.error["code"], job.error["stage"]) == ("TW-SVC-008", "schedule")
    assert (job.error["limit"], job.attempts) == (0.5, 1)


def test_other_jobs_run_beside_a_poisoned_one(
    make_settings: MakeSettings, open_desk: OpenDesk, tmp_path: Path
) -> None:
    desk = open_desk(make_settings("hold"))
    gate = tmp_path / "gates" / "gate"
    with EmbeddedWorker(desk.services):
        stuck = desk.submit({"gate": str(gate.with_name("never"))})
        desk.wait(stuck.id, stage="ingest")
        gate.touch()
        assert desk.wait(desk.submit({"gate": str(gate)}).id).state is JobState.SUCCEEDED
        cancel_job(desk.services.database, stuck.id)
        assert desk.wait(stuck.id).state is JobState.CANCELED


def test_cancel_kills_the_child_quickly(make_settings: MakeSettings, open_desk: OpenDesk) -> None:
    desk = open_desk(make_settings("sleeper"))
    with EmbeddedWorker(desk.services):
        job = desk.submit()
        desk.wait(job.id, stage="schedule")
        began = time.monotonic()
        assert cancel_job(desk.services.database, job.id).state is JobState.CANCELING
        done = desk.wait(job.id)
        assert time.monotonic() - began < 5
    assert done.state is JobState.CANCELED
    assert done.error is not None and done.error["code"] == "TW-SVC-007"
    (attempt,) = query.list_attempts(desk.services.database, job.id)
    assert attempt.outcome == "canceled"


def test_stop_gives_running_work_back(make_settings: MakeSettings, open_desk: OpenDesk) -> None:
    settings = make_settings("sleeper")
    desk = open_desk(settings)
    with EmbeddedWorker(desk.services):
        job = desk.submit()
        desk.wait(job.id, stage="schedule")
    assert desk.job(job.id).attempts == 0
    (attempt,) = query.list_attempts(desk.services.database, job.id)
    assert attempt.outcome == "given_back"
    again = open_desk(settings.model_copy(update={"runner": "service_payloads:quick"}))
    with EmbeddedWorker(again.services):
        assert again.wait(job.id).state is JobState.SUCCEEDED


def test_output_of_a_crash_is_kept(make_settings: MakeSettings, open_desk: OpenDesk) -> None:
    desk = open_desk(make_settings("bug"))
    with EmbeddedWorker(desk.services):
        job = desk.wait(desk.submit().id)
    (attempt,) = query.list_attempts(desk.services.database, job.id)
    assert attempt.log_sha256 is not None
    log = read_bytes(desk.services.blobs, attempt.log_sha256)
    assert b"ZeroDivisionError: an untyped bug" in log
