"""Every benchmark command runs, tiny, so that none of them rots; speeds are not judged here.

Those that start processes of their own to measure are campaigns.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kernel_toys import conv_graph
from onnx import TensorProto, helper
from onnx_models import conv_net

from benchmarks import (
    ablation,
    compile_limits,
    compile_time,
    elections,
    kernel_speed,
    looped_programs,
    models,
    operator_bounds,
    quantisation,
    racing_operators,
    search_constants,
    simulator_rate,
    training,
    upload,
    validation,
)
from benchmarks.papers import graphturbo_cells, kapla
from benchmarks.rivals import __main__ as rivals
from benchmarks.rivals.row_stationary import Layer
from benchmarks.searches import __main__ as searches
from benchmarks.zoo import ZooModel
from worker.compiler.machine import load_preset
from worker.compiler.options import Objective
from worker.compiler.tiling.nest import branch_bound


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.onnx"
    onnx.save(conv_net(), path)
    return path


def _json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    row = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert isinstance(row, dict)
    return row


@pytest.mark.campaign
def test_compile_time(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = compile_time.main(
        ["--file", str(tiny_model), "--presets", "kapla-edge", "--repeat", "1", "--json"]
    )
    row = _json(capsys)
    assert code == (0 if row["passed"] else 1)
    assert 7 <= row["units"] <= 15  # five plain operators and softmax, none of them equal
    stages = {"ingest", "simplify", "convert", "partition", "schedule", "codegen"}
    assert set(row["cold_stages_s"]) == set(row["warm_stages_s"]) == stages
    for key in ("cold", "warm", "warm_process", "import", "ort_session"):
        assert row[f"{key}_wall_s"] > 0
    assert row["cold_ratio_wall"] == pytest.approx(row["cold_wall_s"] / row["ort_session_wall_s"])
    assert "warm, new process" in compile_time.render(row)


@pytest.mark.campaign
def test_compile_limits(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = compile_limits.main(["--file", str(tiny_model), "--blocks", "1", "2", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.strip().splitlines()]
    assert code == (0 if all(row["passed"] for row in rows) else 1)
    growth = rows.pop()
    assert len(rows) == len(compile_limits.LIMITS)
    for limit, row in zip(compile_limits.LIMITS, rows, strict=True):
        assert 0 < row["peak_rss_mb"] < compile_limits.RSS_LIMIT_MB
        assert "limit cold" in compile_limits.render_limit(limit, row)
    assert [row["operators"] for row in growth["rows"]] == [16, 32]
    assert "exponent" in compile_limits.render_growth(growth)


@pytest.mark.campaign
def test_upload(capsys: pytest.CaptureFixture[str]) -> None:
    code = upload.main(["--mib", "3", "--repeat", "1", "--json"])
    row = _json(capsys)
    assert code == (0 if row["passed"] else 1)
    assert 3 * 2**20 < row["size_mb"] * 1e6 < 3 * 2**20 + 4096
    for name, _ in upload.WAYS:
        assert row[f"{name}_ratio_to_copy"] == pytest.approx(
            row[f"{name}_mb_per_s"] / row["copy_mb_per_s"]
        )
        assert row[f"{name}_growth_mb"] <= upload.TARGET_GROWTH_MB
    assert "reference" in upload.render(row)


def test_upload_bundle_is_a_valid_model(tmp_path: Path) -> None:
    from worker.compiler.frontend.limits import Limits
    from worker.compiler.frontend.load import load_model

    bundle = tmp_path / "bundle.zip"
    upload.write_bundle(bundle, 1)
    upload.make_unique(bundle, 41)
    weight = load_model(bundle, Limits()).ir.graph.initializers["w"].const_value
    assert weight is not None
    assert weight.nbytes == upload.MIB


@pytest.mark.campaign(smoke=True)
def test_training_steps(tiny_model: Path, tmp_path: Path) -> None:
    case = training.Case("tiny", 1, is_symbolic=False)
    row = training.row_of(case, tiny_model, tmp_path, "kapla-edge", "naive")
    assert set(row) == set(training.COLUMNS)
    assert 1 < float(row["step / forward"]) <= 3
    assert float(row["compiled CPU s"]) > 0
    line = training.page([row], "kapla-edge", "naive").splitlines()[-1]
    assert line.startswith("| tiny | 1 |")


def test_simulator_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["simulator_rate", "--instructions", "20000", "--json"])
    simulator_rate.main()
    row = _json(capsys)
    assert row["checks_passed"] is True
    assert 19_000 < row["instructions"] <= 20_000


def test_looped_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["looped_programs", "--shape", "2048x2048x2048", "--json"])
    assert looped_programs.main() == 0
    row = _json(capsys)
    assert row["is_same"] is True
    assert row["rows"] < row["instructions"] // 8


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_kernel_speed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    smallest = min(kernel_speed.CASES, key=lambda case: len(kernel_speed.onnx_model(case)))
    monkeypatch.setattr(kernel_speed, "CASES", (smallest,))
    monkeypatch.setattr("sys.argv", ["kernel_speed", "--repeat", "1"])
    kernel_speed.main()
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith(smallest.name)]
    assert float(line.split("max rel err")[1]) < 1e-5
    assert lines[-1].startswith("geometric mean ratio")


def test_model_table(tiny_model: Path) -> None:
    row = models.run_cell(ZooModel("tiny", "tiny"), "kapla-edge", tiny_model.parent, "none")
    assert row["same_bundle"] is True
    assert 0 < row["unique"] <= row["kernels"]
    assert row["cycles"] > 0
    table = models.table([row, {"model": "m", "preset": "p", "failure": "why"}])
    assert len(table.splitlines()) == 4
    assert "| tiny | kapla-edge |" in table


@pytest.mark.campaign(smoke=True)
def test_quantisation_beside_that_of_onnx_runtime(shared_models: Path, tmp_path: Path) -> None:
    """The smallest model: every way is measured, and the targets are judged by the rows."""
    case = quantisation.run(ZooModel("mnist_cnn", "mnist_cnn"), tmp_path)
    (row,) = case.rows
    assert len(case.nodes) == 8
    assert row.minmax == pytest.approx(row.ours, abs=0.1)
    assert row.corrected is not None
    assert row.corrected > row.rival + 2.0
    assert quantisation.faults([case]) == []
    worse = replace(row, corrected=row.rival - 0.2, reported=(row.truth or 0.0) + 1.1)
    assert len(quantisation.faults([replace(case, rows=(worse,))])) == 3
    assert "| mnist_cnn: " in quantisation.page([case], untouched=True)
    assert quantisation.is_untouched(ZooModel("", quantisation.INTEGER_MODEL), tmp_path)


@pytest.mark.campaign(smoke=True)
def test_a_cell_of_the_ablation(tiny_model: Path) -> None:
    row = ablation.run_cell(ZooModel("tiny", "tiny"), "stcp920-inferred", tiny_model.parent)
    bases = {"", "naive", "auto", ablation.BY_ENERGY}
    assert set(row["cycles"]) == {*bases, *ablation.ROWS}
    assert all(isinstance(cycles, int) for cycles in row["cycles"].values()), row
    assert "| tiny stcp920-inferred |" in ablation.table({"tiny stcp920-inferred": row})


def test_constants_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """One constant, on one convolution: more boxes to look at are no worse, walks aside."""
    monkeypatch.setattr(branch_bound, "WIDE", inf)
    machine = load_preset("kapla-16x16")
    kernels = {"kapla-16x16": {"0" * 64: conv_graph(64, 64, 28, 3, 1, 1)}}
    changed = (branch_bound, "MOST_BOXES", (1,))
    monkeypatch.setattr(search_constants, "CONSTANTS", (changed,))
    before = branch_bound.MOST_BOXES
    rows = search_constants.rows_of(kernels, {"kapla-16x16": machine})
    assert before == branch_bound.MOST_BOXES
    assert [label for label, *_ in rows] == [
        "as they are", "tiles: grown", f"branch_bound.MOST_BOXES {before} -> 1",
    ]  # fmt: skip
    assert rows[0][1][0] < rows[1][1][0]
    assert rows[0][1][0] < rows[2][1][0]
    assert len(search_constants.table(["kapla-16x16"], rows).splitlines()) == 5


def test_bounds_of_single_operators(capsys: pytest.CaptureFixture[str]) -> None:
    """No program beats its bound, and one engine alone has none that is lower."""
    assert operator_bounds.main(["--presets", "a100", "--only", "1x768x768"]) == 0
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("| 1x768x768 | a100 |"))
    ours, bound, alone = (int(row.split(" | ")[k].replace(",", "")) for k in (2, 3, 5))
    assert bound <= alone <= ours < 1.2 * bound
    assert "a100, one engine: 1 of 1 within 1.2" in printed


@pytest.mark.campaign(smoke=True)
def test_a_cell_of_the_elections(tiny_model: Path) -> None:
    row = elections.run_cell(ZooModel("tiny", "tiny"), "stcp920-inferred", tiny_model.parent)
    assert elections.faults({"tiny stcp920-inferred": row}) == []
    assert "1 of 34 cells, 0 faults." in elections.page({"tiny stcp920-inferred": row})


def test_a_cell_of_the_papers_tables(tmp_path: Path) -> None:
    """A whole compile of a pair of ResNet18-Tailor's layers, as a cell's process does it."""
    row = graphturbo_cells.run_cell(graphturbo_cells.Cell("T1", "a100", "v2", 8), tmp_path)
    assert row["kernels"] >= 1
    assert row["ms"] > 0
    assert row["compile_s"] > 0


def test_rivals_find_one_network_and_write_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "RIVALS.md"
    assert rivals.main(["--only", "mlp_l", "--out", str(out)]) == 0
    row = "| mlp_l | 1 | 660,060,908 | 13,028 |"
    assert row in capsys.readouterr().out
    assert row in out.read_text()
    with pytest.raises(SystemExit, match="mlp_l 1: 660060908"):
        list(rivals.networks([("mlp_l", 1)], {"mlp_l:1": {"energy": 1, "cycles": 1, "cpu_s": 1}}))
    page = tmp_path / "KAPLA.md"
    assert kapla.main(["--only", "mlp_l", "--out", str(page)]) == 0
    assert "| mlp_l | 1 | 660,061,208 | 660,060,908 | 0.00% |" in page.read_text()
    objective = Objective.OFFCHIP
    layer = Layer(64, 64, (8, 8), (3, 3))
    words, _, _, _ = rivals.ours(layer, rivals.one_node(), objective)
    assert words == 16 * (64 * 10 * 10 + 64 * 8 * 8) + 64 * 64 * 9  # each once


def test_rival_searches_fill_their_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a product, and of one that is enumerated; the page's head says what it assumes."""
    out = tmp_path / "SEARCHES.md"
    asked = ["--presets", "a100", "--budget", "80", "--out", str(out), "--only"]
    assert searches.main([*asked, "8x768x3072"]) == 0
    printed = capsys.readouterr().out
    assert "| a100 | 1 | 0.005 |" in printed
    lesser = next(line for line in printed.splitlines() if line.startswith("| annealing at 64 |"))
    assert float(lesser.split(" | ")[1]) >= 1
    assert printed in out.read_text()
    assert out.read_text().startswith("# Searches\n\n`python -m benchmarks.searches --out")
    assert searches.main([*asked, "1x48x64"]) == 0
    printed = capsys.readouterr().out
    small = next(line for line in printed.splitlines() if line.startswith("| small 1x48x64"))
    ours, *others = (float(cell) for cell in small.strip("| ").split(" | ")[3:])
    assert 1 <= ours <= 1.0051
    assert min(others) >= 1
    with pytest.raises(SystemExit):
        searches.main([*asked, "no such operator"])


