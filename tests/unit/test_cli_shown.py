"""What the command line shows: files it writes, lists it shortens, events, examples."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from service.cli import inspection, jobs
from service.cli.main import app
from service.cli.output import SHOWN_FINDINGS, moment, print_problem
from service.client.events import Event
from worker.job.arrays import write_npz

REPO = Path(__file__).resolve().parent.parent.parent


def test_arrays_keep_names_that_numpy_uses_itself(tmp_path: Path) -> None:
    arrays = {
        "file": np.arange(6, dtype=np.int8).reshape(2, 3),
        "allow_pickle": np.float16([1.5]),
        "/m/Mul_output_0": np.asfortranarray(np.eye(3, dtype=np.float32)[:2]),
        "scalar": np.array(7),
    }
    write_npz(tmp_path / "a.npz", arrays)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as found:
        assert set(found.files) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype


def test_example_writes_a_model_and_the_same_inputs_every_time(tmp_path: Path) -> None:
    words = ["model", "example", str(tmp_path / "m.onnx"), "--json", "--input"]
    for name in ("a.npz", "b.npz"):
        result = CliRunner().invoke(app, [*words, str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["inputs"] == str(tmp_path / name)
    shipped = REPO / "service" / "cli" / "example" / "tiny_cnn.onnx"
    assert (tmp_path / "m.onnx").read_bytes() == shipped.read_bytes()
    with np.load(tmp_path / "a.npz") as first, np.load(tmp_path / "b.npz") as second:
        assert first.files == ["image"]
        np.testing.assert_array_equal(first["image"], second["image"])
        assert first["image"].std() > 0.5


def test_a_long_list_of_findings_is_cut_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [{"node": f"n{i}", "message": "no"} for i in range(SHOWN_FINDINGS + 7)]
    print_problem({"code": "X", "title": "t", "errors": findings, "hints": ["do it"]})
    shown = capsys.readouterr().err
    assert shown.count("  - n") == SHOWN_FINDINGS
    assert "and 7 more" in shown
    assert shown.endswith("hint: do it\n")


Listed = Callable[..., None]


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Listed:
    """`jobs ls` of a server that has these jobs; `jobs watch` of one of them and its events."""

    def show(*found: dict[str, Any], events: Sequence[Event] = ()) -> None:
        client = SimpleNamespace(
            base_url="http://there",
            jobs=lambda **_: iter(found),
            events=lambda _: iter(events),
            wait=lambda _: found[0],
        )
        monkeypatch.setattr(jobs, "connect", lambda *_: nullcontext(client))
        words = ["jobs", "watch", "job_1"] if events else ["jobs", "ls"]
        with pytest.raises(SystemExit) as ended:
            app(words, standalone_mode=True)
        assert ended.value.code == 0

    return show


def test_units_of_a_job_count_what_the_cache_gave(
    listed: Listed, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = {"units_solved": 2, "units_cached": 22, "units_total": 24}
    listed({"id": "job_1", "progress": progress}, {"id": "job_2"})
    head, *lines = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    rows = [dict(zip(head, line, strict=True)) for line in lines]
    assert [(row["id"], row["units"], row["cached"]) for row in rows] == [
        ("job_1", "24/24", "22"), ("job_2", "0/0", "0"),
    ]  # fmt: skip


def test_events_are_shown_without_their_bookkeeping(
    listed: Listed, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"seq": 3, "ts": 1795254962.38, "stage": "ingest", "state": "started", "detail": None}
    listed({"id": "job_1", "state": "succeeded"}, events=[Event("3", "stage", body)])
    assert capsys.readouterr().out.splitlines()[0] == "stage stage=ingest state=started"


def test_moments_are_readable() -> None:
    assert moment(None) == "-"
    assert moment(1795254962.38).startswith("2026-11-2")


def test_preflight_counts_nothing_that_it_did_not_look_at() -> None:
    words = ["preflight", str(REPO / "README.md"), "--hardware", "a100"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 3
    assert "TW-MODEL-001" in result.stderr
    assert "operators" not in result.stdout


def test_lists_of_jobs_and_layers_fit_a_terminal_of_100_columns(
    listed: Listed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    job = {
        "id": "job_" + "0" * 26, "state": "succeeded", "stage": "simulate",
        "progress": {"units_solved": 0, "units_cached": 120, "units_total": 120},
        "label": "nightly of the team " * 9, "created": 1764000000.0,
        "model": "model_" + "0" * 26, "hardware": "f" * 64,
    }  # fmt: skip
    layer = {
        "index": 1234, "op_type": "DequantizeLinear", "placement": "accelerator",
        "cycles_total": 123456789012, "pct_cycles": 12.345, "bound_by": "traffic:DDR",
        "utilization_pct": 0.01234, "energy_pct": 12.345, "onnx_nodes": ["/model/block/conv" * 9],
        "signature": "f" * 64,
    }  # fmt: skip
    results = SimpleNamespace(
        report=lambda: {"layers": [layer, layer]},
        run=lambda _: {"cache": {"units": {"f" * 64: "miss"}}},
    )
    monkeypatch.setattr(inspection, "open_source", lambda *_: nullcontext(results))
    for show in (lambda: listed(job, job), lambda: inspection.layers("out")):
        show()
        lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
        assert len(lines) == 3, lines
        assert max(map(len, lines)) <= 100
        assert lines[1].rstrip().endswith("…")
