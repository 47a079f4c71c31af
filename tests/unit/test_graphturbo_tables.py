"""The GraphTurbo benchmark's tables, criteria and ledger, on made-up results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks.cells import Row, run_child
from benchmarks.papers import graphturbo
from benchmarks.papers.graphturbo_cells import (
    GPU_PRESET,
    PEAK,
    Cell,
    cell_model,
    cells,
    figures,
)
from benchmarks.papers.graphturbo_checks import checks, gpu_checks
from benchmarks.papers.graphturbo_paper import CLUSTERS, GPU, KNEE, ROWS
from benchmarks.papers.graphturbo_results import Results, geomean, mean
from benchmarks.papers.graphturbo_tables import lb_share, number
from benchmarks.papers.graphturbo_tailor import PAIRS, tailor_model

PRESET = "stcp920-inferred"
GAINS = {"v1": 1.2, "v2": 3.67, "v3": 3.67 * 2.0, "full": 3.67 * 2.0 * 1.72, "astitch": 0.9}
"""Over TVM; v3 gains 2.0 on flat models and 2.6 on those that sample down."""


def _made_up() -> dict[str, Row]:
    """Results that meet every criterion."""
    rows: dict[str, Row] = {}
    paper = {row.label: row for row in ROWS}
    for cell in cells((PRESET,)):
        row: Row = {"whole_ms": 1.0, "kernels": 5, "mac_pct": 100.0, "picked": "8x1",
                    "compile_s": 3.0 if cell.variant == "full" else 2.0}  # fmt: skip
        if cell.preset == GPU_PRESET:
            tvm, cutlass, turbo = GPU[cell.samples]
            whole = {"layerwise": tvm, "v3": turbo / 2}
            row["ms"] = whole[cell.variant] if cell.label == "T" else (
                (cutlass if cell.variant == "v2" else turbo) / PAIRS
            )  # fmt: skip
        elif cell.variant == PEAK:
            row = {"peak_bytes": 1, "tvm_samples": paper[cell.label].tvm_samples}
        else:
            of = paper[cell.label]
            tvm_round = 1000.0  # milliseconds of one round at TVM's samples
            batch_ms = tvm_round * -(-of.batch // (CLUSTERS * of.tvm_samples))
            gain = GAINS.get(cell.variant, 1.0)
            if cell.variant in ("v3", "full") and cell.label in "ACEGI":
                gain *= 1.3
            per_sample = batch_ms / of.batch / gain
            slow = 1.5 if cell.samples == 16 and cell.label == "B" else 1.0
            half = 1.1 if cell.samples < of.samples else 1.0
            row["ms"] = cell.batch * per_sample * slow * half
            if cell.variant == "layerwise" and cell.samples == of.tvm_samples:
                row["ms"] = tvm_round
            row["scopes"] = [300, 0, 0] if cell.variant == "layerwise" else [1, 20, 279]
        rows[cell.key] = row
    return rows


def _failing(rows: dict[str, Row]) -> set[str]:
    results = Results(rows, PRESET)
    every = (*checks(results), *gpu_checks(results))
    assert all(each.passed is not None for each in every)
    return {each.criterion for each in every if not each.passed}


def test_results_like_the_papers_pass_every_criterion() -> None:
    assert _failing(_made_up()) == set()


def test_without_cells_nothing_passes_and_the_page_says_so() -> None:
    for each in (*checks(Results({}, PRESET)), *gpu_checks(Results({}, PRESET))):
        assert each.passed is None
        assert each.ours == "not measured"
    text = graphturbo.document({}, (PRESET,))
    assert "0 of" in text
    assert "pass |" not in text


def _set(rows: dict[str, Row], key: str, **values: Any) -> None:
    label, variant, samples = key.split()
    rows[f"{label} {PRESET} {variant} {samples}"].update(values)


@pytest.mark.parametrize(
    ("key", "values", "criterion"),
    [
        ("A peak 1", {"tvm_samples": 4}, "A: n of TVM by capacity, equal"),
        ("E peak 1", {"tvm_samples": 4}, "E: n of TVM by capacity, within a factor of 2"),
        ("D full 2", {"ms": 9e6}, "D: at least as fast as layerwise"),
        ("F layerwise 64", {"scopes": [75, 0, 1]}, "F: layerwise keeps all tensors in DDR"),
        ("C full 4", {"scopes": [6, 0, 300]}, "C: at most 5 tensors in DDR"),
        ("C full 4", {"scopes": [1, 200, 300]}, "C: at least 68 % of tensors in L1"),
        ("A astitch 16", {"ms": 1.0}, "A: AStitch is slower than TVM"),
        ("I full 8", {"compile_s": 10.5}, "compiling takes at most 5 times the layerwise flow"),
        ("B full 16", {"ms": 1e-3}, "Table 1: 64 sentences in 2 rounds of 8 are faster than"
                                    " in 1 of 16"),
    ],
)  # fmt: skip
def test_each_criterion_can_fail(key: str, values: Row, criterion: str) -> None:
    rows = _made_up()
    _set(rows, key, **values)
    if key == "D full 2":
        _set(rows, "D full 1", ms=9e6)
    assert criterion in _failing(rows)


def test_means_and_orderings_can_fail() -> None:
    rows = _made_up()
    for row in ROWS:
        for variant in ("v2", "full"):
            own = rows[f"{row.label} {PRESET} {variant} {row.samples}"]
            own["ms"] *= 3
        rows[f"{row.label} {PRESET} full {max(1, row.samples // 2)}"]["ms"] *= 50
    failing = _failing(rows)
    assert "means over layerwise: full > v3 > v2 > 1" in failing
    assert "mean of v2 / TVM is 1.5-6" in failing
    assert "mean of v3 / v2 is 1.2-3.5" in failing
    assert "mean of full / v3 is 1.1-2.5" in failing
    rows = _made_up()
    for row in ROWS:
        if row.label in "BHF":
            rows[f"{row.label} {PRESET} v3 {row.samples}"]["ms"] /= 2
    assert "down-sampling models (A C E G I) gain more from v3 than B, F, H" in _failing(rows)
    rows["T1 a100 v3 64"]["ms"] = 9.0
    assert any(name.startswith("a100, batch 64") for name in _failing(rows))


def test_a_failed_cell_is_not_measured_and_listed() -> None:
    rows = _made_up()
    rows[f"B {PRESET} full 8"] = {"failure": "exit 1: OptionError: no such variant"}
    judged = {each.criterion: each for each in checks(Results(rows, PRESET))}
    assert judged["B: at most 5 tensors in DDR"].passed is None
    assert judged["mean of full / v3 is 1.1-2.5"].passed is None
    assert "| exit 1: OptionError: no such variant |" in graphturbo.document(rows, (PRESET,))


def test_speedups_are_of_the_whole_batch() -> None:
    """ResNet-50: 8 rounds of 2 per cluster against 1 round of 16."""
    results = Results(_made_up(), PRESET)
    assert results.tvm(ROWS[0]) == 8000
    speedup = results.speedup(ROWS[0])
    assert speedup == pytest.approx(GAINS["full"] * 1.3)
    text = graphturbo.document(_made_up(), (PRESET,))
    assert f"| 7.97 / {speedup:.2f} |" in text
    assert "| GraphTurbo | 64 | 2 x 8 | 4052 | 4,172 |" in text


def test_printed_figures_are_consistent() -> None:
    """4-papers 1.2 and 1.5: batch = 4 n in every row; A1's contradiction."""
    assert all(row.batch == CLUSTERS * row.samples for row in ROWS)
    product = {(k.who, k.batch, k.samples): k.throughput * k.latency_ms / 1e3 / k.batch
               for k in KNEE}  # fmt: skip
    assert product[("GraphTurbo", 32, 8)] == pytest.approx(0.97, abs=0.01)
    assert product[("TVM", 32, 4)] == pytest.approx(0.303, abs=0.001)
    assert product[("TVM", 8, 2)] == pytest.approx(0.117, abs=0.001)
    ratios = [row.compile_s[2] / row.compile_s[0] for row in ROWS]
    assert mean(ratios) == pytest.approx(1.58, abs=0.005)
    assert geomean(ratios) == pytest.approx(1.44, abs=0.005)
    assert min(lb_share(row.scopes) for row in ROWS if row.label != "J") >= 68
    assert mean([t / g for t, _, g in GPU.values()]) == pytest.approx(1.23, abs=0.005)


