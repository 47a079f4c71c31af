"""Tolerances come from the reference's own measured error; faults stand out from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
from worker.compiler.errors import CompilerError, Mismatch
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import OperandRole, UnitProgram
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.schedule.nodes import Schedule
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress
from worker.report.verified_row import VerifiedRow
from worker.verification.float64 import NoFloat64
from worker.verification.measured import (
    FACTOR,
    Runs,
    ceiling_of,
    floor_of,
    judged,
    measure,
    nudged,
    shrunken,
)
from worker.verification.reference import Float64Values

Array = npt.NDArray[Any]
X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
value = helper.make_tensor_value_info


def test_inputs_move_by_one_rounding_and_integers_stay() -> None:
    ids = np.arange(4)
    moved = nudged({"x": X, "ids": ids, "h": X.astype(np.float16)}, 3)
    assert moved["ids"] is ids
    for name in ("x", "h"):
        there = X.astype(moved[name].dtype)
        steps = np.abs(moved[name] - there) / np.spacing(np.abs(there))
        assert set(np.unique(steps)) <= {0.5, 1.0}
        assert {-1, 1} == set(np.sign(moved[name] - there).ravel())
    assert np.array_equal(moved["x"], nudged({"x": X}, 3)["x"])


def test_floors_grow_with_the_longest_sum_and_the_coarsest_type() -> None:
    assert floor_of(DType.F32, 1) == pytest.approx(9 * 2**-24)
    assert floor_of(DType.F32, 4096) == pytest.approx(72 * 2**-24)
    assert floor_of(DType.F32, 64) < floor_of(DType.F16, 64) < floor_of(DType.BF16, 64)
    for dtype in (DType.F32, DType.F16, DType.BF16, DType.I8, DType.U8, DType.F64):
        assert floor_of(dtype, 1 << 20) < ceiling_of(dtype)


def test_a_measured_error_raises_a_tolerance_up_to_the_ceiling() -> None:
    row = VerifiedRow("y", 1.0, 3.09e-4, 1e-6)
    assert row.is_wrong
    found = judged(row, 1e-4, DType.F32)
    assert found.tolerance == FACTOR * 1e-4
    assert not found.is_wrong and not found.is_open and found.own_error == 1e-4
    assert judged(row, 1e-8, DType.F32).tolerance == 1e-6  # never below the floor
    hopeless = judged(row._replace(error=0.1), 0.05, DType.F32)
    assert hopeless.is_open and not hopeless.is_wrong and "own error is 0.05" in hopeless.reason
    assert judged(row._replace(error=0.5), 0.05, DType.F32).is_wrong
    assert judged(row._replace(error=np.inf), 0.05, DType.F32).is_wrong


def test_what_is_finite_by_roundings_alone_is_no_verdict() -> None:
    row = VerifiedRow("y", np.inf, np.inf, 1e-6)
    assert judged(row, 0.0, DType.F32).is_wrong
    assert judged(row, 0.0, DType.F32, is_overflowing=True).is_open
    assert judged(row._replace(error=0.5), 0.0, DType.F32, is_overflowing=True).is_wrong


@pytest.mark.parametrize("mode", [VerifyMode.SAMPLE, VerifyMode.FULL])
def test_a_sum_that_overflows_in_the_reference_only(mode: VerifyMode, tmp_path: Path) -> None:
    """64 times 1e38, and then a mean: what divides first stays finite."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "large"], ["scaled"], name="scale"),
         helper.make_node("GlobalAveragePool", ["scaled"], ["mean"], name="mean"),
         helper.make_node("Flatten", ["mean"], ["flat"], name="flatten"),
         helper.make_node("Softmax", ["flat"], ["y"], name="softmax")],
        "overflow", [value("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [value("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.array([1e38], np.float32), "large")],
    )  # fmt: skip
    for opset in (17, 18):
        opsets = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        folder = tmp_path / str(opset)
        folder.mkdir()
        options = CompileOptions(verify=mode)
        request = JobRequest(
            saved(model, folder), "m", {"preset": "kapla-edge"}, options, folder / "b"
        )
        run_job(request, folder / "out", MemoryCache(), NoProgress())
        report = json.loads((folder / "out" / "report.json").read_bytes())
        found = report["verification"]
        assert found["passed"] is None
        assert "depends on roundings of the reference itself" in found["detail"]


