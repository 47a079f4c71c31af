"""`import tilewright as tw` on a toy net: compiled, run against ONNX Runtime, refused, served."""

from __future__ import annotations

import doctest
import gc
import importlib
import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import onnxruntime
import pytest
from typer.testing import CliRunner

import tilewright as tw
from service.cli.demo import EXAMPLE
from service.cli.embedded import embedded_service
from service.cli.main import app

NET = onnx_models.conv_net()
REPO = Path(__file__).parents[2]
PRINTED_URL = "http://127.0.0.1:8000"
CHIP = "kapla-16x16"
X = np.random.default_rng(7).standard_normal((1, 3, 12, 12)).astype(np.float32)
EXPECTED = onnxruntime.InferenceSession(NET.SerializeToString()).run(None, {"x": X})[0]


@pytest.fixture(scope="module", autouse=True)
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache for all of them."""
    folder = tmp_path_factory.mktemp("tw")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_DATA_DIR", str(folder / "data"))
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def result(data_dir: Path) -> tw.Result:
    onnx_models.saved(NET, data_dir)
    return tw.compile(NET, CHIP, output=data_dir / "out")


def stable(found: tw.Result) -> dict[str, Any]:
    """The report without what may differ between two compiles of the same."""
    return {**found.report, "options": None, "model": None, "layers": found.rows}


def test_outputs_are_those_of_onnx_runtime(result: tw.Result) -> None:
    outputs = result.run({"x": X})
    assert list(outputs) == ["y"]
    np.testing.assert_allclose(outputs["y"], EXPECTED, rtol=1e-5, atol=1e-6)
    assert outputs["y"].dtype == EXPECTED.dtype
    assert result.verification["passed"] is True


def test_figures_layers_and_files_are_those_of_the_report(result: tw.Result) -> None:
    document = json.loads(result.files["report"].read_bytes())
    assert result.report == document
    assert result.summary["latency_cycles"] == sum(row["cycles_total"] for row in result.rows)
    known = set(tw.Layer.__annotations__)
    assert {n for row in result.rows for n in row if not n.startswith("bytes_")} == known
    assert set(result.files) == {"report", "report_html", "run", "layers", "trace", "placement",
                                 "schedule", "graph", "bundle"}  # fmt: skip
    assert repr(result).endswith("on kapla-16x16, 4696 cycles, verified>")
    assert "4,696" in result._repr_html_()


def test_the_command_line_gives_the_same(result: tw.Result, data_dir: Path) -> None:
    words = ["compile", "model.onnx", "--hardware", CHIP, "-o", "by-command", "--json"]
    done = CliRunner().invoke(app, [*words, "--require-cache"])
    assert done.exit_code == 0, done.output
    command = tw.load(data_dir / "by-command")
    assert stable(command)["summary"] == stable(result)["summary"]
    assert stable(command)["layers"] == stable(result)["layers"]
    assert command.report["options"]["objective"] == result.report["options"]["objective"]


def test_a_model_is_bytes_and_a_machine_a_value_as_well(result: tw.Result) -> None:
    model = NET.SerializeToString()
    again = tw.compile(model, tw.Machine(CHIP), require_cache=True, verify="none")
    assert again.report["hardware"]["digest"] == result.report["hardware"]["digest"]
    assert again.rows == result.rows
    assert set(result.cache["units"].values()) == {"miss"}
    assert again.cache["units"] == dict.fromkeys(result.cache["units"], "hit")
    assert set(again.timings) == set(result.timings)


def test_a_machine_with_another_field_gives_another_result(result: tw.Result) -> None:
    slow = tw.Machine(CHIP).with_field("/launch_latency_cycles", 9999)
    found = tw.compile(NET, slow, verify="none")
    assert found.summary["latency_cycles"] > result.summary["latency_cycles"]
    assert found.summary["launch_cycles"] == 9999 > result.summary["launch_cycles"]


def test_the_verification_runs_on_the_inputs_given(result: tw.Result) -> None:
    ours = tw.compile(NET, CHIP, inputs={"x": X})
    assert ours.verification["passed"] is True
    assert ours.verification["max_abs_err"] != result.verification["max_abs_err"]
    with pytest.raises(tw.InputError) as caught:
        tw.compile(NET, CHIP, inputs={"z": X})
    assert caught.value.code == "TW-VERIFY-004"


class Sink:
    """Takes progress and keeps it."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, str]] = []
        self.files: list[str] = []
        self.total = 0

    def stage(self, name: str, state: str) -> None:
        self.stages.append((name, state))

    def units(self, solved: int, cached: int, total: int) -> None:
        self.total = total

    def artifact(self, name: str, file_name: str) -> None:
        self.files.append(name)