REPORT: Row = {
    "summary": {
        "latency_s": 0.02, "kernels": 7, "accelerator_mac_pct": 99.5, "distance_to_bound": 2.0,
        "distance_to_roofline": 3.0,
        "traffic_bytes": {"DDR": {"read": 3_000_000, "write": 1_000_000}, "L1": {}},
    },
    "invocation": {"launch_cycles": 1000, "execute_cycles": 4000, "transfer_cycles": 9,
                   "host_cycles": 9},
    "hardware": {"clock_hz": 1e6},
    "summaries": {"graphturbo": {
        "total": {"tensors_by_scope": {"lb": 3, "gb": 2, "home": 1}, "spilled_bytes": 5},
        "units": [
            {"samples_per_cluster": 8, "iterations": 2, "calls": 12, "operators": 9},
            {"samples_per_cluster": 4, "iterations": 4, "calls": 1, "operators": 90},
        ],
    }},
}  # fmt: skip


def test_figures_of_a_report() -> None:
    found = figures(REPORT)
    assert found["ms"] == 5.0
    assert found["whole_ms"] == 20.0
    assert found["offchip_mb"] == 4.0
    assert found["scopes"] == [1, 2, 3]
    assert found["picked"] == "8x2"
    with pytest.raises(ValueError, match="no summary of graphturbo"):
        figures({**REPORT, "summaries": {}})


