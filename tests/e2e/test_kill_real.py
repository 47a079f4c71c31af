"""kill -9 while the real compiler works: the job ends `succeeded` with the undisturbed digest.

`tilewright serve` runs as a process of its own; the moment a stage shows up in the job's events the
whole process is killed and a new one is started on the same data.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from onnx_models import repeated_layers

from service.client import Client
from service.settings import Settings
from worker.job.stages import NAMES

REPO = Path(__file__).resolve().parents[2]
HARDWARE = "kapla-edge"
LAYERS = 200


class Site:
    """One data directory and the processes started on it."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.scaled_out = bool(settings)
        names = {f"TILEWRIGHT_{name.upper()}": value for name, value in settings.items()}
        short = {"TILEWRIGHT_LEASE_TTL_S": "4", "TILEWRIGHT_HEARTBEAT_S": "0.5"}
        self._env = {**os.environ, "PYTHONPATH": str(REPO), **short, **names}
        url = Settings(data_dir=folder, database_url=settings.get("database_url", "")).database_url
        self._engine = sqlalchemy.create_engine(url)
        self._processes: list[subprocess.Popen[str]] = []

    def _start(self, *words: str) -> subprocess.Popen[str]:
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "service.cli.main", *words, "--data-dir", str(self.folder)],
                stdout=subprocess.PIPE if words[0] == "serve" else log,
                stderr=log,
                text=True,
                env=self._env,
            )
        self._processes.append(process)
        return process

    def serve(self) -> tuple[str, subprocess.Popen[str]]:
        """Start the API (with the worker inside when embedded); gives its URL."""
        extra = ["--api-only"] if self.scaled_out else []
        process = self._start("serve", "--json", "--port", "0", *extra)
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, "the service did not start"
            text += line
        return str(json.loads(text)["url"]), process

    def worker(self) -> subprocess.Popen[str]:
        """Start a worker alone."""
        return self._start("worker")

    def rows(self, query: str, **values: str) -> list[tuple[object, ...]]:
        """Ask the database."""
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sqlalchemy.text(query), values)]

    def wait_stage(self, job_id: str, stage: str) -> None:
        """Wait until the job says that it is in a stage."""
        deadline = time.monotonic() + 60
        query = "SELECT stage, state FROM job WHERE id = :job"
        while True:
            ((now, state),) = self.rows(query, job=job_id)
            if now == stage:
                return
            assert state in ("queued", "running"), f"{state} before {stage} was seen"
            assert time.monotonic() < deadline, f"never in {stage}"
            time.sleep(0.002)

    def close(self) -> None:
        for process in self._processes:
            kill(process)
        self._engine.dispose()


def kill(process: subprocess.Popen[str]) -> None:
    """kill -9 of one process that this test started."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _left_over(folder: Path) -> list[str]:
    """Processes below this data directory: payloads name their request file in it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(folder / "work") in words:
                found.append(words)
    return found


def _model(folder: Path) -> Path:
    path = folder / "repeated.onnx"
    path.write_bytes(repeated_layers(LAYERS).SerializeToString())
    return path


def _submit(url: str, model: Path) -> str:
    with Client(url) as client:
        uploaded = client.upload_model(model)
        options = {"strategy": "naive", "no_cache": True, "verify": "full"}
        job = client.submit({"model": uploaded["id"], "hardware": HARDWARE, "options": options})
        return str(job["id"])


def _digest(url: str, job_id: str) -> str:
    with Client(url) as client:
        job = client.wait(job_id, timeout_s=120)
        assert job["state"] == "succeeded", job["error"]
        (bundle,) = [a for a in client.artifacts(job_id) if a["name"] == "bundle"]
        return str(bundle["sha256"])


def _check(site: Site, job_id: str, attempts: int) -> None:
    """Exactly one result, nothing leased, nothing running, nothing on disk."""
    events = site.rows("SELECT payload FROM event WHERE job_id = :job", job=job_id)
    ended = [row for row in events if '"succeeded"' in json.dumps(row[0]).replace("\\", "")]
    assert len(ended) == 1, ended
    outcomes = [row[0] for row in site.rows("SELECT outcome FROM attempt ORDER BY fence")]
    assert outcomes == ["lost"] * (attempts - 1) + ["succeeded"]
    assert site.rows("SELECT id FROM work_item WHERE state = 'leased' OR owner IS NOT NULL") == []
    deadline = time.monotonic() + 10
    while _left_over(site.folder) or list((site.folder / "work").glob("*")):
        assert time.monotonic() < deadline, _left_over(site.folder)
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bundle's digest when nobody interferes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    site = Site(folder / "tw")
    try:
        url, _ = site.serve()
        return _digest(url, _submit(url, _model(folder)))
    finally:
        site.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "tw")
    yield made
    made.close()


QUICK = "verify"
"""The stage that the default suite kills in: the work is nearly done, so most is at stake."""


@pytest.mark.parametrize(
    "stage",
    [s if s == QUICK else pytest.param(s, marks=pytest.mark.campaign) for s in NAMES],
)
def test_api_and_worker_killed_in_stage(
    stage: str, site: Site, tmp_path: Path, undisturbed: str
) -> None:
    url, process = site.serve()
    job_id = _submit(url, _model(tmp_path))
    site.wait_stage(job_id, stage)
    kill(process)
    url, _ = site.serve()
    assert _digest(url, job_id) == undisturbed
    _check(site, job_id, attempts=2)


@pytest.mark.campaign
@pytest.mark.parametrize("victim", ["worker", "api", "both"])
def test_scaled_out_processes_killed(
    victim: str, tmp_path: Path, pg_database_url: str, redis_url: str, undisturbed: str
) -> None:
    queue = f"tw-test-{secrets.token_hex(6)}"
    site = Site(
        tmp_path / "tw", database_url=pg_database_url, broker_url=redis_url, queue_name=queue
    )
    try:
        url, api = site.serve()
        worker = site.worker()
        job_id = _submit(url, _model(tmp_path))
        site.wait_stage(job_id, "verify")
        if victim != "api":
            kill(worker)
        if victim != "worker":
            kill(api)
            url, _ = site.serve()
        if victim != "api":
            site.worker()
        assert _digest(url, job_id) == undisturbed
        _check(site, job_id, attempts=1 if victim == "api" else 2)
    finally:
        site.close()
        import redis

        with redis.Redis.from_url(redis_url) as keys:
            keys.delete(queue, f"_kombu.binding.{queue}", f"_kombu.binding_permanent.{queue}")
