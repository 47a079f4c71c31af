"""`sweep`, `sweeps` and the Python client against a real server with fake payloads."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from api_fixtures import PRESET, Serve, Served, onnx_bytes
from typer.testing import CliRunner, Result

from service.cli.main import app
from service.client.errors import ApiError, WaitTimeout

KIB = 1024
FIELD = "/levels/GBUF/capacity_bytes"
INTERRUPTIBLE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("service.cli.main", run_name="__main__")
"""
"""The command line where Ctrl-C counts: what a shell starts in the background ignores it."""


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"{name}.onnx" for name in ("one", "two")]
    for path in found:
        path.write_bytes(onnx_bytes(path.stem.encode()))
    return found


@pytest.fixture
def gates(tmp_path: Path) -> Path:
    return tmp_path / "gates"


def tilewright(served: Served, *words: object) -> Result:
    environment = {"TILEWRIGHT_SERVER": served.url}
    return CliRunner().invoke(app, [str(word) for word in words], env=environment)


def vary(*kib: int) -> str:
    return f"{FIELD}={','.join(f'{k}KiB' for k in kib)}"


def test_a_sweep_writes_its_results(serve: Serve, files: list[Path], tmp_path: Path) -> None:
    served, out = serve("figured"), tmp_path / "out"
    words = ("sweep", *files, "--hardware", PRESET, "--vary", vary(8, 16), "--label", "chips")
    result = tilewright(served, *words, "-o", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    stored: Any = served.client.sweep_results(found["id"])
    assert found["items"] == stored["items"]
    assert json.loads((out / "sweep.json").read_bytes()) == stored
    text = (out / "sweep.csv").read_text()
    assert text == served.client.sweep_csv(found["id"])
    assert len(list(csv.DictReader(text.splitlines()))) == 4
    page = (out / "sweep.html").read_text()
    assert page.count("<svg") == 2 * 2  # two plots for each model
    assert page.count("<circle") == 2 * 4
    assert "<script" not in page
    listed = json.loads(tilewright(served, "sweeps", "ls", "--label", "chips", "--json").stdout)
    assert [row["id"] for row in listed["items"]] == [found["id"]]
    shown = tilewright(served, "sweeps", "show", found["id"])
    assert "4 of 4 items have results" in shown.stdout
    assert tilewright(served, "sweeps", "results", found["id"]).stdout == text
    assert tilewright(served, "sweeps", "cancel", found["id"]).exit_code == 3
    assert tilewright(served, "sweeps", "rm", found["id"]).exit_code == 0
    assert tilewright(served, "sweeps", "show", found["id"]).exit_code == 3


def test_failures_are_explained_and_resumed(serve: Serve, files: list[Path], gates: Path) -> None:
    served = serve("figured")
    (gates / f"refuse-{16 * KIB}").touch()
    result = tilewright(served, "sweep", files[0], "--hardware", PRESET, "--vary", vary(8, 16))
    assert result.exit_code == 3  # as `compile` ends with that model
    assert "1 of 2 items have results, 1 failed" in result.stdout
    assert "item 1 (one on kapla-16x16 [16384]) failed" in result.stderr
    assert "TW-MODEL-004" in result.stderr
    (gates / f"refuse-{16 * KIB}").unlink()
    [row] = served.client.sweeps()
    again = tilewright(served, "sweeps", "resume", row["id"])
    assert again.exit_code == 0, again.output
    assert "2 of 2 items have results" in again.stdout


def test_interrupt_cancels_and_says_how_to_resume(
    serve: Serve, files: list[Path], gates: Path
) -> None:
    served = serve("figured", workers=1, sweep_ahead=1)
    (gates / f"closed-{16 * KIB}").touch()
    words = ("sweep", files[0], "--hardware", PRESET, "--vary", vary(8, 16, 32, 64, 128))
    command = [sys.executable, "-c", INTERRUPTIBLE, *map(str, words), "--server", served.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not [row for row in served.client.sweeps() if row["items_succeeded"] == 1]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 7, stderr
    [row] = served.client.sweeps()
    assert row["state"] == "canceled"
    assert "canceled: 1 of 5 items have results" in stderr
    assert f"tilewright sweeps resume {row['id']} --server {served.url}" in stderr
    (gates / f"closed-{16 * KIB}").unlink()
    assert tilewright(served, "sweeps", "resume", row["id"]).exit_code == 0
    done: Any = served.client.sweep(str(row["id"]))
    assert (done["state"], done["progress"]["succeeded"]) == ("succeeded", 5)


def test_submitting_alone_says_how_to_follow(serve: Serve, files: list[Path]) -> None:
    served = serve("figured")
    words = ("sweep", files[0], "--hardware", PRESET, "--vary", vary(8, 16), "--detach", "--json")
    result = tilewright(served, *words, "--priority", "3")
    assert result.exit_code == 0
    made = json.loads(result.stdout)
    assert made["priority"] == 3
    assert f"tilewright sweeps watch {made['id']} --server {served.url}" in result.stderr
    watched = tilewright(served, "sweeps", "watch", made["id"])
    assert "2 of 2 items have results" in watched.stdout
    jobs = list(served.client.jobs(sweep=made["id"]))
    assert [job["priority"] for job in jobs] == [3, 3]


@pytest.mark.parametrize(
    "words",
    [
        ("--hardware", PRESET, "--hardware", "simba", "--vary", "clock_hz=x2"),
        ("--hardware", PRESET, "--with-base"),
        ("--hardware", PRESET, "--detach"),
        (),
    ],
    ids=["two-bases", "base-alone", "detach-here", "no-machine"],
)
def test_contradictions_are_usage_errors(words: tuple[str, ...], files: list[Path]) -> None:
    result = CliRunner().invoke(
        app, ["sweep", str(files[0]), *words], env={"TILEWRIGHT_SERVER": ""}
    )
    assert result.exit_code == 2


def test_the_client_waits_and_gives_up(serve: Serve, files: list[Path], gates: Path) -> None:
    served = serve("figured", workers=1)
    (gates / "closed").touch()
    model = served.client.upload_model(files[0])
    request = {"models": [model["sha256"]], "hardware": [PRESET]}
    made = served.client.submit_sweep(request, key="k")
    assert served.client.submit_sweep(request, key="k")["id"] == made["id"]
    with pytest.raises(WaitTimeout):
        served.client.wait_sweep(str(made["id"]), timeout_s=0.1)
    assert served.client.cancel_sweep(str(made["id"]))["state"] == "canceling"
    assert served.client.wait_sweep(str(made["id"]))["state"] == "canceled"
    (gates / "closed").unlink()
    assert served.client.resume_sweep(str(made["id"]))["state"] == "running"
    seen: list[Any] = []
    ended = served.client.wait_sweep(str(made["id"]), on_update=seen.append)
    assert ended["state"] == "succeeded"
    assert seen[-1] == ended


def test_what_if_is_one_call(serve: Serve) -> None:
    """Its sides are the items of a sweep, which any comparison may name."""
    served = serve("compared")
    model = str(served.model(onnx_bytes(b"base"), "base")["id"])
    found: Any = served.client.what_if(model, PRESET, f"{FIELD}=x0.5")
    [row] = served.client.sweeps()
    names = [f"{row['id']}:{n}" for n in (0, 1)]
    assert [found[side]["name"] for side in ("base", "head")] == names
    documents = []
    for item in served.client.sweep_results(str(row["id"]))["items"]:  # type: ignore[union-attr]
        assert isinstance(item, dict)
        documents.append(served.client.get(f"/v1/hardware/{item['hardware']}")["document"])
    sizes = [document["levels"][1]["capacity_bytes"]["value"] for document in documents]  # type: ignore[index,call-overload]
    assert sizes == [32 * KIB, 16 * KIB]
    text = tilewright(served, "diff", *names)
    assert text.exit_code == 0, text.output
    assert "no difference: 175 cycles" in text.stdout
    for name in (f"{row['id']}:2", f"{row['id']}:x", "swp_none:0"):
        with pytest.raises(ApiError) as refused:
            served.client.compare(names[0], name)
        assert refused.value.code == "TW-SVC-001"
        assert tilewright(served, "diff", names[0], name).exit_code == 3
