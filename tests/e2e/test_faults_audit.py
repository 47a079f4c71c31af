"""Each rule of the fault campaign's audit sees its breach: a store that is as it should be is
tampered with, one thing at a time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from service_fixtures import TESTS, Desk, migrate_quickly
from sqlalchemy import create_engine, text

from benchmarks.faults.audit import Told, audit
from benchmarks.faults.books import Books
from benchmarks.faults.left import a_day_later, after_the_end, settled
from benchmarks.faults.load import Accepted, Answer
from benchmarks.faults.site import PLANS, Site, orphans
from benchmarks.faults.sweep_audit import audit_sweeps
from benchmarks.faults.usual import Usual
from service.bootstrap import open_services
from service.jobs import submit, sweeps
from service.jobs.feed import feed
from service.jobs.sweeps import NewPoint, NewSweep
from service.jobs.webhooks import NewWebhook, create_webhook
from service.settings import Settings
from service.states import OPEN_SWEEP_STATES
from service.store.blobs import put_bytes
from worker.runner.main import EmbeddedWorker
from worker.sandbox.held import held_folder


@dataclass
class Ended:
    """A service that has ended: what an audit asks of a site, and what it should find."""

    settings: Settings
    temporary: Path
    told: Told
    usual: Usual
    proxy: None = None
    running: tuple[str, ...] = ()

    @property
    def data_dir(self) -> Path:
        return self.settings.data_dir

    @property
    def environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(TESTS.parent), "PATH": self.settings.child_path,
                "TILEWRIGHT_DATA_DIR": str(self.data_dir)}  # fmt: skip

    def leftovers(self, below: Path | None = None) -> list[str]:
        return [words for words in self.running if str(below or self.data_dir) in words]

    def strays(self) -> list[str]:
        return []


def _settings(data_dir: Path) -> Settings:
    return Settings(
        data_dir=data_dir, reconcile_s=0.2, watch_s=0.1, workers=2,
        runner="service_payloads:quick", child_python_path=(str(TESTS),),
    )  # fmt: skip


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A job, a sweep of two items and an uploaded model, all of it done."""
    folder = tmp_path_factory.mktemp("audited")
    settings = _settings(folder / "tw")
    migrate_quickly(settings.database_url)
    services = open_services(settings)
    desk = Desk(services)
    create_webhook(
        services.database, settings, NewWebhook("https://example.invalid/", "", ()), owner="local"
    )
    ref = put_bytes(services.blobs, b"padded", "application/octet-stream")
    model, _ = submit.add_model(services.database, ref, name="padded", kind="onnx")
    points = tuple(
        NewPoint(submit.NewSpec({"name": f"toy-{n}"}, f"{n:064}", f"toy-{n}"), f"toy-{n}", (n,), n)
        for n in range(2)
    )
    job = desk.submit()
    new = NewSweep((job.model_id,), points, ("n",))
    sweep, _ = sweeps.submit_sweep(services.database, settings, new)
    with EmbeddedWorker(services):
        desk.wait(job.id)
        while sweeps.get_sweep(services.database, sweep.record.id).record.state in (
            OPEN_SWEEP_STATES
        ):
            feed(services.database, services.outbox, settings, sweep.record.id)
    with services.database.write() as session:
        session.execute(text("UPDATE webhook_delivery SET state = 'delivered', lease_until = NULL"))
    services.close()
    told = Told(
        (Accepted(job.id, "job"),), (Accepted(sweep.record.id, "sweep"),), {model.id: ref.sha256}
    )
    ended = Ended(settings, folder / "temporary", told, Usual({}, {}, {}))
    books = _books(ended)
    outcomes, found = books.outcomes(), books.sweeps()[sweep.record.id]
    books.close()
    usual = Usual(
        {"job": outcomes[job.id]},
        {"sweep": found},
        {"sweep": {item.number: outcomes[str(item.job)] for item in found.items}},
    )
    return replace(ended, usual=usual)