def test_racing_operators_counts_results_and_writes_a_table() -> None:
    updates = helper.make_node("ScatterND", ["x", "i", "u"], ["y"], reduction="add")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [updates],
        "g",
        [info("x", TensorProto.FLOAT, [4, 3]), info("i", TensorProto.INT64, [2, 1]),
         info("u", TensorProto.FLOAT, [2, 3])],
        [info("y", TensorProto.FLOAT, [4, 3])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    feeds = {"x": np.zeros((4, 3), np.float32), "i": np.array([[1], [1]]),
             "u": np.ones((2, 3), np.float32)}  # fmt: skip
    bare = racing_operators.enlarged(model)
    budget = racing_operators.Budget(2, 1 << 15, 1.0)
    large = racing_operators.large_form(bare, feeds, budget)
    assert large is not None
    assert {name: len(a) for name, a in large.items()} == {"x": 10924, "i": 5462, "u": 5462}
    assert racing_operators.num_results(bare, large, 1, 3) == 1
    row = racing_operators.Outcome("ScatterND", "reduction=add", "test", 9, True, (1, 7))
    text = racing_operators.page([row], 2, budget)
    assert "| ScatterND | reduction=add | test | 9 | 1 | 7 |" in text
    assert "2 more have no kernel" in text


@pytest.mark.campaign  # it goes through all cases of ONNX
def test_a_stopped_survey_of_races_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the results file is not run again, and counts."""
    results = tmp_path / "results.jsonl"
    budget = racing_operators.Budget(2, 1 << 14, 1.0)
    first = list(racing_operators.survey(budget, "Scatter", results))
    assert {o.is_large for r in first for o in r.outcomes} == {False, True}
    lines = results.read_text().splitlines()
    results.write_text(lines[0] + "\n")
    ran: list[str] = []
    run_case = racing_operators.run_case

    def noted(name: str, *args: Any) -> racing_operators.CaseResult:
        ran.append(name)
        return run_case(name, *args)

    monkeypatch.setattr(racing_operators, "run_case", noted)
    assert list(racing_operators.survey(budget, "Scatter", results)) == first
    assert ran == [r.case for r in first[1:]]
    assert results.read_text().splitlines() == lines


def test_a_row_of_the_validation(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    assert validation.main(["--only", "tpuv1-lstm0", "--out", str(page)]) == 0
    assert json.loads(page.with_suffix(".json").read_text())["passed"] is True
    monkeypatch.setenv("TILEWRIGHT_TEST_MODELS", str(tmp_path))  # nothing there: no network runs
    words = ["--only", "stcp920-resnet50", "--out", str(page)]
    assert validation.main(words) == 1
    assert "1 rows: 1 not run." in page.read_text()
    monkeypatch.setattr(validation, "materialized", lambda *_: tiny_model)
    summary = validation.run_cell("a100-mobilenet-v1-int8", tmp_path)["summary"]
    assert summary["latency_cycles"] > summary["lower_bound_cycles"] > 0
