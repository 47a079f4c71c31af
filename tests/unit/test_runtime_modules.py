"""The runtime's modules: entries, engines, host parts in place, and profiles of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from kernel_toys import BUILD_DIR
from region_bundles import MODELS, bundled, made
from test_bundle import contents, expected
from test_bundle import inputs as toy_inputs
from typer.testing import CliRunner

from service.cli.main import app
from worker.compiler.assembly.packing import executable_model, kernel_texts, program_contents
from worker.compiler.errors import InputError
from worker.compiler.isa.program import HostCall
from worker.compiler.package import accelerator_module
from worker.compiler.package.accelerator_module import programs_by_target
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Emulator
from worker.compiler.package.executable import HostEntry
from worker.compiler.package.metadata_module import MetadataModule
from worker.compiler.package.profile import CallProfile, InvocationProfile, Tally
from worker.compiler.package.runtime import ModelRunner, load_program
from worker.job.arrays import write_npz
from worker.verification.inputs import seeded_inputs

Array = np.ndarray[Any, Any]
M, N = 12, 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")


def toy(**changes: Any) -> ModelRunner:
    """The model of the bundle tests with its host values in pre-allocated entries."""
    whole = contents()
    entries = (HostEntry("f", "bool", (2,)), HostEntry("g", "bool", (2,)))
    model = replace(whole.model, host_entries=entries)
    library = build_library(whole.kernels, BUILD_DIR)
    runner = ModelRunner(model, library, whole.host_models, **changes)
    runner.load_constants(whole.constants)
    return runner


def loaded(name: str, folder: Path, **changes: Any) -> ModelRunner:
    compiled = made(name, folder)
    library = build_library(kernel_texts(compiled), BUILD_DIR)
    return load_program(program_contents(compiled), library, **changes)


def reference(name: str, feeds: dict[str, Array]) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        MODELS[name][0]().SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def test_entries_have_consecutive_ids_and_memory_of_their_own(folder: Path) -> None:
    for name in MODELS:
        model = executable_model(made(name, folder))
        metadata = MetadataModule(model)
        ids = [entry.id for entry in metadata.entries.values()]
        assert ids == list(range(len(model.tensors) + len(model.host_entries)))
        for tensor in model.tensors:
            address = metadata.entries[tensor.name].array.ctypes.data
            assert address == metadata.home_address + tensor.address
        named = {v for c in model.program.calls if isinstance(c, HostCall)
                 for v in (*c.inputs, *c.outputs)}  # fmt: skip
        assert named <= set(metadata.entries)


def copies_of_host_parts(runner: ModelRunner) -> list[float]:
    """Seconds of the last run's copies between host values and the home memory, by host part."""
    found = runner.profile()
    assert found is not None
    return [call.transfer_s for call in found.calls if call.kind == "host"]


