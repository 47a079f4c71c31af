"""Random models by GraphTurbo: every output within tolerance of ONNX Runtime's, no slower than
operator by operator.

A campaign; by default one cell of `benchmarks.random_nets` runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.random_models import random_model
from worker.compiler.cache import MemoryCache
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress

PRESETS = ("stcp920", "stcp920-inferred", "ascend910", "goya", "a100")


def report_of(seed: int, preset: str, strategy: str, folder: Path) -> dict[str, Any]:
    """Compile, simulate, run and compare one model."""
    path, out = folder / f"random{seed}.onnx", folder / strategy
    path.write_bytes(random_model(seed).SerializeToString())
    options = CompileOptions.from_json({"strategy": strategy, "verify": "full"})
    request = JobRequest(path, path.stem, {"preset": preset}, options, folder / "build")
    run_job(request, out, MemoryCache(), NoProgress())
    found: dict[str, Any] = json.loads((out / "report.json").read_bytes())
    return found


def check(seed: int, preset: str, folder: Path) -> None:
    fused, alone = (report_of(seed, preset, s, folder) for s in ("graphturbo", "naive"))
    assert fused["verification"]["passed"] is True, fused["verification"]["detail"]
    assert fused["summary"]["latency_cycles"] <= alone["summary"]["latency_cycles"]


@pytest.mark.campaign
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("seed", range(1, 9))
def test_random_models_verify(seed: int, preset: str, tmp_path: Path) -> None:
    check(seed, preset, tmp_path)
