"""Real models on real presets: sound partitions, and runs that verify.

Three small models by default; a campaign over many more.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import partition_matrix
from benchmarks.partition_matrix import partition_rows, verified_row
from benchmarks.zoo import ZooModel, every_model, materialized
from worker.compiler.machine import preset_names

SMALL = ("mnist_cnn", "go1_policy", "tinybert")
SMALL_PRESETS = ("xavier", "dpu-u250", "ethos-u65", "a100")
WIDE = (
    "resnet18", "mobilenet_v2", "googlenet", "bert_base_s128", "ssdlite320_nms", "control_flow",
    "resnet18_qdq_int8", "mnist_cnn_dynquant", "lstm_t32", "dlrm", "ultraface_rfb320", "bsrn_x4",
)  # fmt: skip
RUNS = (
    ("resnet18", "dpu-u250"), ("resnet18", "xavier:f16"), ("mobilenet_v2", "dpu-zu"),
    ("resnet18_qdq_int8", "xavier"), ("control_flow", "xavier"), ("tinybert", "tpuv1"),
    ("tinybert", "dpu-u250"), ("mnist_cnn_dynquant", "xavier"), ("ultraface_rfb320", "nvdla-large"),
    ("espcn_x3", "ethos-u65"), ("dtln_1", "xavier"),
)  # fmt: skip


@pytest.fixture(scope="session")
def zoo(shared_models: Path) -> dict[str, ZooModel]:
    del shared_models
    return {model.name: model for model in every_model()}


def _are_sound(model: ZooModel, path: Path, presets: tuple[str, ...]) -> None:
    rows = list(partition_rows(model, path, presets, batches=1))
    assert [row["preset"] for row in rows] == list(presets)
    for row in rows:
        assert "failure" not in row, row
        assert row["faults"] == [], row
        assert row["nodes"] > 0


@pytest.mark.parametrize("name", SMALL)
def test_small_models_partition_soundly(
    name: str, zoo: dict[str, ZooModel], tmp_path: Path
) -> None:
    _are_sound(zoo[name], materialized(zoo[name], tmp_path), SMALL_PRESETS)


@pytest.mark.parametrize("cell", ["xavier", "ethos-u65"])
def test_a_small_model_verifies(cell: str, zoo: dict[str, ZooModel], tmp_path: Path) -> None:
    model = zoo["mnist_cnn"]
    _verifies(verified_row(model, materialized(model, tmp_path), cell, tmp_path))


def _verifies(row: dict[str, object]) -> None:
    assert "failure" not in row, row
    assert row["passed"] is True, row
    assert row["unexplained"] == []
    assert row["twice"] == 0
    assert row["low"] == [], "an output is noisier than the spec allows"


def test_the_command_keeps_a_ledger_and_resumes(
    zoo: dict[str, ZooModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del zoo
    out = tmp_path / "table.md"
    arguments = ["--only", "mnist_cnn", "--presets", "a100", "--out", str(out),
                 "--scratch", str(tmp_path)]  # fmt: skip
    assert partition_matrix.main(arguments) == 0
    ledger = json.loads(out.with_suffix(".json").read_text())
    assert list(ledger) == ["partition mnist_cnn a100"]
    assert "1 models, 1 presets: 1 of 1 cells sound." in out.read_text()
    monkeypatch.setattr(partition_matrix, "_child", lambda _: pytest.fail("done already"))
    assert partition_matrix.main(arguments) == 0


@pytest.mark.campaign
@pytest.mark.parametrize("name", WIDE)
def test_models_partition_soundly_on_every_preset(
    name: str, zoo: dict[str, ZooModel], tmp_path: Path
) -> None:
    _are_sound(zoo[name], materialized(zoo[name], tmp_path), preset_names())


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "cell"), RUNS)
def test_models_verify(name: str, cell: str, zoo: dict[str, ZooModel], tmp_path: Path) -> None:
    model = zoo[name]
    _verifies(verified_row(model, materialized(model, tmp_path), cell, tmp_path))