def test_a_run_resumes_from_its_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "page.md"
    made = _made_up()
    asked: list[str] = []

    def child(module: str, key: str, scratch: Path, limit_s: float) -> Row:
        del module, scratch, limit_s
        asked.append(key)
        return {"failure": "exit 1: x"} if " v1 " in key else made[key]

    monkeypatch.setattr(graphturbo, "run_child", child)
    command = ["--only", "B", "--presets", PRESET, "--out", str(out)]
    assert graphturbo.main(command) == 1
    first = list(asked)
    assert len(first) == len(set(first)) == 13
    assert json.loads(out.with_suffix(".json").read_text())[f"B {PRESET} v1 8"]["failure"]
    asked.clear()
    assert graphturbo.main(command) == 1
    assert asked == [f"B {PRESET} v1 8"]
    asked.clear()
    graphturbo.main([*command, "--again", "--variants", "full"])
    assert [name.split()[-1] for name in asked] == ["8", "4", "2", "16"]


def test_a_missing_variant_fails_loudly(tmp_path: Path) -> None:
    row = run_child("benchmarks.papers.graphturbo", "T1 a100 v9 1", tmp_path, 60)
    assert "Invalid enum value 'v9'" in row["failure"]
    row = run_child("benchmarks.papers.graphturbo", "T1 a100 v1 1", tmp_path, 0.01)
    assert row["failure"] == "stopped after 0.01 s"


def test_tailor_is_eight_layers_and_its_pairs_chain() -> None:
    whole = tailor_model(2)
    onnx.checker.check_model(whole, full_check=True)
    assert [n.op_type for n in whole.graph.node] == ["Conv", "Relu"] * 8
    shapes = []
    for k in range(PAIRS):
        part = tailor_model(2, k)
        onnx.checker.check_model(part, full_check=True)
        assert len(part.graph.node) == 4
        shapes.append([
            [d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in (part.graph.input[0], part.graph.output[0])
        ])  # fmt: skip
    assert [s[0] for s in shapes[1:]] == [s[1] for s in shapes[:-1]]
    assert shapes[0][0] == [2, 64, 56, 56]
    assert shapes[-1][1] == [2, 512, 7, 7]


def test_cells_compile_one_round(tmp_path: Path) -> None:
    """The GPU's samples are a whole batch; a DSA's are per cluster."""
    assert Cell("A", PRESET, "full", 16).batch == 64
    assert Cell("T", GPU_PRESET, "v3", 64).batch == 64
    path = cell_model(Cell("T2", GPU_PRESET, "v3", 3), tmp_path, tmp_path)
    dims = onnx.load(str(path)).graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in dims] == [3, 64, 56, 56]
    kinds = {t.data_type for t in onnx.load(str(path)).graph.initializer}
    assert kinds == {onnx.TensorProto.FLOAT16}
    assert number(None) == "-"
    assert len({cell.key for cell in cells()}) == len(cells())