def test_host_parts_run_in_place_and_outputs_are_the_users() -> None:
    runner = toy(poison=False, clock=ticking().__next__)
    s, d = expected()
    first = runner.run(toy_inputs())
    assert copies_of_host_parts(runner) == [0], "it works on the data entries"
    kept = {name: array.copy() for name, array in first.items()}
    other = {**toy_inputs(), "f": np.array([False, False])}
    other["a"] = other["a"] * 2
    second = runner.run(other)
    np.testing.assert_allclose(first["s"], s, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first["d"], d, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(second["g"], [True, True])
    assert not np.allclose(second["s"], first["s"])
    for name, array in kept.items():
        np.testing.assert_array_equal(first[name], array)


def test_bound_and_plain_runs_agree() -> None:
    bound = toy().run(toy_inputs())
    runner = toy(clock=ticking().__next__)
    fed = runner.run(toy_inputs(), feed=lambda _call, feeds: feeds)
    assert min(copies_of_host_parts(runner)) > 0
    whole = contents()
    plain = ModelRunner(  # without entries for `f` and `g` the host part cannot be bound
        whole.model, build_library(whole.kernels, BUILD_DIR), whole.host_models,
        clock=ticking().__next__,
    )  # fmt: skip
    plain.load_constants(whole.constants)
    for other in (fed, plain.run(toy_inputs())):
        for name, array in bound.items():
            np.testing.assert_array_equal(other[name], array)
    assert min(copies_of_host_parts(plain)) > 0


def test_a_feed_replaces_what_a_bound_part_would_read() -> None:
    runner = toy()
    runner.run(toy_inputs())
    fed = runner.run(
        toy_inputs(), feed=lambda _call, feeds: {**feeds, "c": np.zeros((M, N), np.float32)}
    )
    np.testing.assert_array_equal(fed["s"], np.full((M, N), np.float32(1 / N)))
    again = runner.run(toy_inputs())
    np.testing.assert_allclose(again["s"], expected()[0], rtol=1e-5, atol=1e-6)


def test_an_entry_that_nothing_writes_is_refused() -> None:
    whole = contents()
    runner = toy()
    program = whole.model.program
    calls = tuple(call for call in program.calls if not isinstance(call, HostCall))
    model = replace(runner.model, program=replace(program, calls=calls))
    broken = ModelRunner(model, build_library(whole.kernels, BUILD_DIR), whole.host_models)
    broken.load_constants(whole.constants)
    with pytest.raises(InputError, match="nothing produces g"):
        broken.run(toy_inputs())


def test_values_without_a_static_shape_are_kept_as_made() -> None:
    runner = toy()
    metadata = runner.metadata
    metadata.begin()
    metadata.write("unknown", np.arange(3))
    metadata.write("g", np.zeros(5, bool))  # another shape than its entry's
    assert not metadata.is_allocated("g")
    assert metadata.read("g").shape == (5,)
    np.testing.assert_array_equal(metadata.read("unknown"), [0, 1, 2])
    metadata.begin()
    assert metadata.is_allocated("g")


def test_each_target_has_one_engine_kept_for_later_runs(folder: Path) -> None:
    whole = contents()
    model = replace(whole.model, targets=("npu", "dsp"))
    calls = list(model.program.calls)
    calls[2] = replace(calls[2], region=1)
    model = replace(model, program=replace(model.program, calls=tuple(calls)))
    assert {t: len(units) for t, units in programs_by_target([model]).items()} == {
        "npu": 1, "dsp": 1,
    }  # fmt: skip
    library = build_library(whole.kernels, BUILD_DIR)
    runner = ModelRunner(model, library, whole.host_models, clock=ticking().__next__)
    runner.load_constants(whole.constants)
    runner.run(toy_inputs())
    first = runner.profile()
    out = runner.run(toy_inputs())
    second = runner.profile()
    assert first is not None
    assert second is not None
    assert (first.initialised_now, second.initialised_now) == (("npu", "dsp"), ())
    assert [c.target for c in second.calls] == ["npu", "host", "dsp"]
    np.testing.assert_allclose(out["d"], expected()[1], rtol=1e-5, atol=1e-5)


def test_nested_programs_share_the_engine_of_their_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Emulator] = []

    def starting(*given: Any) -> Emulator:
        started.append(Emulator(*given))
        return started[-1]

    monkeypatch.setattr(accelerator_module, "Emulator", starting)
    runner = loaded("loop", folder)
    (body,) = runner.bodies
    feeds = seeded_inputs(made("loop", folder).model, 1)
    for _ in range(2):
        runner.run(feeds)
    targets = programs_by_target([runner.model, body.model])
    assert len(programs_by_target([runner.model])) > 0 < len(programs_by_target([body.model]))
    assert len(started) == len(targets)


def ticking() -> Iterator[float]:
    """A clock on which every look takes a second."""
    return (float(k) for k in count())