def test_attention_that_overflows_in_the_reference(tmp_path: Path) -> None:
    """Scores of 1e38 times a sum: which of them leave float32 depends on the order of its terms."""
    graph = helper.make_graph(
        [helper.make_node("Attention", ["q", "k", "v"], ["y"], name="attend", scale=1e38)], "g",
        [value(n, TensorProto.FLOAT, [1, 2, 6, 8]) for n in "qkv"],
        [value("y", TensorProto.FLOAT, [1, 2, 6, 8])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    open_ones = 0
    for seed in range(6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        request = JobRequest(
            saved(model, folder), "m", {"preset": "kapla-edge"},
            CompileOptions(seed=seed, strategy="naive"), folder / "b",
        )  # fmt: skip
        run_job(request, folder / "out", MemoryCache(), NoProgress())
        found = json.loads((folder / "out" / "report.json").read_bytes())["verification"]
        assert found["passed"] is not False
        open_ones += "depends on roundings of the reference" in found["detail"]
    assert open_ones


def test_what_smaller_inputs_keep_finite_is_no_verdict() -> None:
    """A logarithm of what is negative stays NaN; what is too large does not."""
    large, negative = np.array([np.inf, 1.0], np.float32), np.array([np.nan, 1.0], np.float32)
    there = {"large": np.array([5.0, 1.0], np.float32), "negative": negative, "other": X}

    def none() -> Float64Values:
        raise NoFloat64("no form")

    values = {"large": large, "negative": negative}
    found = measure(values, Runs(none, lambda seed: values, shrunk=lambda: there))
    assert found.overflowing == {"large"}
    assert measure(values, Runs(none, lambda seed: values)).overflowing == set()
    assert shrunken({"x": X, "n": np.array([4])})["x"] == pytest.approx(X / 2**20)
    assert shrunken({"n": np.array([4])})["n"].tolist() == [4]


def test_without_a_float64_form_moved_inputs_measure() -> None:
    def none() -> Float64Values:
        raise NoFloat64("no form")

    def moved(seed: int) -> Mapping[str, Array]:
        return {"y": X * (1 + 1e-5 * (seed - 1)), "n": np.array([1, 2])}

    found = measure({"y": X, "n": np.array([1, 3])}, Runs(none, moved))
    assert set(found.of) == {"y"}
    assert found.of["y"] == pytest.approx(1e-5, rel=0.05)
    assert "no form" in found.method
    exact = Float64Values({"y": X * (1 + 1e-7), "z": X * (1 + 1e-4), "w": X * (1 + 1e-6)}, 0)
    both = measure(
        {"y": X, "z": X, "w": X}, Runs(lambda: exact, lambda seed: {}), is_selecting=True
    )
    assert both.of["z"] == pytest.approx(1e-4, rel=0.05)
    assert both.of["y"] == both.of["w"] == pytest.approx(1e-6, rel=0.2)  # the middle one
    assert "moved" not in both.method
    assert measure({"y": X}, Runs(lambda: exact, moved)).of["y"] == pytest.approx(1e-5, rel=0.05)
    twice = {"y": X.astype(np.float64)}
    assert "float64 itself" in measure(twice, Runs(none, lambda seed: twice)).method


def test_how_far_operators_are_from_their_definition_counts() -> None:
    """But where a model selects, and where ONNX Runtime cannot run it so."""
    exact = Float64Values({"y": X * (1 + 1e-7)}, 0)
    apart = {"y": X * (1 + 1e-5)}

    def fails() -> Mapping[str, Array]:
        raise CompilerError("TW-VERIFY-003", "no kernel")

    def runs(defined: Callable[[], Mapping[str, Array] | None]) -> Runs:
        return Runs(lambda: exact, lambda seed: {}, defined)

    found = measure({"y": X}, runs(lambda: apart))
    assert found.of["y"] == pytest.approx(1e-5, rel=0.05)
    assert "definition" in found.method
    for other in (
        measure({"y": X}, runs(lambda: apart), is_selecting=True),
        measure({"y": X}, runs(lambda: None)),
        measure({"y": X}, runs(fails)),
    ):
        assert other.of["y"] == pytest.approx(1e-7, rel=0.2)
        assert "definition" not in other.method


NARROW = {
    "schema_version": 1, "name": "narrow", "inherits": "a100",
    "levels": [{"name": "SMEM", "capacity_bytes": 2048}],
}  # fmt: skip
"""Sums are cut, so they are rounded otherwise than the reference's."""


def cancelling() -> onnx.ModelProto:
    """The difference of two nearly equal products, then a product: float32 keeps three digits."""
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((64, 64)).astype(np.float32)
    near = (weights * (1 + 3e-4 * rng.standard_normal((64, 64)))).astype(np.float32)
    last = rng.standard_normal((64, 32)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"], name="one"),
            helper.make_node("MatMul", ["x", "n"], ["b"], name="other"),
            helper.make_node("Sub", ["a", "b"], ["d"], name="difference"),
            helper.make_node("MatMul", ["d", "v"], ["y"], name="head"),
        ],
        "cancelling",
        [value("x", TensorProto.FLOAT, [8, 64])],
        [value("y", TensorProto.FLOAT, [8, 32])],
        [numpy_helper.from_array(w, n) for w, n in ((weights, "w"), (near, "n"), (last, "v"))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def kind_of(program: UnitProgram) -> str:
    """Which kernel of `cancelling` it is; the first two products are one."""
    shapes = [o.shape for o in program.operands]
    if (64, 64) in shapes:
        return "product"
    return "head" if (64, 32) in shapes else "difference"


def verified(
    model: onnx.ModelProto, folder: Path, patch: pytest.MonkeyPatch, kind: str = "", fault: str = ""
) -> dict[str, Any]:
    """The report's verification of a job in which one kind of kernel ends with C text `fault`,
    where OUT and IN0, IN1, ... are its operands."""
    honest = generate_kernel

    def changed(schedule: Schedule, program: UnitProgram, machine: Machine, name: str) -> str:
        text = honest(schedule, program, machine, name)
        if not fault or kind_of(program) != kind:
            return text
        given = [k for k, o in enumerate(program.operands) if o.role is not OperandRole.OUTPUT]
        (out,) = (k for k, o in enumerate(program.operands) if o.role is OperandRole.OUTPUT)
        body = fault.replace("OUT", f"((float *)operand[{out}])")
        for number, k in enumerate(given):
            body = body.replace(f"IN{number}", f"((const float *)operand[{k}])")
        head, _, _ = text.rstrip().rpartition("}")
        return f"{head}    {body}\n}}\n"

    patch.setattr("worker.compiler.judge.units.generate_kernel", changed)
    options = CompileOptions(verify=VerifyMode.FULL, strategy="naive")
    request = JobRequest(saved(model, folder), "m", NARROW, options, folder / "b")
    if fault:
        with pytest.raises(Mismatch, match="own error"):
            run_job(request, folder / "out", MemoryCache(), NoProgress())
    else:
        run_job(request, folder / "out", MemoryCache(), NoProgress())
    report = json.loads((folder / "out" / "report.json").read_bytes())
    return dict(report["verification"])


def test_a_difference_that_the_reference_makes_itself_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A detector of 943 nodes failed at 3.09e-4 > 3.07e-4, eight times a fixed tolerance."""
    check = verified(cancelling(), tmp_path, monkeypatch)
    (row,) = [row for row in check["outputs"] if row["name"] == "y"]
    assert check["passed"] is True
    assert row["max_rel_err"] > 8e-5  # what was allowed at most
    assert row["max_rel_err"] < row["tolerance"] == pytest.approx(FACTOR * row["own_error"])
    assert row["tolerance"] < ceiling_of(DType.F32)
    assert "own error, against ONNX Runtime in float64 and by 3 runs" in check["detail"]


FAULTS = {
    "one element": ("head", "OUT[37] *= 1.25f;"),
    "a column of zeros": ("head", "for (int i = 0; i < 8; ++i) OUT[32 * i + 5] = 0.0f;"),
    "a dropped term": ("head", "for (int i = 0; i < 8; ++i) for (int j = 0; j < 32; ++j)"
                       " OUT[32 * i + j] -= IN0[64 * i + 9] * IN1[32 * 9 + j];"),
    "a dropped term of one element": ("head", "OUT[70] -= IN0[64 * 2 + 3] * IN1[32 * 3 + 6];"),
    "an element inside": ("difference", "OUT[100] *= 1.5f;"),
    "a term of both products": ("product", "OUT[70] -= IN0[64 + 3] * IN1[64 * 3 + 6];"),
    "a column inside": ("difference", "for (int i = 0; i < 8; ++i) OUT[64 * i + 5] = 0.0f;"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_fail_where_the_reference_is_ill_conditioned(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, text = FAULTS[fault]
    check = verified(cancelling(), tmp_path, monkeypatch, kind, text)
    assert check["passed"] is False
    assert "own error is" in check["detail"]


def test_where_the_reference_is_wrong_itself_nothing_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sine of many turns: float32 cannot say where it ends, so no verdict is given."""
    many = numpy_helper.from_array(np.array(3e6, np.float32), "many")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"]),
         helper.make_node("Mul", ["a", "many"], ["b"]), helper.make_node("Sin", ["b"], ["y"])],
        "turns",
        [value("x", TensorProto.FLOAT, [8, 512])],
        [value("y", TensorProto.FLOAT, [8, 16])],
        [many, numpy_helper.from_array(np.tile(X, (64, 1)), "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    check = verified(model, tmp_path, monkeypatch)
    assert check["passed"] is None
    assert check["detail"].startswith("not verified, because y: the reference's own error is")
