"""Deep kernels: when the sampled oracle cannot follow, every element of the outputs is compared."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_models import conv_net, repeated_layers, saved

import worker.verification.drive
import worker.verification.whole_outputs
from worker.compiler.cache import MemoryCache
from worker.compiler.codegen.kernel import generate_kernel
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.express import express_region
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.region import Cuts
from worker.compiler.isa.program import OperandRole, UnitProgram
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.pipeline import compile_model
from worker.compiler.schedule.nodes import Schedule
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.report.document import Verification
from worker.verification.comparing import Comparer
from worker.verification.drive import verify_model
from worker.verification.measured import longest_sum
from worker.verification.reference import reference_outputs
from worker.verification.sampling import interior, sample_points
from worker.verification.whole_outputs import is_sampleable


def oracle_follows(graph: Graph) -> bool:
    """Whether the oracle itself gets through: it knows the PARALLEL axes of an operator only."""
    made = {op.write.tensor for op in graph.ops}
    rng = np.random.default_rng(0)
    arrays = {
        t.name: rng.standard_normal(t.shape).astype(t.dtype.numpy)
        for t in graph.tensors.values()
        if t.name not in made
    }
    last = graph.ops[-1]
    try:
        interior(graph, arrays, last, sample_points(last, 0, 4))
    except KeyError:
        return False
    return True


def test_exactly_what_the_oracle_can_follow_is_sampled(tmp_path: Path) -> None:
    model = simplify(bind(load_model(saved(conv_net(), tmp_path), Limits()), {}))
    outputs = [v.name for v in model.ir.graph.outputs if v.name]
    graph = express_region(list(model.ir.graph), outputs, model.opset, ()).graph
    cuts, names = Cuts.of(graph), [op.name for op in graph.ops]
    verdicts = []
    for low in range(len(names)):
        for high in range(low + 1, len(names) + 1):
            piece = cuts.piece(names[low:high])
            if len(piece.outputs) == 1:
                verdicts.append(is_sampleable(piece))
                assert is_sampleable(piece) is oracle_follows(piece), names[low:high]
    assert True in verdicts
    assert False in verdicts


def pieces_model() -> onnx.ModelProto:
    """Three kernels each write a part of one tensor, and a product reads the whole of it."""
    pieces = [
        helper.make_node(op, ["x"], [f"p{op}"], name=op) for op in ("Relu", "Sigmoid", "Tanh")
    ]
    weight = np.random.default_rng(3).standard_normal((12, 5)).astype(np.float32)
    graph = helper.make_graph(
        [
            *pieces,
            helper.make_node("Concat", [n.output[0] for n in pieces], ["c"], name="c", axis=1),
            helper.make_node("MatMul", ["c", "w"], ["y"], name="product"),
        ],
        "pieces",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [6, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [6, 5])],
        [numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def compiled_of(path: Path, options: CompileOptions) -> CompiledModel:
    machine = load_preset("kapla-edge")
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    return compile_model(path, "m", machine, options, ports, Limits())


def verified(folder: Path, model: onnx.ModelProto | None = None) -> Verification:
    options = CompileOptions(verify=VerifyMode.SAMPLE, strategy="naive")
    path = saved(model or repeated_layers(3), folder)
    return verify_model(path, compiled_of(path, options), options, folder / "build")


def treat_all_as_deep(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(worker.verification.drive, "is_sampleable", lambda graph: False)


def test_right_kernels_pass_in_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = verified(tmp_path)
    treat_all_as_deep(monkeypatch)
    whole = verified(tmp_path)
    assert sampled.passed is whole.passed is True
    assert "in whole" not in sampled.detail
    kernels = {row[0].split()[1] for row in sampled.outputs if row[0].startswith("kernel")}
    assert f"{len(kernels)} tensors of {len(kernels)} kernels in whole, 0 of" in whole.detail
    assert "sampled" not in whole.detail
    assert "alone" not in whole.detail
    assert {r[0].split()[1] for r in whole.outputs if r[0].startswith("kernel")} == kernels


def test_one_wrong_element_of_a_deep_kernel_is_found_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = generate_kernel

    def wrong(schedule: Schedule, program: UnitProgram, machine: Machine, name: str) -> str:
        text = honest(schedule, program, machine, name)
        slot = next(k for k, o in enumerate(program.operands) if o.role is OperandRole.OUTPUT)
        head, _, _ = text.rstrip().rpartition("}")
        return f"{head}    ((float *)operand[{slot}])[1] += 1.0f;\n}}\n"

    monkeypatch.setattr("worker.compiler.judge.units.generate_kernel", wrong)
    treat_all_as_deep(monkeypatch)
    found = verified(tmp_path)
    assert found.passed is False
    kernels = [row for row in found.outputs if row[0].startswith("kernel")]
    assert kernels
    assert any(row[2] > row[3] for row in kernels)


def test_a_tensor_of_several_writers_is_judged_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    treat_all_as_deep(monkeypatch)
    found = verified(tmp_path, pieces_model())
    assert found.passed, found.detail
    assert sum(row[0].endswith(": c") for row in found.outputs) == 1
    assert "5 tensors of 7 kernels in whole, 0 of" in found.detail
    assert "alone" not in found.detail


def test_values_the_reference_lacks_are_counted_and_their_kernels_left_to_the_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    treat_all_as_deep(monkeypatch)
    monkeypatch.setattr(
        "worker.verification.references.reference_outputs",
        lambda path, inputs, extra: (reference_outputs(path, inputs)[0], {}),
    )
    found = verified(tmp_path, pieces_model())
    assert found.passed, found.detail
    assert "1 tensors of 1 kernels in whole (4 more have no" in found.detail  # `y` is an output
    assert "6 kernels judged by the outputs alone" in found.detail


def test_values_beyond_the_limit_are_left_to_the_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    treat_all_as_deep(monkeypatch)
    monkeypatch.setattr(worker.verification.whole_outputs, "MAX_WHOLE_BYTES", 6 * 4 * 4)
    found = verified(tmp_path, pieces_model())
    assert found.passed, found.detail
    assert "1 tensors of 1 kernels in whole" in found.detail
    assert "6 kernels judged by the outputs alone" in found.detail


def test_the_bound_does_not_depend_on_the_strategy(tmp_path: Path) -> None:
    path = saved(conv_net(), tmp_path)
    many, few = (compiled_of(path, CompileOptions(strategy=way)) for way in ("naive", "graphturbo"))
    assert len(few.units) < len(many.units)
    floors = {longest_sum(found.region_graphs) for found in (few, many)}
    assert floors == {288}  # the terms of the last product


@pytest.mark.parametrize(
    ("dtype", "steps", "passes"),
    [("u1", 3, True), ("u1", 20, False), ("i8", 0, True), ("i8", 1, False), ("f4", 3, True)],
)
def test_quantised_values_are_judged_as_floats_and_indices_exactly(
    dtype: str, steps: int, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.verification.comparing.coarsest", lambda used: DType.U8)
    compiled = compiled_of(saved(conv_net(), tmp_path), CompileOptions())
    want = np.arange(200, dtype=dtype)
    have = want.copy()
    have[7] += steps
    row = Comparer(compiled).value("kernel k: v", "v", have, want)
    assert row.name == "kernel k: v"
    assert row.is_wrong is not passes


def test_a_bundle_gives_inner_values_as_the_bare_model_does(tmp_path: Path) -> None:
    model = repeated_layers(3)
    bare = saved(model, tmp_path)
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    bundle = tmp_path / "m.zip"
    with zipfile.ZipFile(bundle, "w") as archive:
        for name in ("m.onnx", "w.bin"):
            archive.write(tmp_path / name, name)
    sizes = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    fed = {model.graph.input[0].name: np.random.default_rng(0).random(sizes, dtype=np.float32)}
    outputs, inner = reference_outputs(bare, fed, ("r0", "unknown"))
    others, same = reference_outputs(bundle, fed, ("r0", "unknown"))
    assert (list(outputs), list(inner)) == (["r2"], ["r0"])
    assert np.array_equal(inner["r0"], same["r0"])
    assert np.array_equal(outputs["r2"], others["r2"])