def test_progress_is_told_and_temporary_files_go_with_the_result_unless_saved(
    data_dir: Path,
) -> None:
    sink = Sink()
    found = tw.compile(NET, CHIP, verify="none", progress=sink)
    assert (sink.stages[0], sink.stages[-1]) == (("ingest", "started"), ("report", "finished"))
    assert sink.total > 0
    assert set(sink.files) == set(found.files)
    folder, summary = found.folder, found.summary
    assert folder.exists()
    kept = found.save(data_dir / "kept")
    del found
    gc.collect()
    assert not folder.exists()
    assert kept.summary == summary
    assert kept.bundle.stat().st_size > 0


@pytest.mark.parametrize(("inputs", "said"), [({"z": X}, "'z'"), ({}, "no array")])
def test_a_run_on_other_inputs_is_refused(
    inputs: dict[str, Any], said: str, result: tw.Result
) -> None:
    with pytest.raises(tw.InputError) as caught:
        result.run(inputs)
    assert caught.value.code == "TW-RUN-002"
    assert said in caught.value.message


def test_what_the_compiler_refuses_has_its_class_and_code(data_dir: Path) -> None:
    with pytest.raises(tw.SpecError, match="did you mean kapla-16x16") as unknown:
        tw.compile(NET, "kapla-16x17")
    assert unknown.value.code == "TW-SPEC-003"
    with pytest.raises(tw.ModelError) as broken:
        tw.compile(b"\xff\xff", CHIP)
    assert broken.value.code == "TW-MODEL-001"
    with pytest.raises(tw.CompilerError) as fallback:
        tw.compile(onnx_models.with_host_part(), CHIP, fail_on_fallback=True)
    assert fallback.value.code == "TW-UNSUP-001"
    assert fallback.value.findings


@pytest.mark.document
def test_the_examples_in_the_docstrings_are_true(result: tw.Result, data_dir: Path) -> None:
    assert (data_dir / "model.onnx").exists()
    for room in ("application", "comparing", "compiling", "result"):
        outcome = doctest.testmod(importlib.import_module(f"tilewright.{room}"))
        assert outcome.attempted >= 2
        assert outcome.failed == 0


@pytest.fixture(scope="module")
def url(data_dir: Path) -> Iterator[str]:
    """Of a server with a store of its own."""
    with embedded_service(data_dir / "served", workers=1) as url:
        yield url


def test_a_server_gives_the_same(result: tw.Result, url: str) -> None:
    seen: list[str] = []
    with tw.Client(url) as client:
        served = client.compile(
            NET, CHIP, verify="none", label="toy", progress=lambda job: seen.append(job["state"])
        )
        assert served.summary == result.summary
        np.testing.assert_allclose(served.run({"x": X})["y"], EXPECTED, rtol=1e-5, atol=1e-6)
        (job,) = client.jobs(label="toy")
        assert seen[-1] == job["state"] == "succeeded"
        assert client.result(str(job["id"])).report == served.report


def test_what_a_server_refuses_is_refused_alike(url: str) -> None:
    with tw.Client(url) as client:
        with pytest.raises(tw.SpecError) as unknown:
            client.compile(NET, "kapla-16x17")
        assert unknown.value.code == "TW-SPEC-003"
        with pytest.raises(tw.ModelError) as broken:
            client.compile(b"not a model", CHIP)
        assert broken.value.code.startswith("TW-MODEL-")
        with pytest.raises(tw.OptionError, match="unknown option"):
            client.compile(NET, CHIP, speed=1)  # type: ignore[call-arg]  # there is no such option
        with pytest.raises(tw.ApiError) as missing:
            client.result("no-such-job")
        assert missing.value.code == "TW-SVC-001"
    with (
        tw.Client("http://127.0.0.1:9", timeout_s=0.1) as gone,
        pytest.raises(tw.ServerUnreachable),
    ):
        gone.compile(NET, CHIP)


@pytest.mark.document
def test_the_lines_of_the_readme_run(
    url: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = data_dir / "readme"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "model.onnx").write_bytes(EXAMPLE.read_bytes())
    section = (REPO / "README.md").read_text().split("\n## In Python\n")[1].split("\n## ")[0]
    lines = section.split("```")[1].removeprefix("python\n")
    assert PRINTED_URL in lines
    names: dict[str, Any] = {}
    exec(lines.replace(PRINTED_URL, url), names)
    assert names["outputs"]["probabilities"].shape == (1, 10)
    assert "on bigger, " in repr(names["bigger"])
    assert names["served"].summary == names["bigger"].summary
    assert (folder / "bigger" / "report.html").exists()


@pytest.mark.document
def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = REPO / "examples" / "explore_a_chip.py"
    assert notebook.read_text().count("\n# %%") >= 10
    monkeypatch.syspath_prepend(str(notebook.parent))
    shown = runpy.run_path(str(notebook))
    assert shown["result"].verification["passed"] is True
    assert shown["largest_error"] < 1e-5
    assert shown["gain"] > 1
    energies = {row["name"]: row["energy_pj"] for row in shown["frugal"].strategies}
    assert shown["frugal"].summary["energy_pj"] == min(energies.values())
    assert shown["refused"].code == "TW-SPEC-003"
