"""What kernels keep to themselves is compared, and outputs that ignore the inputs prove nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import conv_net, saved

import worker.compiler.judge.units
import worker.verification.observing
from worker.compiler.cache import MemoryCache
from worker.compiler.codegen.ctext import literal
from worker.compiler.codegen.kernel import generate_kernel
from worker.compiler.frontend.limits import Limits
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import UnitProgram
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.pipeline import compile_model
from worker.compiler.schedule.nodes import Schedule
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.report.document import Verification
from worker.verification.drive import verify_model
from worker.verification.reference import reference_outputs

SLOPE, WRONG = (literal(value, DType.F32) for value in (0.3, 0.31))


def blind_net(shift: float = 1e6) -> onnx.ModelProto:
    """Two products with a leaky Relu between; the last Relu keeps nothing of a large shift."""
    rng = np.random.default_rng(2)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["one"], name="first"),
        helper.make_node("LeakyRelu", ["one"], ["leaky"], name="slope", alpha=0.3),
        helper.make_node("MatMul", ["leaky", "v"], ["two"], name="second"),
        helper.make_node("Sub", ["two", "far"], ["three"], name="shift"),
        helper.make_node("Relu", ["three"], ["y"], name="last"),
    ]
    weights = {"w": rng.standard_normal((32, 48)), "v": rng.standard_normal((48, 16)),
               "far": np.array([shift])}  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "blind",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 16])],
        [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def verified(
    folder: Path, model: onnx.ModelProto, mode: VerifyMode = VerifyMode.SAMPLE
) -> Verification:
    machine = load_preset("stcp920-inferred")
    options = CompileOptions(verify=mode, strategy="graphturbo")
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    path = saved(model, folder)
    compiled = compile_model(path, "m", machine, options, ports, Limits())
    assert len(compiled.units) == 1
    return verify_model(path, compiled, options, folder / "build")


def with_wrong_slope(patch: pytest.MonkeyPatch, *modules: object) -> None:
    """Both forms of a kernel, or one of them, with 0.31 where the model says 0.3."""

    def wrong(
        schedule: Schedule, program: UnitProgram, machine: Machine, name: str,
        observed: tuple[str, ...] = (),
    ) -> str:  # fmt: skip
        text = generate_kernel(schedule, program, machine, name, observed)
        assert SLOPE in text
        return text.replace(SLOPE, WRONG)

    for module in modules:
        patch.setattr(module, "generate_kernel", wrong)


def test_an_output_that_ignores_the_input_is_named_and_the_inside_compared(tmp_path: Path) -> None:
    found = verified(tmp_path, blind_net())
    assert found.passed is True
    assert found.insensitive == ("y",)
    assert "1 outputs do not depend on the inputs (y): comparing them proves" in found.detail
    inside = [row.name.rsplit(": ")[-1] for row in found.outputs if "(inside)" in row.name]
    assert {"one (inside)", "leaky (inside)", "two (inside)"} <= set(inside)


def test_a_fault_that_no_output_shows_is_found_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_wrong_slope(monkeypatch, worker.compiler.judge.units, worker.verification.observing)
    found = verified(tmp_path, blind_net())
    assert found.passed is False
    wrong = [row.name for row in found.outputs if row.is_wrong]
    assert [name.rsplit(": ")[-1] for name in wrong] == ["leaky (inside)", "two (inside)"]
    assert "first" in wrong[0]


def test_nothing_to_compare_is_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel of many nodes passed with "0 kernels sampled" on an output like this."""
    with_wrong_slope(monkeypatch, worker.compiler.judge.units, worker.verification.observing)
    monkeypatch.setattr(
        "worker.verification.references.reference_outputs",
        lambda path, inputs, extra: (reference_outputs(path, inputs)[0], {}),
    )
    found = verified(tmp_path, blind_net())
    assert found.passed is None
    assert found.detail.startswith("not verified, because 1 kernels (first .. last")
    assert "do not depend on the inputs" in found.detail


def test_another_output_of_the_observed_form_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_wrong_slope(monkeypatch, worker.verification.observing)
    found = verified(tmp_path, blind_net(0.5), VerifyMode.FULL)
    assert found.passed is False
    assert "its observed form: it writes other outputs than the plain one" in found.detail


def test_full_compares_every_tensor_and_names_the_worst(tmp_path: Path) -> None:
    model = conv_net()
    found = verified(tmp_path, model, VerifyMode.FULL)
    assert found.passed is True
    made = {name for node in model.graph.node for name in node.output}
    inside = {row.name.rsplit(": ")[-1].removesuffix(" (inside)") for row in found.outputs
              if "(inside)" in row.name}  # fmt: skip
    assert len(inside) >= 4
    assert inside <= made
    worst = next(row for row in found.outputs if row.name == found.worst)
    assert worst.share == max(row.share for row in found.outputs)
    assert (found.max_rel_err, found.tolerance) == (worst.error, worst.tolerance)
    assert "of them inside kernels" in found.detail
