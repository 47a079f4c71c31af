"""SIGTERM, as init systems and containers send it: jobs that run go back without losing a try."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import sqlalchemy
from service_fixtures import TESTS

from service.cli.demo import EXAMPLE
from service.client import Client
from service.settings import Settings

REPO = TESTS.parent


def _serve(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """An embedded server whose jobs run for ever."""
    payloads = {"RUNNER": "service_payloads:sleeper", "CHILD_PYTHON_PATH": json.dumps([str(TESTS)])}
    names = {f"TILEWRIGHT_{name}": value for name, value in payloads.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", "serve", "--json", "--port", "0",
         "--data-dir", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": str(REPO), **names},
    )  # fmt: skip
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, "the service did not start"
        text += line
    return process, str(json.loads(text)["url"])


def test_a_server_gives_back_what_runs(tmp_path: Path) -> None:
    process, url = _serve(tmp_path / "tw")
    try:
        with Client(url) as client:
            model = client.upload_model(EXAMPLE)
            job = client.submit({"model": model["id"], "hardware": "kapla-edge"})
            deadline = time.monotonic() + 180
            while client.job(str(job["id"]))["stage"] != "schedule":
                assert time.monotonic() < deadline
                time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=40) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    engine = sqlalchemy.create_engine(Settings(data_dir=tmp_path / "tw").database_url)
    with engine.connect() as rows:
        assert rows.execute(sqlalchemy.text("SELECT outcome FROM attempt")).all() == [
            ("given_back",)
        ]
        item = rows.execute(sqlalchemy.text("SELECT state, attempts, owner FROM work_item")).one()
        assert tuple(item) == ("ready", 0, None)
        assert rows.execute(sqlalchemy.text("SELECT count(*) FROM worker")).scalar() == 0
    engine.dispose()
    assert list((tmp_path / "tw" / "work").glob("*")) == []