@pytest.fixture
def ended(worked: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ended:
    """A copy to tamper with."""
    monkeypatch.setattr("benchmarks.faults.left.SETTLE_S", 0.0)
    shutil.copytree(worked.data_dir, tmp_path / "tw")
    (tmp_path / "temporary").mkdir()
    return replace(worked, settings=_settings(tmp_path / "tw"), temporary=tmp_path / "temporary")


def _books(ended: Ended) -> Books:
    return Books(ended)  # type: ignore[arg-type]  # it asks for settings only


def breaches(ended: Ended) -> str:
    """All that audits find."""
    books = _books(ended)
    try:
        found = [
            *audit(ended, books, ended.told, ended.usual),  # type: ignore[arg-type]
            *audit_sweeps(books, ended.told, ended.usual),
            *settled(ended, books),  # type: ignore[arg-type]
        ]
    finally:
        books.close()
    return "\n".join(found)


def tamper(ended: Ended, *statements: str) -> None:
    """Change the tables, whatever they refer to."""
    engine = create_engine(ended.settings.database_url)
    with engine.begin() as connection:
        for statement in statements:
            assert connection.execute(text(statement)).rowcount > 0, statement
    engine.dispose()


def test_an_audit_is_silent_where_all_is_well(ended: Ended) -> None:
    assert breaches(ended) == ""
    assert after_the_end(ended, ()) == []  # type: ignore[arg-type]
    assert a_day_later(ended).breaches == ()  # type: ignore[arg-type]


_JOB = "(SELECT id FROM job WHERE sweep_id IS NULL)"
_ITEM = f"(SELECT item_id FROM job_item WHERE job_id = {_JOB})"
_LAST = "(SELECT max(id) FROM event)"
_FIRST_OF_SWEEP = "(SELECT min(id) FROM job WHERE sweep_id IS NOT NULL)"
_COLUMNS = (
    "owner, model_id, hardware_id, options, label, priority, state, stage, units_solved,"
    " units_cached, units_total, waiting, error, summary, bundle_digest, traceparent, cloned_from,"
    " wall_limit_s, queue_deadline, created, started, finished, cancel_requested, event_seq,"
    " sweep_id"
)
_COPIED = f"INSERT INTO job (id, {_COLUMNS}) SELECT 'job_twice', {_COLUMNS} FROM job WHERE id = "
_TWICE = _COPIED + _FIRST_OF_SWEEP
TAMPERED = {
    "is lost": f"DELETE FROM job WHERE id = {_JOB}",
    "is there and nobody was told": _COPIED + _JOB,
    "sweep_is_lost": "DELETE FROM sweep",
    "of a sweep that is lost": "DELETE FROM sweep",
    "has other bytes": "UPDATE artifact SET blob_sha256 = (SELECT min(blob_sha256) FROM model)",
    "ended failed None, not succeeded": f"UPDATE job SET state = 'failed' WHERE id = {_JOB}",
    "was given up": """UPDATE job SET error = '{"code":"TW-SVC-006"}'""",
    "follows event 1": "DELETE FROM event WHERE seq = 2",
    "has ended 2 times": "UPDATE event SET payload = (SELECT payload FROM event"
    " ORDER BY seq DESC LIMIT 1), type = 'state' WHERE seq = 1",
    "has ended 0 times": "DELETE FROM event",
    "has events after its end": "INSERT INTO event (job_id, seq, ts, type, payload)"
    f" SELECT job_id, seq + 1, ts, 'stage', '{{}}' FROM event WHERE id = {_LAST}",
    "never ended": "UPDATE attempt SET outcome = NULL",
    "succeeded 2 times": "INSERT INTO attempt (item_id, fence, worker_id, started, outcome)"
    " SELECT item_id, fence + 1, worker_id, started, outcome FROM attempt",
    "of another attempt": "UPDATE work_item SET fence = 9",
    "items of work": f"UPDATE job_item SET job_id = {_JOB}, role = 'more'",
    "was uploaded as": "UPDATE model SET blob_sha256 = 'x' WHERE name = 'padded'",
    "is 2 models": "INSERT INTO model (id, owner, name, kind, blob_sha256, created)"
    " SELECT 'model_twice', 'other', name, kind, blob_sha256, created FROM model"
    " WHERE name = 'padded'",
    "is ready": "UPDATE work_item SET state = 'ready'",
    "is done": "UPDATE work_item SET lease_until = 1.0",
    "is leased": "UPDATE webhook_delivery SET lease_until = 1.0",
    "has 1 items, not 2": "DELETE FROM sweep_item WHERE number = 1",
    "ended canceled, not succeeded": "UPDATE sweep SET state = 'canceled'",
    ":0 is active": "UPDATE sweep_item SET state = 'active'",
    "is failed, its job succeeded": "UPDATE sweep_item SET state = 'failed'",
    "its job lost": "UPDATE sweep_item SET job_id = 'job_nowhere'",
    "(sweep) is succeeded": "UPDATE sweep_item SET latency_s = 7.0 WHERE number = 0",
    "has no job": "UPDATE sweep_item SET job_id = NULL",
    "has 2 jobs, and nobody resumed it": _TWICE,
    "ran again what job_twice had done": _TWICE,
}  # fmt: skip


@pytest.mark.parametrize("breach", TAMPERED)
def test_an_audit_sees_a_breach_in_the_tables(breach: str, ended: Ended) -> None:
    tamper(ended, TAMPERED[breach])
    assert breach.replace("sweep_is_lost", "was accepted and is lost") in breaches(ended)


TOLD: dict[str, Callable[[Told], Told]] = {
    "answers 2 submits": lambda told: replace(told, jobs=told.jobs * 2),  # type: ignore[operator]
    "its user was told that it is canceled": lambda told: replace(
        told, jobs=[replace(told.jobs[0], cancel=Answer.YES)]
    ),
    "sweep swp_": lambda told: replace(told, sweeps=()),
    "is lost": lambda told: replace(told, models={"model_gone": "x"}),
}


@pytest.mark.parametrize("breach", TOLD)
def test_an_audit_sees_what_users_were_told(breach: str, ended: Ended) -> None:
    assert breach in breaches(replace(ended, told=TOLD[breach](ended.told)))


def test_cancels_excuse_only_what_was_canceled(ended: Ended) -> None:
    (sweep,) = ended.told.sweeps
    cut = replace(sweep, cancel=Answer.YES)
    tamper(
        ended,
        "UPDATE sweep SET state = 'canceled'",
        "DELETE FROM job WHERE id = (SELECT job_id FROM sweep_item WHERE number = 1)",
        "UPDATE sweep_item SET state = 'canceled', job_id = NULL, latency_s = NULL,"
        " energy_pj = NULL WHERE number = 1",
    )
    assert breaches(replace(ended, told=replace(ended.told, sweeps=[cut]))) == ""
    for other in (sweep, replace(cut, cancel=Answer.TOO_LATE), replace(cut, is_resumed=True)):
        assert ":1 (sweep) is canceled" in breaches(
            replace(ended, told=replace(ended.told, sweeps=[other]))
        )


def _content(ended: Ended) -> list[Path]:
    return [path for path in (ended.data_dir / "blobs" / "cas").rglob("*") if path.is_file()]


def test_an_audit_sees_lost_and_damaged_content(ended: Ended) -> None:
    for path in _content(ended):
        path.chmod(0o644)
        path.write_bytes(b"other")
    assert "stored content is damaged" in breaches(ended)
    for path in _content(ended):
        path.unlink()
    assert "the content is not in the store" in breaches(ended)
    assert "are lost that rows name" in " ".join(a_day_later(ended).breaches)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["work/job_x.compile.1", "asked/standing-1", "asked/preflight-1"])
