"""A compile without a server has the limits of a job: it ends with a code, and nothing stays."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.bootstrap import open_services
from service.cli.demo import EXAMPLE
from service.cli.main import app
from service.gate.here import Here, Stopped
from service.orders.order import Order
from service.settings import Settings
from worker.compiler.options import CompileOptions
from worker.runner.main import sweep_workplaces
from worker.sandbox.sandbox import Sandbox

TESTS = Path(__file__).parents[1]


def compiled(
    payload: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: str
) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a local compile whose child runs `payload`."""
    given = {
        "runner": f"service_payloads:{payload}",
        "child_python_path": json.dumps([str(TESTS)]),
        **settings,
    }
    for name, value in given.items():
        monkeypatch.setenv(f"TILEWRIGHT_{name.upper()}", value)
    done = CliRunner().invoke(
        app,
        ["compile", str(EXAMPLE), "--hardware", "kapla-16x16", "--local", "--json",
         "--data-dir", str(folder / "data"), "-o", str(folder / "out")],
    )  # fmt: skip
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("payload", "settings", "code", "exit_code"),
    [
        ("sleeper", {"wall_limit_s": "2"}, "TW-SVC-008", 6),
        ("sleeper", {"stage_limits_s": '{"schedule": 1}'}, "TW-SVC-008", 6),
        ("greedy", {"memory_base_bytes": str(1 << 30)}, "TW-SVC-009", 4),
        ("exits", {}, "TW-INT-001", 5),
        ("thief", {}, "TW-INT-001", 5),
        ("refuse", {}, "TW-MODEL-004", 3),
    ],
)
def test_what_ends_a_local_compile_early_has_a_code(
    payload: str,
    settings: dict[str, str],
    code: str,
    exit_code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = time.monotonic()
    ended, document = compiled(payload, tmp_path, monkeypatch, **settings)
    assert time.monotonic() - started < 60
    assert (document["state"], document["error"]["code"], ended) == ("failed", code, exit_code)
    assert list((tmp_path / "data" / "local").iterdir()) == []


def test_the_stage_that_ran_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, document = compiled("sleeper", tmp_path, monkeypatch, stage_limits_s='{"schedule": 1}')
    error = document["error"]
    assert (error["stage"], error["limit"]) == ("schedule", 1)
    assert error["actual"] >= 1


@pytest.mark.parametrize(
    "words",
    [["preflight", str(EXAMPLE), "--hardware", "a100"],
     ["hardware", "match", "a100", str(EXAMPLE)],
     ["disassemble", str(EXAMPLE)],
     ["export", str(EXAMPLE), "--to", "zigzag", "-o", "not-written"]],
    ids=["preflight", "match", "disassemble", "export"],
)  # fmt: skip
def test_whatever_reads_a_foreign_file_has_limits(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TILEWRIGHT_WALL_LIMIT_S", "0.05")
    done = CliRunner().invoke(app, [*words, "--json"])
    problem = json.loads(done.stdout)
    assert (done.exit_code, problem["code"]) == (6, "TW-SVC-008"), problem
    assert (problem["limit"], problem["stage"]) == (0.05, "service")


def test_files_of_a_local_compile_are_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, document = compiled("quick", tmp_path, monkeypatch)
    assert (ended, document["state"]) == (0, "succeeded"), document
    assert document["progress"]["units_total"] == 3
    for path in document["files"].values():
        assert Path(path).is_relative_to(tmp_path / "out")
        assert Path(path).stat().st_size > 0


def test_a_worker_on_the_same_data_leaves_a_local_compile_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder has no lease, as those of killed attempts have none."""
    start = Sandbox.start

    def swept_first(sandbox: Sandbox) -> None:
        services = open_services(Settings(data_dir=tmp_path / "data"))
        sweep_workplaces(services)
        services.close()
        start(sandbox)

    monkeypatch.setattr(Sandbox, "start", swept_first)
    ended, document = compiled("quick", tmp_path, monkeypatch)
    assert (ended, document["state"]) == (0, "succeeded"), document


def test_what_a_killed_local_compile_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "data" / "local" / "left"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    running = tmp_path / "data" / "local" / "running"
    running.mkdir()
    compiled("quick", tmp_path, monkeypatch)
    assert not left.exists()
    assert running.exists()


def test_a_gate_that_is_stopped_ends_what_it_compiles(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path / "data", runner="service_payloads:long_search",
        child_python_path=[str(TESTS)],
    )  # fmt: skip
    order = Order(EXAMPLE, {"preset": "kapla-16x16"}, CompileOptions().to_json(), tmp_path / "out")
    stop = threading.Event()
    stop.set()
    with Here(settings, stop) as here, pytest.raises(Stopped):
        here.outcome(order)
    assert list((tmp_path / "data" / "local").iterdir()) == []
