"""Make the data directory of one release, which every later release must open.

    python -m benchmarks.release_data tests/releases/NAME.tar.xz

Run at the commit that is released.  The archive holds `data/` (database, blobs, cache) and
`index.json` (what was put there).  It has a job in every state: ended ones made over HTTP; then a
process is killed while one job runs and one is being canceled, with others waiting in the queue.
`tests/integration/test_releases.py` opens what is in `tests/releases/`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from service.bootstrap import open_services
from service.cli.demo import EXAMPLE
from service.cli.embedded import embedded_service
from service.client import Client
from service.jobs import query
from service.jobs.cancel import cancel_job
from service.jobs.submit import NewJob, submit_job
from service.settings import Settings
from service.states import JobState
from worker.compiler.options import CompileOptions
from worker.runner.main import EmbeddedWorker
from worker.runner.tasks import Step

LONG_S = 3.0e9
"""A queue deadline that no later run of the test reaches."""
HARDWARE = "stcp920-inferred"
QUANTISED = "dpu-zu"
ENDED: dict[str, dict[str, Any]] = {
    "default": {},
    "full-verify": {"verify": "full", "seed": 7},
    "variant": {
        "strategy": "graphturbo",
        "verify": "none",
        "strategy_options": {"graphturbo": {"variant": "v1"}},
    },
    "graphturbo": {"strategy": "graphturbo", "verify": "none"},
    "calibrated": {"precision": "i8", "verify": "none"},
}
"""Options of the jobs that succeed, by label."""
WAITING: dict[str, dict[str, Any]] = {
    "queued": {"verify": "none"},
    "queued-variant": {
        "strategy": "graphturbo",
        "verify": "none",
        "strategy_options": {"graphturbo": {"variant": "v2"}},
    },
    "queued-objective": {"objective": "energy", "effort": "extended", "verify": "none"},
    "queued-surrogate": {"symbols": {"\ud800": 5}, "verify": "none"},
}
"""Options of the jobs that nobody took.  What a release refuses may still lie in its database:
the last has a name that UTF-8 cannot carry, as an early API stored it."""


def main() -> int:
    """Make the archive; with --killed, be the process that is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--killed", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.killed is not None:
        _leave_work_undone(arguments.killed, json.loads(arguments.target.read_text()))
        return 1
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        index = _make(data)
        _settle(data)
        _pack(arguments.target, data, index)
    size = arguments.target.stat().st_size
    sys.stdout.write(f"{arguments.target}: {size} bytes, {len(index['jobs'])} jobs\n")
    return 0


def _make(data: Path) -> dict[str, Any]:
    os.environ["TILEWRIGHT_QUEUE_TTL_S"] = str(LONG_S)
    jobs: dict[str, str] = {}
    with embedded_service(data, workers=1) as url, Client(url) as client:
        model = client.upload_model(EXAMPLE)["id"]
        calibration = _calibration(client, data.parent)
        for label, options in ENDED.items():
            hardware = QUANTISED if label == "calibrated" else HARDWARE
            if label == "calibrated":
                options = {**options, "calibration": calibration}
            jobs[label] = _run(client, model, hardware, options, label, "succeeded")
        broken = data.parent / "broken.onnx"
        broken.write_bytes(EXAMPLE.read_bytes()[:5000])
        jobs["failed"] = _run(client, client.upload_model(broken)["id"], HARDWARE, {}, "failed")
        slow = {"no_cache": True, "verify": "full"}
        jobs["timed_out"] = _run(client, model, HARDWARE, slow, "timed_out", wall_limit_s=0.2)
        hardware_id = str(client.job(jobs["default"])["hardware"])
    jobs |= _undone(data, {"model": model, "hardware": hardware_id, "calibration": calibration})
    states = _states(data, jobs)
    return {"made_by": _commit(), "example": EXAMPLE.name, "jobs": states}


