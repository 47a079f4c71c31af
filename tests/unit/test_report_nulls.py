"""A null in the report says why it is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx_models import conv_net, saved, with_host_part

from worker.compiler.cache import MemoryCache
from worker.compiler.options import CompileOptions, VerifyMode
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress


def report_of(model: onnx.ModelProto, folder: Path, mode: VerifyMode) -> dict[str, Any]:
    request = JobRequest(
        saved(model, folder), "m", {"preset": "a100"}, CompileOptions(verify=mode), folder / "b"
    )
    run_job(request, folder / "out", MemoryCache(), NoProgress())
    found: dict[str, Any] = json.loads((folder / "out" / "report.json").read_bytes())
    return found


def null_places(report: dict[str, Any]) -> set[str]:
    """Nulls of the blocks that hold measured numbers, layers folded by placement."""
    places = {f"{b}.{k}" for b in ("summary", "verification") for k, v in report[b].items()
              if v is None}  # fmt: skip
    for row in report["layers"]:
        places |= {f"layers.{row['placement']}.{k}" for k, v in row.items() if v is None}
    return places | {f"summaries.{place}" for place in nulls_in(report["summaries"])}


def nulls_in(value: object, place: str = "") -> set[str]:
    """Places of nulls; rows of a list share one."""
    if value is None:
        return {place.removeprefix(".")}
    if isinstance(value, dict):
        return {p for name, inner in value.items() for p in nulls_in(inner, f"{place}.{name}")}
    return (
        {p for inner in value for p in nulls_in(inner, place)} if isinstance(value, list) else set()
    )


@pytest.mark.parametrize("build", [conv_net, with_host_part])
@pytest.mark.parametrize("mode", [VerifyMode.NONE, VerifyMode.FULL])
def test_every_null_has_a_sentence(
    tmp_path: Path, build: type[onnx.ModelProto], mode: VerifyMode
) -> None:
    report = report_of(build(), tmp_path, mode)
    places = null_places(report)
    assert set(report["null_reasons"]) == places
    assert all(len(sentence) > 10 for sentence in report["null_reasons"].values())
    assert ("verification.passed" in places) is (mode is VerifyMode.NONE)
    assert ("layers.host.tile" in places) is (build is with_host_part)


def test_a_cell_of_a_strategys_column_says_why_as_its_summary_does(tmp_path: Path) -> None:
    """Of a kernel whose first tiling was proven to be the best: no other had to be priced."""
    reasons = report_of(with_host_part(), tmp_path, VerifyMode.NONE)["null_reasons"]
    said = reasons["summaries.naive.kernels.second"]
    assert "priced" in said
    assert reasons["layers.accelerator.naive_second"] == said
