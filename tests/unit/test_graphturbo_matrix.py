"""The model x preset matrix: its page on made-up rows, one real cell, failures and resuming."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import onnx
import pytest
from onnx_models import conv_net

from benchmarks import graphturbo_matrix as matrix
from benchmarks.zoo import ZooModel

GOOD: matrix.Row = {
    "version": "2", "cycles": 123456, "distance": 1.25, "kernels": 3, "abs_error": 1e-6,
    "error": 2e-6, "tolerance": 1e-4, "passed": True, "detail": "1 outputs", "cpu_s": 2.5,
    "rss_mb": 300,
}  # fmt: skip


def test_page_counts_cells_and_lists_failures() -> None:
    wrong = GOOD | {"passed": False, "detail": "y: 3 > 0.1"}
    rows = {
        "a goya": GOOD, "b goya": wrong, "c a100": {"failure": "TW-INT-001 rule broken"},
        "d goya": wrong | {"failure": "TW-VERIFY-001 outputs differ"},
    }  # fmt: skip
    text = matrix.page(rows, ("goya", "a100"))
    assert "1 of 4 cells verified, 3 failed, 0 not run." in text
    assert "### goya: 1 of 3 cells" in text
    assert "### a100: 0 of 1 cells" in text
    # These cells are of before there was a tight bound.
    assert "| a | 123,456 | - | 1.25 | 3 | 2.5 | 300 | 1e-06 | 2e-06 | 0.0001 | yes |" in text
    assert "| b | 123,456 | - | 1.25 | 3 | 2.5 | 300 | 1e-06 | 2e-06 | 0.0001 | NO |" in text
    failed = text.partition("### Cells that failed")[2].splitlines()
    assert failed[4:7] == [
        "| b goya | not verified: y: 3 > 0.1 |",
        "| c a100 | TW-INT-001 rule broken |",
        "| d goya | TW-VERIFY-001 outputs differ |",
    ]


@pytest.mark.campaign
def test_a_real_cell(tmp_path: Path) -> None:
    onnx.save(conv_net(), tmp_path / "net.onnx")
    row = matrix.run_cell(ZooModel("net", "net"), "goya", tmp_path)
    assert matrix.verdict(row) == "ok"
    assert row["cycles"] > 0
    assert row["x_bound"] >= 1
    assert row["distance"] >= 1
    assert row["error"] <= row["tolerance"]


def test_a_cell_that_does_not_compile_says_why(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"no model")
    assert matrix.run_cell(ZooModel("net", "net"), "goya", tmp_path)["failure"].startswith("TW-")


def test_a_child_that_dies_or_is_slow_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, -9, "", "first\nKilled\n")

    def hangs(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, 7)

    def toils(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, -signal.SIGXCPU, "", "")

    for run, why in (
        (dies, "EXIT -9 Killed"),
        (hangs, "TIME more than 70 s on a busy machine"),
        (toils, "TIME more than 7 CPU s"),
    ):
        monkeypatch.setattr(subprocess, "run", run)
        assert matrix.verdict(matrix.run_child("a goya", tmp_path, 7, 1)) == why


def test_a_run_takes_small_models_first_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = (ZooModel("big", "big"), ZooModel("small", "small"), ZooModel("not", "not"))
    for model in models:
        (tmp_path / f"{model.stem}.onnx").write_bytes(b"x" * (9 - len(model.name)))
    (tmp_path / "big.onnx").write_bytes(b"x" * 100)
    asked: list[str] = []

    def child(key: str, scratch: Path, seconds: int, gigabytes: int) -> matrix.Row:
        del scratch, seconds, gigabytes
        asked.append(key)
        return {"failure": "TIME more than 1 s"} if key == "small a100" else dict(GOOD)

    monkeypatch.setattr(matrix, "every_model", lambda: models)
    monkeypatch.setattr(matrix, "run_child", child)
    out = tmp_path / "page.md"
    command = ["--out", str(out), "--scratch", str(tmp_path), "--without", "not",
               "--presets", "goya", "a100"]  # fmt: skip
    assert matrix.main(command) == 1
    assert asked == ["small goya", "small a100", "big goya", "big a100"]
    asked.clear()
    assert matrix.main(command) == 1
    assert asked == ["small a100"]
    ledger = json.loads(out.with_suffix(".json").read_text())
    assert list(ledger) == sorted(ledger)
    assert ledger["big goya"] == GOOD
    assert "3 of 4 cells verified, 1 failed, 11 not run." in out.read_text()
