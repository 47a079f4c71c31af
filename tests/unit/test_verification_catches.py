"""Verification must notice a wrong kernel, and say so in a report that is still written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import repeated_layers, saved

import worker.compiler.judge.units
from worker.compiler.cache import MemoryCache
from worker.compiler.errors import Mismatch
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify
from worker.compiler.isa.program import OperandRole, UnitProgram
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.schedule.nodes import Schedule
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress
from worker.verification.inputs import seeded_inputs


@pytest.mark.parametrize("mode", [VerifyMode.FULL, VerifyMode.SAMPLE])
def test_a_wrong_kernel_fails_the_job_after_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: VerifyMode
) -> None:
    honest = worker.compiler.judge.units.generate_kernel

    def wrong(schedule: Schedule, program: UnitProgram, machine: Machine, name: str) -> str:
        """The right kernel, with one element of its result off by one afterwards."""
        text = honest(schedule, program, machine, name)
        slot = next(k for k, o in enumerate(program.operands) if o.role is OperandRole.OUTPUT)
        head, _, _ = text.rstrip().rpartition("}")
        return f"{head}    ((float *)operand[{slot}])[0] += 1.0f;\n}}\n"

    monkeypatch.setattr(worker.compiler.judge.units, "generate_kernel", wrong)
    request = JobRequest(
        saved(repeated_layers(1), tmp_path),
        "m",
        {"preset": "kapla-edge"},
        CompileOptions(verify=mode, strategy="naive"),
        tmp_path / "build",
    )
    with pytest.raises(Mismatch) as refusal:
        run_job(request, tmp_path / "out", MemoryCache(), NoProgress())
    assert refusal.value.code == "TW-VERIFY-001"
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert report["verification"]["passed"] is False
    assert report["verification"]["max_abs_err"] >= 0.5


def test_token_ids_stay_inside_the_table_they_index(tmp_path: Path) -> None:
    table = numpy_helper.from_array(np.zeros((7, 4), dtype=np.float32), "table")
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "wide"], ["rows"]),
        helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["rows", "m"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("ids", TensorProto.INT32, [500]), value("mask", TensorProto.INT64, [1])],
        [value("y", TensorProto.FLOAT, [500, 4])],
        [table],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(proto)
    model = simplify(bind(load_model(saved(proto, tmp_path), Limits()), {}))
    arrays = seeded_inputs(model, 3)
    assert set(np.unique(arrays["ids"])) == set(range(7))
    assert set(np.unique(arrays["mask"])) <= {0, 1}
    again = seeded_inputs(model, 3)
    assert all(np.array_equal(arrays[k], again[k]) for k in arrays)
    assert not np.array_equal(seeded_inputs(model, 4)["ids"], arrays["ids"])
