"""The command line against a real server with fake payloads: data, chatter, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from api_fixtures import PRESET, Serve, Served, onnx_bytes
from onnx_models import conv_net, saved
from typer.testing import CliRunner, Result

from service.cli.main import app

MODEL = onnx_bytes(b"fake")
INTERRUPTIBLE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("service.cli.main", run_name="__main__")
"""
"""The command line where Ctrl-C counts: what a shell starts in the background ignores it."""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(MODEL)
    return path


def tilewright(*words: object, server: str | None = None) -> Result:
    environment = {"TILEWRIGHT_SERVER": server} if server else {"TILEWRIGHT_SERVER": ""}
    return CliRunner().invoke(app, [str(word) for word in words], env=environment)


def data(result: Result) -> Any:
    return json.loads(result.stdout)


def compile_words(model: Path, output: Path, *more: object) -> list[object]:
    return ["compile", model, "--hardware", PRESET, "-o", output, *more]


def test_compile_uploads_waits_and_downloads(
    serve: Serve, model_file: Path, tmp_path: Path
) -> None:
    served = serve()
    out = tmp_path / "out"
    result = tilewright(
        *compile_words(model_file, out, "--set", "batch=2", "--label", "x", "--json"),
        server=served.url,
    )
    assert result.exit_code == 0, result.output
    job = data(result)
    assert job["state"] == "succeeded"
    assert job["options"]["symbols"] == {"batch": 2}
    assert job["label"] == "x"
    assert (out / "layers.csv").read_text() == "index\n0\n"
    assert job["files"]["report"] == str(out / "report.json")
    listed = data(tilewright("jobs", "ls", "--json", server=served.url))["items"]
    assert [row["id"] for row in listed] == [job["id"]]


def test_text_output_goes_to_stdout_and_chatter_to_stderr(
    serve: Serve, model_file: Path, tmp_path: Path
) -> None:
    served = serve()
    result = tilewright(*compile_words(model_file, tmp_path / "o"), server=served.url)
    assert result.exit_code == 0
    assert "sanity: 0 of 0 checks passed" in result.stdout
    assert "net.onnx: upload 8 bytes sent" in result.stderr
    assert "results in" in result.stderr
    assert "\x1b" not in result.output


def test_failed_job_gives_its_own_exit_code_and_explains(
    serve: Serve, model_file: Path, tmp_path: Path
) -> None:
    served = serve("refuse")
    result = tilewright(*compile_words(model_file, tmp_path / "o"), server=served.url)
    assert result.exit_code == 3
    assert "TW-MODEL-004" in result.stderr
    assert "node: conv_1" in result.stderr
    assert "hint:" in result.stderr
    assert (tmp_path / "o" / "placement.json").exists()
    job = data(tilewright("jobs", "ls", "--json", server=served.url))["items"][0]["id"]
    for verb in ("wait", "watch"):
        assert tilewright("jobs", verb, job, server=served.url).exit_code == 3
    assert tilewright("jobs", "show", job, server=served.url).exit_code == 0


def test_detach_then_wait_cancel_and_remove(serve: Serve, model_file: Path, tmp_path: Path) -> None:
    served = serve("sleeper")
    words = compile_words(model_file, tmp_path / "o", "--detach", "--json")
    result = tilewright(*words, server=served.url)
    assert result.exit_code == 0
    job = data(result)["id"]
    assert f"tilewright jobs watch {job} --server {served.url}" in result.stderr
    late = tilewright("jobs", "wait", job, "--timeout", "0.5", server=served.url)
    assert late.exit_code == 6
    assert tilewright("jobs", "cancel", job, server=served.url).exit_code == 0
    assert tilewright("jobs", "wait", job, server=served.url).exit_code == 7
    assert tilewright("jobs", "rm", job, server=served.url).exit_code == 0
    gone = tilewright("jobs", "show", job, "--json", server=served.url)
    assert gone.exit_code == 3
    assert data(gone)["code"] == "TW-SVC-001"


