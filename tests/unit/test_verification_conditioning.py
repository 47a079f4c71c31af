"""Tolerances of models that magnify roundings: eased by what the reference does, within limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import saved

from worker.compiler.cache import MemoryCache
from worker.compiler.codegen.kernel import generate_kernel
from worker.compiler.errors import Mismatch
from worker.compiler.isa.program import OperandRole, UnitProgram
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.schedule.nodes import Schedule
from worker.job import run_job
from worker.request import JobRequest, NoProgress
from worker.verification.conditioning import MAX_EASING, eased_tolerances, nudged

Array = npt.NDArray[Any]
X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


def test_inputs_move_by_one_rounding_and_integers_stay() -> None:
    ids = np.arange(4)
    moved = nudged({"x": X, "ids": ids, "h": X.astype(np.float16)}, 3)
    assert moved["ids"] is ids
    for name in ("x", "h"):
        value = X.astype(moved[name].dtype)
        steps = np.abs(moved[name] - value) / np.spacing(np.abs(value))
        assert set(np.unique(steps)) <= {0.5, 1.0}
        assert {-1, 1} == set(np.sign(moved[name] - value).ravel())
    assert np.array_equal(moved["x"], nudged({"x": X}, 3)["x"])


def _far(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Many turns of a sine, a plain product, an integer, infinities."""
    x = inputs["x"]
    return {
        "far": np.sin(x * np.float32(100)),
        "plain": x * 2,
        "count": (x > 0).sum(),
        "odd": np.where(x > 9, x, np.inf),
    }


def test_only_magnified_roundings_ease_a_tolerance() -> None:
    reference = _far({"x": X})
    bounds = dict.fromkeys(("far", "plain", "count", "odd", "unknown"), 1e-5)
    eased = eased_tolerances(_far, {"x": X}, reference, bounds, 0)
    assert set(eased) == {"far", "plain"}
    assert 100 * np.spacing(np.float32(1)) < eased["far"] < MAX_EASING * 1e-5
    assert eased["plain"] == 1e-5


def test_easing_has_a_limit_and_needs_a_float() -> None:
    def jumps(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": (inputs["x"] > X).astype(np.float32)}

    eased = eased_tolerances(jumps, {"x": X}, {"y": np.ones(X.shape, np.float32)}, {"y": 1e-5}, 0)
    assert eased == {"y": MAX_EASING * 1e-5}

    def never(_: Mapping[str, Array]) -> dict[str, Array]:
        raise AssertionError

    assert eased_tolerances(never, {"ids": np.arange(3)}, {"y": X}, {"y": 1e-5}, 0) == {}


def _far_model() -> onnx.ModelProto:
    many = numpy_helper.from_array(np.array(100, np.float32), "many")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "many"], ["a"]), helper.make_node("Sin", ["a"], ["y"])],
        "turns",
        [value("x", TensorProto.FLOAT, [8, 16])],
        [value("y", TensorProto.FLOAT, [8, 16])],
        [many],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("error", [2e-5, 1e-1])
def test_a_job_passes_within_the_eased_tolerance_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: float
) -> None:
    honest = generate_kernel

    def wrong(schedule: Schedule, program: UnitProgram, machine: Machine, name: str) -> str:
        text = honest(schedule, program, machine, name)
        slot = next(k for k, o in enumerate(program.operands) if o.role is OperandRole.OUTPUT)
        head, _, _ = text.rstrip().rpartition("}")
        return f"{head}    ((float *)operand[{slot}])[5] += {error}f;\n}}\n"

    monkeypatch.setattr("worker.compiler.units.generate_kernel", wrong)
    options = CompileOptions(verify=VerifyMode.FULL)
    request = JobRequest(
        saved(_far_model(), tmp_path), "m", {"preset": "a100"}, options, tmp_path / "b"
    )
    if error > 1e-2:
        with pytest.raises(Mismatch):
            run_job(request, tmp_path / "out", MemoryCache(), NoProgress())
    else:
        run_job(request, tmp_path / "out", MemoryCache(), NoProgress())
    check = json.loads((tmp_path / "out" / "report.json").read_bytes())["verification"]
    assert check["passed"] is (error < 1e-2)
    assert 1e-5 < check["tolerance"] <= MAX_EASING * 1e-5
    assert ("tolerances eased" in check["detail"]) is (error < 1e-2)