@pytest.mark.parametrize("name", MODELS)
def test_profiles_account_for_every_second(name: str, folder: Path) -> None:
    runner = loaded(name, folder, clock=ticking().__next__)
    feeds = seeded_inputs(made(name, folder).model, 1)
    assert runner.profile() is None
    for run in range(2):
        got = runner.run(feeds)
        found = runner.profile()
        assert found is not None
        assert [c.position for c in found.calls] == list(range(len(runner.model.program.calls)))
        parts = (found.launch_s, found.transfer_s, found.execute_s, found.engine_s, found.checks_s)
        assert min(parts) >= 0
        assert sum(parts) + found.other_s == pytest.approx(found.total_s)
        assert found.other_s >= 0
        assert bool(found.initialised_now) == (run == 0)
        for call in found.calls:
            assert call.execute_s >= 1
            assert (call.kind == "kernel") == (call.target != "host")
    if name != "int8":
        for output, array in reference(name, feeds).items():
            np.testing.assert_allclose(got[output], array, rtol=2e-4, atol=2e-5)


def test_a_loop_counts_what_its_iterations_spend() -> None:
    tally = Tally(ticking().__next__)
    one = InvocationProfile(
        10.0, 1.0, 0.5, 2.0, 0.25, ("npu",),
        (CallProfile(0, "kernel", "k", "npu", 0.5, 0.0, 4.0),),
    )  # fmt: skip
    assert (one.launch_s, one.transfer_s, one.execute_s, one.other_s) == (0.5, 1.5, 4.0, 1.75)
    tally.nested += [one, replace(one, engine_s=0.0, initialised_now=())]
    tally.add_control(3, "loop", 30.0, 2.0)
    whole = tally.finished(40.0, 1.0)
    (call,) = whole.calls
    # 30 s, of which 1 launching, 3 moving, 2 starting the engine and 0.5 poisoning.
    assert call == CallProfile(3, "control", "loop", "host", 1.0, 5.0, 23.5)
    assert (whole.engine_s, whole.checks_s, whole.initialised_now) == (2.0, 0.5, ("npu",))
    assert whole.other_s == pytest.approx(40 - 30 - 2 - 1)
    assert tally.nested == []


def test_without_a_clock_there_is_no_profile() -> None:
    runner = toy()
    runner.run(toy_inputs())
    assert runner.profile() is None


def test_run_prints_a_profile_and_repeats(tmp_path: Path, folder: Path) -> None:
    bundle = bundled("host_between", folder)
    feeds = seeded_inputs(made("host_between", folder).model, 2)
    write_npz(tmp_path / "in.npz", feeds)
    words = ["run", str(bundle), "--input", str(tmp_path / "in.npz"), "-o",
             str(tmp_path / "out.npz"), "--data-dir", str(tmp_path / "data"), "--profile",
             "--repeat", "3"]  # fmt: skip
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    profiles = json.loads(result.stdout)["profiles"]
    assert [bool(p["initialised_now"]) for p in profiles] == [True, False, False]
    assert all(p["checks_s"] == 0 or p["checks_s"] < p["total_s"] / 2 for p in profiles)
    assert sum(profiles[2]["shares_pct"].values()) == pytest.approx(100)
    every = {node.name for node in made("host_between", folder).model.ir.graph}
    for call in profiles[2]["calls"]:
        assert call["onnx_nodes"]
        assert set(call["onnx_nodes"]) <= every
    assert {n for call in profiles[2]["calls"] for n in call["onnx_nodes"]} == every
    with np.load(tmp_path / "out.npz") as found:
        for name, array in reference("host_between", feeds).items():
            np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=2e-5)
    shown = CliRunner().invoke(app, words)
    assert shown.stdout.splitlines()[0].startswith("run\ttotal_s\tlaunch_s")
    assert "engines initialised: none" in shown.stdout
    assert "\thost\t" in shown.stdout
    rows = [line.split("\t") for line in shown.stdout.splitlines() if line.startswith("0\t")]
    assert rows[-1][-1].split(", ")[0] in every