def test_interrupt_detaches_and_says_how_to_come_back(
    serve: Serve, model_file: Path, tmp_path: Path
) -> None:
    served = serve("sleeper")
    words = compile_words(model_file, tmp_path / "o", "--server", served.url)
    command = [sys.executable, "-c", INTERRUPTIBLE, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 30
        while not (jobs := list(served.client.jobs(state="running"))):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 6
    assert f"jobs watch {jobs[0]['id']} --server {served.url}" in stderr
    assert served.client.job(str(jobs[0]["id"]))["state"] == "running"


def test_results_are_read_from_jobs_and_folders(
    serve: Serve, model_file: Path, tmp_path: Path
) -> None:
    served = serve()
    out = tmp_path / "o"
    job = data(tilewright(*compile_words(model_file, out, "--json"), server=served.url))["id"]
    by_job = tilewright("report", job, "--json", server=served.url)
    by_folder = tilewright("report", out, "--json")
    assert data(by_job) == data(by_folder)
    assert tilewright("layers", out, "--json").exit_code == 0
    assert tilewright("trace", job, "-o", tmp_path / "t.gz", server=served.url).exit_code == 3
    assert tilewright("report", tmp_path / "nothing.twb").exit_code == 3


def test_models_hardware_and_cache_verbs(serve: Serve, model_file: Path, tmp_path: Path) -> None:
    served = serve()
    pushed = data(tilewright("model", "push", model_file, "--json", server=served.url))
    assert data(tilewright("model", "show", pushed["id"], "--json", server=served.url)) == pushed
    rows = data(tilewright("model", "ls", "--json", server=served.url))["items"]
    assert rows == [pushed]
    spec = tmp_path / "chip.yaml"
    spec.write_text(f"schema_version: 1\nname: mine\ninherits: {PRESET}\n")
    stored = data(tilewright("hardware", "push", spec, "--json", server=served.url))
    shown = tilewright("hardware", "show", stored["id"], "--json", server=served.url)
    assert data(shown) == stored["document"]
    words = ["compile", model_file, "--hardware", spec, "-o", tmp_path / "o", "--json"]
    job = data(tilewright(*words, server=served.url))
    assert job["hardware"] == stored["id"]
    entries = data(tilewright("cache", "ls", "--json", server=served.url))["items"]
    assert len(entries) == 3
    digest = entries[0]["digest"]
    entry = tilewright("cache", "explain", digest, "--json", server=served.url)
    assert data(entry)["filled_by_job"] == job["id"]
    assert "unit" in tilewright("cache", "explain", digest, server=served.url).stdout
    pruned = tilewright("cache", "prune", "--unused-for", "0s", "--json", server=served.url)
    assert data(pruned) == {"dropped": 3}
    assert data(tilewright("cache", "stats", "--json", server=served.url))["entries"] == 0
    bad = tilewright("cache", "prune", "--unused-for", "soon", server=served.url)
    assert bad.exit_code == 2


def test_logs_and_clone(serve: Serve, model_file: Path, tmp_path: Path) -> None:
    served: Served = serve("segfault", max_attempts=1)
    out = tmp_path / "o"
    words = compile_words(model_file, out, "--json")
    result = tilewright(*words, server=served.url)
    assert result.exit_code == 5
    job = data(result)["id"]
    logs = data(tilewright("jobs", "logs", job, "--json", server=served.url))
    assert [attempt["number"] for attempt in logs["attempts"]] == [1]
    copy = data(tilewright("jobs", "clone", job, "--json", server=served.url))
    assert copy["cloned_from"] == job


def test_unreachable_server_is_a_service_failure(model_file: Path, tmp_path: Path) -> None:
    result = tilewright(
        *compile_words(model_file, tmp_path / "o", "--json"), server="http://127.0.0.1:9"
    )
    assert result.exit_code == 5
    assert data(result)["code"] == "TW-NET-001"


def test_without_a_server_the_data_directory_is_used(model_file: Path, tmp_path: Path) -> None:
    where = ("--data-dir", tmp_path / "d", "--json")
    pushed = data(tilewright("model", "push", model_file, *where))
    assert data(tilewright("model", "ls", *where))["items"] == [pushed]
    assert data(tilewright("jobs", "ls", *where)) == {"items": []}
    assert data(tilewright("cache", "stats", *where))["entries"] == 0
    assert PRESET in [p["name"] for p in data(tilewright("hardware", "ls", *where))["presets"]]
    assert tilewright("jobs", "show", "job_x", *where).exit_code == 3


def test_a_local_compile_shows_its_stages_and_stops(tmp_path: Path) -> None:
    words = compile_words(saved(conv_net(), tmp_path), tmp_path / "o", "--data-dir", tmp_path / "d")
    asked = ("--print-after", "partition", "--print-after", "schedule", "--stop-after", "schedule")
    result = tilewright(*words, *asked, "--verify-each")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("part 0 on ")
    assert result.stdout.index("part 0 on") < result.stdout.index("program by ")
    assert "stopped after schedule" in result.stderr
    assert {path.name for path in (tmp_path / "o").iterdir()} == {
        "after-partition.txt", "after-schedule.txt",
    }  # fmt: skip


def test_serve_announces_its_url_and_stops_on_a_signal(tmp_path: Path) -> None:
    from service.cli.embedded import embedded_service
    from service.client import Client

    with embedded_service(tmp_path / "d") as url, Client(url) as client:
        assert client.get("/v1/readyz")["ready"] is True
        second = tilewright("serve", "--port", "0", "--data-dir", tmp_path / "d")
        assert second.exit_code == 3
        assert "another tilewright process" in second.stderr
        taken = tilewright("serve", "--port", url.rsplit(":", 1)[1], "--data-dir", tmp_path / "e")
        assert taken.exit_code == 5
        assert "TW-CLI-002" in taken.stderr


def test_environment_names_the_server(serve: Serve) -> None:
    served = serve(worker=False)
    command = [sys.executable, "-m", "service.cli.main", "jobs", "ls", "--json"]
    environment = {**os.environ, "TILEWRIGHT_SERVER": served.url}
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == {"items": []}


def test_watch_prints_one_document_a_line(serve: Serve, model_file: Path, tmp_path: Path) -> None:
    served = serve()
    words = compile_words(model_file, tmp_path / "o", "--json")
    job = data(tilewright(*words, server=served.url))["id"]
    result = tilewright("jobs", "watch", job, "--json", server=served.url)
    assert result.exit_code == 0, result.output
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(documents) > 2
    assert [int(d["id"]) for d in documents[:-1]] == list(range(1, len(documents)))
    assert documents[-1]["id"] == job
    assert documents[-1]["state"] == "succeeded"
