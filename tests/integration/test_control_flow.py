"""Regions inside loops and branches: offloaded, run as kernels, equal to ONNX Runtime."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import control_models as models
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_models import saved

from worker.compiler.assembly.packing import (
    bundle_contents,
    kernel_texts,
    nested_models,
    program_contents,
    programs,
)
from worker.compiler.cache import MemoryCache
from worker.compiler.errors import InputError, ModelError
from worker.compiler.frontend.limits import Limits
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.package.build import build_library
from worker.compiler.package.bundle import write_bundle
from worker.compiler.package.runtime import ModelRunner, load_program, run_bundle
from worker.compiler.partition.plan import HOST
from worker.compiler.pipeline import compile_model
from worker.job.job import run_job
from worker.job.ports import open_ports
from worker.job.request import JobRequest, NoProgress
from worker.job.simulation import simulate_model
from worker.report.control import control_rows
from worker.verification.drive import verify_model

Array = np.ndarray[Any, Any]
BUILD_DIR = Path(tempfile.gettempdir()) / "tilewright-control-kernels"
"""Shared by runs: libraries are found by content."""


def compile_path(
    path: Path, machine: Machine, options: CompileOptions, cache: MemoryCache | None = None
) -> CompiledModel:
    ports = open_ports(machine, options, cache or MemoryCache(), NoProgress())
    return compile_model(path, "m", machine, options, ports, Limits())


def compiled(
    model: onnx.ModelProto,
    folder: Path,
    cache: MemoryCache | None = None,
    strategy: str = "auto",
) -> CompiledModel:
    options = CompileOptions(strategy=strategy)
    return compile_path(saved(model, folder), load_preset("a100"), options, cache)


def runner_of(made: CompiledModel) -> ModelRunner:
    return load_program(program_contents(made), build_library(kernel_texts(made), BUILD_DIR))


def reference(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def assert_same(model: onnx.ModelProto, runner: ModelRunner, inputs: Mapping[str, Array]) -> None:
    got, want = runner.run(inputs), reference(model, inputs)
    assert set(got) == set(want)
    for name, array in want.items():
        assert got[name].shape == array.shape, name
        assert got[name].dtype == array.dtype, name
        np.testing.assert_allclose(got[name], array, rtol=2e-5, atol=2e-5, err_msg=name)


def offloaded(made: CompiledModel) -> set[str]:
    """Nodes inside bodies that a kernel serves, over all nested programs."""
    return {
        node
        for program in list(programs(made))[1:]
        for call in program.linked.program.calls
        if isinstance(call, UnitCall)
        for node in call.onnx_nodes
    }


def launches(runner: ModelRunner) -> Iterator[list[str]]:
    """One list per nested program, deepest last; filled with the kernels a run calls there."""
    for body in runner.bodies:
        seen: list[str] = []
        body.watch = lambda _position, call, _read, seen=seen: seen.extend(call.onnx_nodes)
        yield seen
        yield from launches(body)


def image(seed: int = 5) -> Array:
    return np.random.default_rng(seed).standard_normal((1, 4, 6, 6)).astype(np.float32)


def rows(seed: int = 5, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_counted_loop_runs_its_conv_on_the_accelerator(trips: int, tmp_path: Path) -> None:
    model = models.counted_loop(trips)
    made = compiled(model, tmp_path)
    (control,) = made.controls
    assert control.flow is not None
    assert control.flow.trips == trips
    assert offloaded(made) >= {"body/conv", "body/add", "body/relu", "body/peak"}
    placed = {row.node: row.target for row in made.placement}
    assert placed["loop"] == HOST
    assert placed["before"] != HOST
    assert placed["after"] != HOST  # the loop's result has a static shape
    runner = runner_of(made)
    (seen,) = launches(runner)
    assert_same(model, runner, {"x": image()})
    assert seen.count("body/conv") == trips


@pytest.mark.parametrize("count", [0, 2, 4])
@pytest.mark.parametrize("initial", [None, True, False])
def test_trip_count_and_condition_decide_at_run_time(
    count: int, initial: bool | None, tmp_path: Path
) -> None:
    model = models.counted_loop(None, initial)
    runner = runner_of(compiled(model, tmp_path))
    (seen,) = launches(runner)
    assert_same(model, runner, {"x": image(), "m": np.array(count, np.int64)})
    assert seen.count("body/conv") == (0 if initial is False else count)


@pytest.mark.parametrize(("limit", "trips"), [(-1.0, 1), (100.0, 3), (2000.0, 7)])
def test_a_loop_stops_when_its_condition_says_so(limit: float, trips: int, tmp_path: Path) -> None:
    model = models.stopping_loop()
    made = compiled(model, tmp_path)
    assert offloaded(made) >= {"grow", "total"}
    runner = runner_of(made)
    (seen,) = launches(runner)
    inputs = {"x": np.ones((2, 8), np.float32), "limit": np.array(limit, np.float32)}
    assert_same(model, runner, inputs)
    assert seen.count("grow") == trips  # 16 * 2^n reaches the limit
    assert made.controls[0].flow is not None
    assert made.controls[0].flow.trips is None


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("else_offloads", [True, False])
def test_only_the_taken_branch_runs(taken: bool, else_offloads: bool, tmp_path: Path) -> None:
    model = models.branches(else_offloads)
    made = compiled(model, tmp_path)
    assert offloaded(made) >= {"then/one", "then/two"}
    assert ("else/only" in offloaded(made)) is else_offloads
    runner = runner_of(made)
    seen = [node for nodes in _run(runner, taken) for node in nodes]
    assert ("then/one" in seen) is taken
    assert ("else/only" in seen) is (else_offloads and not taken)
    assert_same(model, runner, {"x": rows(3, 4, 8), "c": np.array(taken)})


def _run(runner: ModelRunner, taken: bool) -> list[list[str]]:
    seen = list(launches(runner))
    runner.run({"x": rows(3, 4, 8), "c": np.array(taken)})
    return seen


@pytest.mark.parametrize("directions", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("outs", [(0, 0), (1, 0), (1, 1)])
def test_scan_with_several_states_axes_and_directions(
    directions: tuple[int, int], outs: tuple[int, int], tmp_path: Path
) -> None:
    model = models.scan(directions, outs)
    made = compiled(model, tmp_path)
    assert offloaded(made) >= {"scan/hidden", "scan/input", "scan/gate", "scan/acc"}
    runner = runner_of(made)
    (seen,) = launches(runner)
    inputs = {"a0": rows(1, 3, 5), "ps": rows(2, 3, 7, 4), "qs": rows(3, 3, 5, 7)}
    assert_same(model, runner, inputs)
    assert seen.count("scan/hidden") == 7


@pytest.mark.parametrize("directions", [(0, 0), (1, 0)])
def test_a_scan_of_opset_8_loses_its_batch_of_one(
    directions: tuple[int, int], tmp_path: Path
) -> None:
    model = models.old_scan(directions=directions)
    made = compiled(model, tmp_path)
    assert offloaded(made) >= {"scan/hidden", "scan/gate"}
    inputs = {"h0": rows(1, 1, 3, 5), "ps": rows(2, 1, 7, 3, 5), "qs": rows(3, 1, 7, 3, 5)}
    assert_same(model, runner_of(made), inputs)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (models.old_scan(batch=2), "its batch is ['2'], not 1"),
        (models.old_scan(has_lengths=True), "a length of its own"),
    ],
    ids=["batch", "lengths"],
)
def test_other_scans_of_opset_8_are_refused(
    model: onnx.ModelProto, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as caught:
        compiled(model, tmp_path)
    assert caught.value.code == "TW-MODEL-009"
    assert caught.value.place.node == "scan"
    assert sentence in caught.value.message


@pytest.mark.parametrize("taken", [True, False])
def test_a_loop_inside_a_branch_captures_from_every_level(taken: bool, tmp_path: Path) -> None:
    model = models.loop_in_if()
    made = compiled(model, tmp_path)
    assert len(list(programs(made))) == 4  # the model, two branches, the loop's body
    assert offloaded(made) >= {"inner/matmul", "inner/outermost", "inner/branch", "else/matmul"}
    runner = runner_of(made)
    seen = list(launches(runner))
    inputs = {"x": rows(4, 4, 8), "c": np.array(taken)}
    assert_same(model, runner, inputs)
    assert [n for nodes in seen for n in nodes].count("inner/matmul") == (3 if taken else 0)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_shapes_that_change_from_trip_to_trip_stay_on_the_host(count: int, tmp_path: Path) -> None:
    model = models.growing_loop()
    made = compiled(model, tmp_path)
    (body,) = nested_models(made)
    placed = {row.node: row for row in body.placement}
    assert placed["grow/matmul"].target != HOST
    for name in ("grow/concat", "grow/exp", "grow/sum"):
        assert placed[name].target == HOST
        assert placed[name].reason_code == "DYNAMIC_SHAPE"
    runner = runner_of(made)
    assert_same(model, runner, {"x": rows(2, 1, 8), "m": np.array(count, np.int64)})


@pytest.mark.parametrize(
    ("model", "word"),
    [(models.sequence_loop(), "sequence"), (models.optional_loop(), "optional")],
    ids=["sequence", "optional"],
)
def test_other_than_tensor_states_stay_in_onnx_runtime(
    model: onnx.ModelProto, word: str, tmp_path: Path
) -> None:
    made = compiled(model, tmp_path)
    (control,) = made.controls
    assert control.flow is None
    assert word in control.reason
    (row,) = (r for r in made.placement if r.node == "loop")
    assert (row.target, row.reason_code, row.reason) == (HOST, "CONTROL_FLOW", control.reason)
    assert_same(model, runner_of(made), {"x": rows(1, 2, 8)})


def test_every_body_node_is_reported_once_with_a_reason(tmp_path: Path) -> None:
    made = compiled(models.loop_in_if(), tmp_path)
    _, whole = simulate_model(made, MemoryCache())
    section = control_rows(made, whole)
    found = [row for node in section for row in _placed(node)]
    names = [row["node"] for row in found]
    inside = {"then/scale", "then/loop", "inner/matmul", "inner/outermost", "inner/branch",
              "else/matmul"}  # fmt: skip
    assert inside <= set(names)
    assert len(names) == len(set(names))
    assert all(row["target"] and row["reason"] and row["reason_code"] for row in found)
    (choose,) = section
    assert isinstance(choose, dict)
    assert choose["branch_assumed"] is True
    (loop,) = choose["bodies"][0]["control_flow"]
    assert (loop["trips"], loop["trips_assumed"]) == (3, False)
    assert loop["bodies"][0]["cycles_per_iteration"] > 0
    assert loop["bodies"][0]["accelerator_ops"] == 3


def _placed(node: Any) -> Iterator[dict[str, Any]]:
    for body in node["bodies"]:
        assert body["accelerator_ops"] + body["host_ops"] == len(body["placement"])
        yield from body["placement"]
        for inner in body["control_flow"]:
            yield from _placed(inner)


def test_equal_kernels_of_model_and_body_are_one(tmp_path: Path) -> None:
    made = compiled(models.loop_in_if(), tmp_path, strategy="naive")
    kernels = kernel_texts(made)
    calls = [
        program.units[call.unit].kernel_name
        for program in programs(made)
        for call in program.linked.program.calls
        if isinstance(call, UnitCall)
    ]
    assert set(calls) == set(kernels)
    assert len(calls) > len(kernels)  # both branches multiply by the same weight


def test_bundle_holds_nested_programs_and_runs_them(tmp_path: Path) -> None:
    model = models.loop_in_if()
    cache = MemoryCache()
    digests = []
    for name in ("first.twb", "second.twb"):
        made = compiled(model, tmp_path, cache)
        contents = bundle_contents(made, {"version": "1"}, b"{}", b"{}", b"\x1f\x8b")
        digests.append(write_bundle(tmp_path / name, contents))
    assert digests[0] == digests[1]
    with zipfile.ZipFile(tmp_path / "first.twb") as archive:
        names = set(archive.namelist())
        manifest = json.loads(archive.read("manifest.json"))
        graph = json.loads(archive.read("model/graph.json"))
    for folder in ("bodies/0/", "bodies/1/", "bodies/0/bodies/0/"):
        assert {folder + "graph.json", folder + "program.bin"} <= names
        assert folder + "weights.safetensors" in names
    assert {m["name"] for m in manifest["members"]} == names - {"manifest.json"}
    assert {k["kernel"] for k in manifest["provenance"]} == set(kernel_texts(made))
    (call,) = (c for c in graph["calls"] if c["type"] == "control")
    assert call["programs"] == ["bodies/0/", "bodies/1/"]
    for taken in (True, False):
        inputs = {"x": rows(4, 4, 8), "c": np.array(taken)}
        got = run_bundle(tmp_path / "first.twb", inputs, BUILD_DIR)
        np.testing.assert_allclose(got["y"], reference(model, inputs)["y"], rtol=2e-5, atol=2e-5)


def test_a_bundle_keeps_the_branch_that_runs_whole(tmp_path: Path) -> None:
    model = models.branches(else_offloads=False)
    made = compiled(model, tmp_path)
    write_bundle(tmp_path / "m.twb", bundle_contents(made, {}, b"{}", b"{}", b"\x1f\x8b"))
    for taken in (True, False):
        inputs = {"x": rows(3, 4, 8), "c": np.array(taken)}
        got = run_bundle(tmp_path / "m.twb", inputs, BUILD_DIR)
        np.testing.assert_allclose(got["y"], reference(model, inputs)["y"], rtol=2e-5, atol=2e-5)


def test_a_damaged_nested_program_is_refused(tmp_path: Path) -> None:
    made = compiled(models.branches(), tmp_path)
    good, bad = tmp_path / "good.twb", tmp_path / "bad.twb"
    write_bundle(good, bundle_contents(made, {}, b"{}", b"{}", b"\x1f\x8b"))
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(bad, "w") as target:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename == "bodies/1/program.bin":
                data = data[:-1] + bytes([data[-1] ^ 1])
            target.writestr(entry, data)
    with pytest.raises(InputError, match=r"bodies/1/program\.bin"):
        run_bundle(bad, {"x": rows(3, 4, 8), "c": np.array(True)}, BUILD_DIR)


@pytest.mark.parametrize("mode", [VerifyMode.SAMPLE, VerifyMode.FULL])
def test_verification_runs_and_samples_nested_kernels(mode: VerifyMode, tmp_path: Path) -> None:
    model = models.counted_loop(3)
    made = compiled(model, tmp_path, strategy="naive")
    options = CompileOptions(verify=mode)
    found = verify_model(tmp_path / "model.onnx", made, options, BUILD_DIR)
    assert found.passed is True
    sampled = [row[0] for row in found.outputs if row[0].startswith("kernel")]
    assert any("body/conv" in label for label in sampled)


def test_verification_catches_a_wrong_nested_kernel(tmp_path: Path) -> None:
    model = models.counted_loop(3)
    made = compiled(model, tmp_path)
    (body,) = nested_models(made)
    right = body.constants["w"]()
    body.constants["w"] = lambda: right + np.float32(0.01)  # type: ignore[index]
    options = CompileOptions(verify=VerifyMode.FULL)
    found = verify_model(tmp_path / "model.onnx", made, options, BUILD_DIR)
    assert found.passed is False


def test_bodies_that_do_not_fit_beside_the_model_run_whole(tmp_path: Path) -> None:
    model = models.counted_loop(3)
    made = compiled(model, tmp_path)
    (body,) = nested_models(made)
    assert made.home_bytes == made.linked.program.home_bytes + body.linked.program.home_bytes
    machine = load_preset("a100")
    home = replace(machine.levels[0], capacity_bytes=made.home_bytes - 1, reserve_fraction=0.0)
    small = replace(machine, levels=(home, *machine.levels[1:]))
    again = compile_path(tmp_path / "model.onnx", small, CompileOptions())
    assert nested_models(again) == ()
    assert "bytes of" in again.controls[0].reason
    assert_same(model, runner_of(again), {"x": image()})


def test_open_trip_counts_are_assumed_and_said_so(tmp_path: Path) -> None:
    made = compiled(models.stopping_loop(), tmp_path)
    cycles = {}
    for trips in (1, 5, 6):
        _, whole = simulate_model(made, MemoryCache(), trips)
        (timing,) = whole.control
        assert (timing.trips, timing.trips_assumed) == (trips, True)
        assert all(check.passed for check in whole.checks)
        cycles[trips] = whole.cycles
    per_trip = timing.bodies[0].cycles_per_iteration
    assert cycles[6] - cycles[5] == per_trip
    assert cycles[5] - cycles[1] == 4 * per_trip


def test_a_known_trip_count_outweighs_the_assumption(tmp_path: Path) -> None:
    made = compiled(models.counted_loop(3), tmp_path)
    _, whole = simulate_model(made, MemoryCache(), 50)
    (timing,) = whole.control
    assert (timing.trips, timing.trips_assumed) == (3, False)


def test_a_job_reports_control_flow_and_stays_sane(tmp_path: Path) -> None:
    path = saved(models.loop_in_if(), tmp_path)
    options = CompileOptions(verify=VerifyMode.FULL, loop_trips=4)
    request = JobRequest(path, "m", {"preset": "a100"}, options, BUILD_DIR)
    digests = []
    for name in ("first", "second"):
        outcome = run_job(request, tmp_path / name, MemoryCache(), NoProgress())
        digests.append(outcome.bundle_digest)
    assert digests[0] == digests[1]
    report = json.loads((tmp_path / "first" / "report.json").read_text())
    assert report["verification"]["passed"] is True
    assert [check for check in report["sanity"] if not check["passed"]] == []
    (row,) = report["control_flow"]
    assert (row["node"], row["kind"], row["interpreted"]) == ("choose", "If", True)
    calls = [layer for layer in report["layers"] if layer["onnx_nodes"] == ["choose"]]
    assert [call["placement"] for call in calls] == ["host"]
    assert calls[0]["cycles_total"] >= row["cycles"]
    assert calls[0]["macs"] == report["summary"]["macs"]


def test_shared_control_flow_model(shared_models: Path, tmp_path: Path) -> None:
    from benchmarks.zoo import ZooModel, materialized

    del shared_models
    path = materialized(ZooModel("control_flow", "control_flow"), tmp_path)
    options = CompileOptions(verify=VerifyMode.FULL)
    made = compile_path(path, load_preset("a100"), options)
    assert {c.node: c.flow is not None for c in made.controls} == {"/Loop": True, "/If_1": True}
    assert offloaded(made) >= {"/wh/Gemm", "/halt/Gemm", "/big/0/Gemm", "/small/Gemm"}
    assert verify_model(path, made, options, BUILD_DIR).passed is True