def test_an_audit_sees_a_folder(name: str, ended: Ended) -> None:
    folder = ended.data_dir / name
    folder.mkdir(parents=True)
    assert f"folder {folder.name} is left" in breaches(ended)
    with held_folder(folder):  # its process lives: what answers the API may, an attempt may not
        assert (f"folder {folder.name} is left" in breaches(ended)) == ("standing" not in name)
    assert f"folder {folder.name} is left" in after_the_end(ended, ())  # type: ignore[arg-type]
    assert "removed 1" in " ".join(a_day_later(ended).mended)  # type: ignore[arg-type]
    assert not folder.exists()


def test_an_audit_sees_files_that_a_day_does_not_clear_away(ended: Ended) -> None:
    uploads = ended.data_dir / "blobs" / "spool" / "uploads"
    uploads.mkdir(parents=True)
    for name in ("upload_1.data", "upload_1.json", "upload_2.json", "upload_3.new"):
        (uploads / name).touch()
    (uploads.parent / "1.part").touch()
    aged = a_day_later(ended)  # type: ignore[arg-type]
    assert aged.breaches == ()
    assert "5 half-written files" in " ".join(aged.mended)
    (uploads.parent / "other").touch()
    beside = _content(ended)[0].with_name(".half-copied")
    beside.touch()
    found = a_day_later(ended).breaches  # type: ignore[arg-type]
    assert found == ("file other is left", "file .half-copied is left")
    (ended.temporary / "tilewright-1").mkdir()
    assert "temporary tilewright-1 is left" in after_the_end(ended, ())  # type: ignore[arg-type]


def test_an_audit_sees_who_does_not_end(ended: Ended) -> None:
    work = ended.data_dir / "work" / "job_x.compile.1"
    still = replace(ended, running=(f"payload in {work}",))
    assert f"process is left: payload in {work}" in breaches(still)
    found = after_the_end(still, ["worker 1"])  # type: ignore[arg-type]
    assert "worker 1 did not end when it was asked to" in found
    assert f"process is left: payload in {work}" in found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(PLANS["embedded"], tmp_path, attempts=1)
    yield made
    made.close()


def test_a_site_sees_processes_that_outlive_their_starter(site: Site) -> None:
    sleeper = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c',"
    sleeper += " 'input()'], stdin=sys.stdin).pid)"
    with orphans():
        starter = subprocess.Popen(
            (sys.executable, "-c", sleeper), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert starter.stdout is not None
        assert starter.stdin is not None
        starter.stdout.readline()
        starter.wait()
        (found,) = site.strays()
        assert "input()" in found
        starter.stdin.close()  # it ends
        starter.stdout.read()  # when it has
        starter.stdout.close()
        assert site.strays() == []
    site.data_dir.mkdir(parents=True)
    with subprocess.Popen(
        (sys.executable, "-c", "input()"), cwd=site.data_dir, stdin=subprocess.PIPE
    ):
        (found,) = site.leftovers()
        assert found.endswith(str(site.data_dir))
        assert site.leftovers(site.data_dir / "work") == []
