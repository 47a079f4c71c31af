"""`--verify full` runs kernels in other orders, and so sees what running in sequence cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import repeated_layers, saved

import worker.compiler.assembly.checks
import worker.compiler.judge.units
from worker.compiler.cache import MemoryCache
from worker.compiler.errors import Mismatch
from worker.compiler.isa.program import UnitProgram
from worker.compiler.options import CompileOptions, VerifyMode
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress
from worker.verification import interleaved, interleaving


def _report(folder: Path, mode: VerifyMode) -> dict[str, Any]:
    request = JobRequest(
        saved(repeated_layers(1), folder), "m", {"preset": "kapla-edge"},
        CompileOptions(verify=mode, strategy="naive"), folder / "build",
    )  # fmt: skip
    run_job(request, folder / "out", MemoryCache(), NoProgress())
    found: dict[str, Any] = json.loads((folder / "out" / "report.json").read_bytes())
    return found


@pytest.fixture
def without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowering that forgets every wait, and nobody who audits it."""
    honest = worker.compiler.judge.units.lower_unit

    def hasty(*args: Any) -> UnitProgram:
        program = honest(*args)
        loops = replace(program.loops, wait_stride=program.loops.wait_stride[:0])
        none = np.zeros(0, dtype=np.int32)
        return replace(
            program, wait_ptr=np.zeros_like(program.wait_ptr), wait_token=none, loops=loops
        )

    monkeypatch.setattr(worker.compiler.judge.units, "lower_unit", hasty)
    for module in (worker.compiler.judge.units, worker.compiler.assembly.checks):
        monkeypatch.setattr(module, "audit", lambda *_: None)


@pytest.mark.usefixtures("without_waits")
def test_missing_waits_fail_a_full_verification(tmp_path: Path) -> None:
    with pytest.raises(Mismatch) as refused:
        _report(tmp_path, VerifyMode.FULL)
    assert "in another order" in str(refused.value)
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert report["verification"]["passed"] is False


@pytest.mark.usefixtures("without_waits")
def test_kernels_that_run_in_sequence_do_not_see_them(tmp_path: Path) -> None:
    assert _report(tmp_path, VerifyMode.SAMPLE)["verification"]["passed"] is True


def test_the_report_says_in_how_many_orders(tmp_path: Path) -> None:
    verification = _report(tmp_path, VerifyMode.FULL)["verification"]
    assert verification["passed"] is True
    assert f"2 kernels in {interleaving.ORDERS} orders of instructions" in verification["detail"]
    assert "not interleaved" not in verification["detail"]


@pytest.mark.parametrize(
    ("module", "limit", "why"),
    [
        (interleaved, "MAX_INSTRUCTIONS", "instructions, more than 1"),
        (interleaved, "MAX_LEAVES", "leaves, more than 1"),
        (interleaved, "MAX_POINTS", "points, more than 1"),
        (interleaved, "MAX_BYTES", "bytes of memory, more than 1"),
        (interleaving, "MAX_INSTRUCTIONS", "with those before it there are"),
        (interleaving, "MAX_POINTS", "with those before it there are"),
    ],
)
def test_the_report_says_what_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, limit: str, why: str
) -> None:
    monkeypatch.setattr(module, limit, 1)
    verification = _report(tmp_path, VerifyMode.FULL)["verification"]
    assert verification["passed"] is True
    assert "2 kernels not interleaved (first " in verification["detail"]
    assert why in verification["detail"]
    assert "orders of instructions" not in verification["detail"]
