"""The presets h100 and rtx3090 compile a network and compute what ONNX Runtime computes."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx_models import conv_net

from worker.compiler.cache import NullCache
from worker.compiler.options import CompileOptions, VerifyMode
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress


@pytest.mark.parametrize("strategy", ["naive", "graphturbo"])
@pytest.mark.parametrize("preset", ["h100", "rtx3090"])
def test_a_network_is_verified_in_full(preset: str, strategy: str, tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    onnx.save(conv_net(), model)
    options = CompileOptions(strategy=strategy, verify=VerifyMode.FULL)
    request = JobRequest(model, "net", {"preset": preset}, options, tmp_path / "build")
    run_job(request, tmp_path / "out", NullCache(), NoProgress())
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert report["verification"]["passed"] is True
    assert report["summary"]["accelerator_ops"] > 0
