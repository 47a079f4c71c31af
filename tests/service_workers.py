"""Real worker processes that a test starts, pauses and kills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from service_fixtures import TESTS

from service.settings import Settings
from worker.runner.tasks import Step

REPO = TESTS.parent


class Worker:
    """Starts and kills worker processes on one service."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = json.loads(settings.model_dump_json())
        self.marker = folder / "paused"
        self._log = (folder / "workers.log").open("wb")
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, pause: Step | None = None, **changes: object) -> subprocess.Popen[bytes]:
        request = {
            "settings": {**self._settings, **changes},
            "pause": pause,
            "marker": str(self.marker),
        }
        self.marker.unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, str(TESTS / "service_worker_process.py"), json.dumps(request)],
            env={**os.environ, "PYTHONPATH": f"{REPO}:{TESTS}"},
            stdout=self._log,
            stderr=self._log,
        )
        self._processes.append(process)
        return process

    def wait_paused(self, timeout_s: float = 40.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.marker.exists():
            assert time.monotonic() < deadline, Path(self._log.name).read_text()[-3000:]
            time.sleep(0.02)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._log.close()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Callable[[Settings], Worker]]:
    made: list[Worker] = []

    def make(settings: Settings) -> Worker:
        made.append(Worker(settings, tmp_path))
        return made[-1]

    yield make
    for worker in made:
        worker.close()
