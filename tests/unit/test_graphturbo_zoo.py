"""The zoo comparison: its page on made-up results, one real cell, and resuming."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx_models import conv_net, repeated_layers, with_host_part

from benchmarks import graphturbo_zoo as zoo
from benchmarks.zoo import ZooModel

PRESET = "stcp920-inferred"


def _row(cycles: int, **values: int) -> zoo.Row:
    row: zoo.Row = {"cycles": cycles, "kernel_cycles": cycles // 2, "ms": cycles / 1e6,
                    "bound": 100, "tight_bound": 400, "offchip": 3 * cycles,
                    "compulsory": cycles, "kernels": 7, "unique": 3}  # fmt: skip
    return row | values


def _pair(name: str, full: int, naive: int) -> dict[str, zoo.Row]:
    cycles = {"full": full, "layerwise": 2 * full, "astitch": full, "naive": naive}
    return {f"{name} {PRESET} {mode}": _row(c) for mode, c in cycles.items()}


def test_page_has_ratios_and_both_means() -> None:
    rows = _pair("resnet18", 1000, 2000) | _pair("dlrm", 1000, 8000)
    text = zoo.page(rows, (PRESET,))
    assert f"### {PRESET}: 2 of 17 models" in text
    assert (
        "| resnet18 | 0.001 | 2.00 | 1.00 | 2.00 | 2.00 | 5.00 | 2.50 | 20.00 | 10.00 | 3.00 |"
        in text
    )
    [average] = [line for line in text.splitlines() if line.startswith("| mean ")]
    [geometric] = [line for line in text.splitlines() if line.startswith("| geomean ")]
    assert average.split(" | ")[4] == "5.00"
    assert geometric.split(" | ")[4] == "4.00"
    del rows[f"dlrm {PRESET} full"]["tight_bound"]  # a row of before there was this bound
    assert "| 20.00 | nan | 80.00 | 10.00 |" in zoo.page(rows, (PRESET,))


def test_a_model_with_a_failed_or_missing_mode_is_left_out() -> None:
    rows = _pair("resnet18", 1000, 2000) | _pair("dlrm", 1000, 8000)
    rows[f"dlrm {PRESET} astitch"] = {"failure": "exit 1: no"}
    text = zoo.page(rows, (PRESET,))
    assert "1 of 17 models" in text
    assert "\n| dlrm | " not in text
    assert f"| dlrm {PRESET} astitch | exit 1: no |" in text
    del rows[f"resnet18 {PRESET} full"]
    assert "0 of 17 models" in zoo.page(rows, (PRESET,))


_COMPULSORY = {
    # four 32x32 matrices, input and output
    "plain": (repeated_layers, 4 * 32 * 32 * 4 + 2 * 16 * 32 * 4),
    # weights, BatchNormalization folded into one bias; Flatten's view is no tensor of its own
    "with a view": (conv_net, 4 * (216 + 8 + 576 + 2880 + 10 + 432 + 10)),
    "with a host part": (with_host_part, None),
}


@pytest.mark.parametrize("kind", _COMPULSORY)
def test_a_naive_cell(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, compulsory = _COMPULSORY[kind]
    onnx.save(made(), tmp_path / "net.onnx")
    monkeypatch.setattr(zoo, "materialized", lambda model, scratch: scratch / f"{model.stem}.onnx")
    row = zoo.run_cell(ZooModel("net", "net"), "kapla-edge", "naive", tmp_path)
    assert row["cycles"] >= row["bound"] > 0
    assert row["cycles"] >= row["tight_bound"] > 0
    assert row["offchip"] >= row["compulsory"] > 0
    assert row["kernels"] >= 2
    assert compulsory is None or row["compulsory"] == compulsory


def test_a_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def child(module: str, key: str, scratch: Path, limit_s: float) -> zoo.Row:
        del module, scratch, limit_s
        asked.append(key)
        return {"failure": "exit 1: no"} if key.endswith("full") else _row(10)

    monkeypatch.setattr(zoo, "run_child", child)
    out = tmp_path / "page.md"
    command = ["--out", str(out), "--only", "dlrm", "--presets", PRESET, "--jobs", "2"]
    assert zoo.main(command) == 1
    assert sorted(asked) == sorted(f"dlrm {PRESET} {mode}" for mode in zoo.MODES)
    kept = json.loads(out.with_suffix(".json").read_text())
    assert list(kept) == [f"dlrm {PRESET} {mode}" for mode in zoo.MODES]
    asked.clear()
    assert zoo.main(command) == 1
    assert asked == [f"dlrm {PRESET} full"]
    assert json.loads(out.with_suffix(".json").read_text())[f"dlrm {PRESET} naive"]["cycles"] == 10