def _calibration(client: Client, folder: Path) -> str:
    import onnx

    graph = onnx.load(EXAMPLE).graph
    rng = np.random.default_rng(0)
    arrays = {
        value.name: rng.standard_normal(
            (2, *(d.dim_value for d in value.type.tensor_type.shape.dim))
        ).astype(np.float32)
        for value in graph.input
    }
    path = folder / "calibration.npz"
    np.savez(path, **arrays)
    return str(client.upload_arrays(path)["sha256"])


def _run(
    client: Client, model: str, hardware: str, options: dict[str, Any], label: str,
    wanted: str = "", **more: Any,
) -> str:  # fmt: skip
    asked = {"model": model, "hardware": {"preset": hardware}, "options": options, "label": label}
    job = client.wait(str(client.submit({**asked, **more})["id"]))
    if job["state"] != (wanted or label):
        raise RuntimeError(f"{label}: {job['state']}, {job.get('error')}")
    return str(job["id"])


def _undone(data: Path, known: dict[str, str]) -> dict[str, str]:
    """Let a process be killed in the middle of its work; gives the jobs that it left."""
    request = data.parent / "known.json"
    request.write_text(json.dumps(known))
    command = [sys.executable, "-m", "benchmarks.release_data", str(request), "--killed", str(data)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the process that is killed ended with {done.returncode}")
    return dict(json.loads(done.stdout))


def _leave_work_undone(data: Path, known: dict[str, str]) -> None:
    settings = Settings(data_dir=data, workers=2, queue_ttl_s=LONG_S)
    services = open_services(settings)
    held = threading.Event()

    def submit(label: str, options: dict[str, Any], settings: Settings) -> str:
        new = NewJob(
            known["model"], known["hardware"], CompileOptions.from_json(options), label=label
        )
        return submit_job(services.database, services.outbox, settings, new).job.id

    def wait(job: str, state: JobState) -> None:
        while query.get_job(services.database, job).state is not state:
            time.sleep(0.05)

    def on_step(step: Step, claim: Any) -> None:
        del claim
        if step is Step.CHILD_ENDED:
            held.wait()

    late = submit("expired", {}, settings.model_copy(update={"queue_ttl_s": 0.01}))
    time.sleep(0.1)
    jobs = {"expired": late}
    EmbeddedWorker(services, on_step=on_step).start()
    wait(late, JobState.EXPIRED)
    for label in ("running", "canceling"):
        jobs[label] = submit(label, {"no_cache": True, "verify": "none"}, settings)
        wait(jobs[label], JobState.RUNNING)
    for label, options in {"canceled": {}, **WAITING}.items():
        jobs[label] = submit(label, options, settings)
    cancel_job(services.database, jobs["canceled"])
    cancel_job(services.database, jobs["canceling"])
    wait(jobs["canceling"], JobState.CANCELING)
    sys.stdout.write(json.dumps(jobs))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _settle(data: Path) -> None:
    """Write the journal into the database and drop what is only scratch."""
    with sqlite3.connect(data / "tilewright.db") as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for scratch in ("embedded.log", "tilewright.db-wal", "tilewright.db-shm"):
        (data / scratch).unlink(missing_ok=True)


def _states(data: Path, jobs: dict[str, str]) -> dict[str, dict[str, Any]]:
    services = open_services(Settings(data_dir=data))
    try:
        found = {label: query.get_job(services.database, job) for label, job in jobs.items()}
    finally:
        services.close()
    return {
        label: {"id": job.id, "state": str(job.state), "options": dict(job.options)}
        for label, job in found.items()
    }


def _commit() -> str:
    shown = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    return shown.stdout.strip()


def _pack(target: Path, data: Path, index: dict[str, Any]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(index, indent=1, sort_keys=True).encode() + b"\n"
    with tarfile.open(target, "w:xz", preset=9) as archive:
        entry = tarfile.TarInfo("index.json")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
        for path in sorted(data.rglob("*")):
            if path.is_file() and path.relative_to(data).parts[0] in ("tilewright.db", "blobs"):
                archive.add(path, f"data/{path.relative_to(data)}", recursive=False)


if __name__ == "__main__":
    sys.exit(main())
