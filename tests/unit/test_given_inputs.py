"""Inputs from the user, models that no reference runs, and inputs that calibration has not seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import repeated_layers, saved
from typer.testing import CliRunner

from service.cli.main import app
from worker.compiler.cache import MemoryCache
from worker.compiler.errors import CompilerError, ModelError
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.ports import open_ports
from worker.job.preflight import preflight
from worker.job.request import JobRequest, NoProgress
from worker.verification.inputs import SYNTHETIC_BATCHES, held_out

REFUSED = "TW-VERIFY-004"


def compiled(path: Path, folder: Path, arrays: dict[str, Any] | None = None) -> dict[str, Any]:
    """The report's verification."""
    given = None
    if arrays is not None:
        given = folder / "in.npz"
        np.savez(given, **arrays)
    request = JobRequest(
        path, "m", {"preset": "a100"}, CompileOptions(), folder / "build", inputs_path=given
    )
    run_job(request, folder / "out", MemoryCache(), NoProgress())
    report = json.loads((folder / "out" / "report.json").read_bytes())
    return dict(report["verification"])


def test_the_kernels_run_on_what_the_user_gives(tmp_path: Path) -> None:
    """Of zeros nothing but zeros comes out; the values of other inputs still tell."""
    path = saved(repeated_layers(1), tmp_path)
    (name,) = [value.name for value in repeated_layers(1).graph.input]
    shape = [d.dim_value for d in repeated_layers(1).graph.input[0].type.tensor_type.shape.dim]
    assert compiled(path, tmp_path)["max_abs_err"] > 0
    check = compiled(path, tmp_path, {name: np.zeros(shape, np.float32)})
    assert check["passed"] is True
    assert check["max_abs_err"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"other": np.zeros(3, np.float32)}, "no input 'other'"),
        ({"x": None}, "no array for input 'x', float32["),
        ({"x": np.zeros((16, 31), np.float32)}, "must be float32[16, 32], got float32[16, 31]"),
        ({"x": np.zeros((16, 32))}, "got float64[16, 32]"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_pointer(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    arrays = {"x": np.zeros((16, 32), np.float32), **change}
    given = {name: value for name, value in arrays.items() if value is not None}
    given = given or {"y": np.zeros(1)}
    with pytest.raises(ModelError) as refusal:
        compiled(saved(repeated_layers(1), tmp_path), tmp_path, given)
    assert refusal.value.code == REFUSED
    found = {finding.pointer: finding.message for finding in refusal.value.findings}
    assert message in found[f"/{next(iter(change))}"]


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    path = saved(repeated_layers(1), tmp_path)
    (tmp_path / "in.npz").write_bytes(b"no archive")
    request = JobRequest(path, "m", {"preset": "a100"}, CompileOptions(), tmp_path / "build",
                         inputs_path=tmp_path / "in.npz")  # fmt: skip
    with pytest.raises(CompilerError) as refusal:
        run_job(request, tmp_path / "out", MemoryCache(), NoProgress())
    assert refusal.value.code == REFUSED


def test_the_command_line_takes_inputs(tmp_path: Path) -> None:
    path = saved(repeated_layers(1), tmp_path)
    np.savez(tmp_path / "in.npz", x=np.zeros((16, 31), np.float32))
    common = ["compile", str(path), "--hardware", "a100", "--input", str(tmp_path / "in.npz")]
    unverified = CliRunner().invoke(app, [*common, "--verify", "none"])
    assert unverified.exit_code == 2
    here = CliRunner().invoke(
        app, [*common, "--data-dir", str(tmp_path / "data"), "-o", str(tmp_path / "out"), "--json"]
    )
    assert here.exit_code == 3
    error = json.loads(here.stdout)["error"]
    assert (error["code"], error["pointer"]) == (REFUSED, "/x")


def unrunnable(folder: Path) -> Path:
    """Legal by ONNX, and without a kernel in ONNX Runtime: Det of float64."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
         helper.make_node("Det", ["m"], ["y"], name="det")],
        "unrunnable",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [])],
        [numpy_helper.from_array(np.eye(4, dtype=np.float64), "w")],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 18)]
    return saved(helper.make_model(graph, opset_imports=opset, ir_version=9), folder)


def test_without_a_reference_nothing_is_verified_and_preflight_knows(tmp_path: Path) -> None:
    path = unrunnable(tmp_path)
    found = preflight(path, {"preset": "a100"}, CompileOptions())
    assert str(found["unverifiable"]).startswith("ONNX Runtime cannot run the original model: ")
    assert "Det" in str(found["unverifiable"])
    check = compiled(path, tmp_path)
    assert check["passed"] is None
    assert check["detail"].startswith("not verified, because ONNX Runtime cannot run the original")
    good = preflight(saved(repeated_layers(1), tmp_path), {"preset": "a100"}, CompileOptions())
    assert good["unverifiable"] is None


def test_values_that_do_not_fit_in_memory_are_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr("worker.verification.drive.reference_values", full)
    check = compiled(saved(repeated_layers(1), tmp_path), tmp_path)
    assert check["passed"] is None
    assert "does not fit in memory: Unable to allocate 9 TiB" in check["detail"]


def test_noise_is_measured_on_inputs_that_calibration_has_not_seen(tmp_path: Path) -> None:
    from worker.compiler.frontend.bind import bind
    from worker.compiler.frontend.limits import Limits
    from worker.compiler.frontend.load import load_model
    from worker.compiler.frontend.simplify import simplify
    from worker.compiler.machine import load_preset

    model = simplify(bind(load_model(saved(repeated_layers(1), tmp_path), Limits()), {}))
    options = CompileOptions(seed=4)
    ports = open_ports(load_preset("dpu-zu"), options, MemoryCache(), NoProgress())
    seen = [batch["x"].tobytes() for batch in ports.samples(model)]
    assert len(seen) == SYNTHETIC_BATCHES
    assert held_out(model, 4)["x"].tobytes() not in seen


def test_the_model_in_the_test_is_legal(tmp_path: Path) -> None:
    onnx.checker.check_model(onnx.load(unrunnable(tmp_path)), full_check=True)
