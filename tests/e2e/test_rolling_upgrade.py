"""API and workers are upgraded one after the other: the release before and this one work together.

The other release is real: the last commit with the schema before this one, taken from the
repository's history, run by its own code.  It stands on one PostgreSQL and one Redis with ours.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from service_fixtures import TESTS

from benchmarks.faults.servers import free_port
from migrations import HEAD
from service.cli.demo import EXAMPLE
from service.client import Client
from service.store.session import current_revision

REPO = TESTS.parent


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=REPO, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of the last commit with the schema before this one."""
    since = _git("log", "--format=%H", f'-SHEAD = "{HEAD}"', "--", "migrations/__init__.py").split()
    archive = _git("archive", f"{since[-1].decode()}^") if since else b""
    if not archive:
        pytest.skip("the history that has the schema before is not in this checkout")
    folder = tmp_path_factory.mktemp("before")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    text = (folder / "migrations" / "__init__.py").read_text()
    assert re.search(r'HEAD = "(\d+)"', text)[1] < HEAD  # type: ignore[index]  # found
    return folder


class Fleet:
    """Processes of both releases on one database and one broker."""

    def __init__(self, folder: Path, database_url: str, broker_url: str) -> None:
        self.folder = folder
        self.queue = f"tw-test-{secrets.token_hex(6)}"
        self._names = {
            "DATABASE_URL": database_url, "BROKER_URL": broker_url, "QUEUE_NAME": self.queue,
            "BLOB_URL": f"file://{folder}/blobs", "RUNNER": "service_payloads:quick",
            "CHILD_PYTHON_PATH": json.dumps([str(TESTS)]), "RECONCILE_S": "0.5",
        }  # fmt: skip
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, tree: Path, *words: str) -> subprocess.Popen[bytes]:
        """Start a command of a release, each with a folder of its own."""
        name = f"{len(self._processes)}-{words[0]}"
        given = {k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")}
        given |= {f"TILEWRIGHT_{k}": v for k, v in self._names.items()}
        # Without a home nothing compiles the loops of the other release, which fakes do not need.
        given |= {"PYTHONPATH": str(tree), "HOME": os.devnull}
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "service.cli.main", *words,
                 "--data-dir", str(self.folder / name)],
                cwd=self.folder, env=given, stdout=log, stderr=log,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def serve(self, tree: Path) -> str:
        """Start an API; its URL, when it answers."""
        port = free_port()
        process = self.start(tree, "serve", "--port", str(port), "--api-only")
        url = f"http://127.0.0.1:{port}"
        self.wait(lambda: _answers(url), process)
        return url

    def wait(self, holds, process: subprocess.Popen[bytes]) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + 90
        while not holds():
            assert process.poll() is None, self.last_words()
            assert time.monotonic() < deadline, self.last_words()
            time.sleep(0.2)

    def last_words(self) -> str:
        """The ends of all logs."""
        return "\n".join(log.read_text()[-1500:] for log in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    from service.client import ApiError

    try:
        with Client(url, timeout_s=5) as client:
            client.get("/v1/version")
    except ApiError:
        return False
    return True


def _workers(url: str) -> int:
    from service.client import ApiError

    try:
        with Client(url, timeout_s=5) as client:
            checks = client.get("/v1/readyz")["checks"]
    except ApiError:
        return 0
    return int(checks["workers_alive"])  # type: ignore[index, call-overload, arg-type]


@pytest.fixture
def fleet(tmp_path: Path, bare_pg_url: str, redis_url: str) -> Iterator[Fleet]:
    made = Fleet(tmp_path, bare_pg_url, redis_url)
    yield made
    made.close()
    import redis

    with redis.Redis.from_url(redis_url) as keys:
        kinds = ("", "_kombu.binding.", "_kombu.binding_permanent.")
        keys.delete(*(f"{kind}{made.queue}" for kind in kinds))


def _job_ends(url: str, fleet: Fleet, *, meanwhile: Callable[[], object] = lambda: None) -> None:
    """A job from upload to artifacts, through one API; it is accepted before `meanwhile`."""
    with Client(url) as client:
        model = client.upload_model(EXAMPLE)
        job = client.submit({"model": model["id"], "hardware": "kapla-edge"})
        meanwhile()
        ended = client.wait(str(job["id"]), timeout_s=60)
        assert ended["state"] == "succeeded", (ended, fleet.last_words())
        assert {"report", "layers"} <= {str(a["name"]) for a in client.artifacts(str(job["id"]))}


# A job wants the versions of strategies that its API has.  Where the releases differ in these, it
# waits for a worker of its release, or for an API that starts and says what it wants from now on.


@pytest.mark.campaign
def test_the_api_first(before: Path, fleet: Fleet, bare_pg_url: str) -> None:
    """A new API brings the schema forward under a worker of the release before."""
    old = fleet.serve(before)
    worker = fleet.start(before, "worker", "--workers", "1")
    fleet.wait(lambda: _workers(old) == 1, worker)
    revision = current_revision(bare_pg_url)
    assert revision is not None and revision < HEAD
    new = fleet.serve(REPO)
    assert current_revision(bare_pg_url) == HEAD
    _job_ends(old, fleet)
    assert worker.poll() is None
    _job_ends(new, fleet, meanwhile=lambda: fleet.start(REPO, "worker", "--workers", "1"))
    assert worker.poll() is None


@pytest.mark.campaign
def test_the_workers_first(before: Path, fleet: Fleet, bare_pg_url: str) -> None:
    """A new worker brings the schema forward under an API of the release before."""
    old = fleet.serve(before)
    revision = current_revision(bare_pg_url)
    assert revision is not None and revision < HEAD
    worker = fleet.start(REPO, "worker", "--workers", "1")
    fleet.wait(lambda: _workers(old) == 1, worker)
    assert current_revision(bare_pg_url) == HEAD
    new: list[str] = []
    _job_ends(old, fleet, meanwhile=lambda: new.append(fleet.serve(REPO)))
    _job_ends(new[0], fleet)
