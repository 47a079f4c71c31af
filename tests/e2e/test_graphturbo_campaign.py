"""Real models compile with GraphTurbo, and run no slower than operator by operator.

Small models by default; a campaign over models with joined tensors, branches and attention.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.graphturbo_zoo import run_cell
from benchmarks.zoo import ZooModel, every_model

PRESETS = ("stcp920-inferred", "ascend910", "goya", "a100")
SMALL = ("mnist_cnn", "go1_policy")
WIDE = ("basic_pitch_nmp", "tinybert", "ultraface_rfb320", "mobilenet_v1", "mobilenet_v2")
SCRATCHPADS = ("stcp920-inferred", "ascend910")
"""The campaign's presets: planning a model takes tens of seconds on each."""


@pytest.fixture(scope="session")
def zoo(shared_models: Path) -> dict[str, ZooModel]:
    del shared_models
    return {model.name: model for model in every_model()}


def _gains(model: ZooModel, preset: str, scratch: Path) -> None:
    fused = run_cell(model, preset, "full", scratch)
    alone = run_cell(model, preset, "naive", scratch)
    assert fused["bound"] <= fused["cycles"] <= alone["cycles"]
    assert fused["kernels"] <= alone["kernels"]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", SMALL)
def test_small_models_gain(
    name: str, preset: str, zoo: dict[str, ZooModel], tmp_path: Path
) -> None:
    _gains(zoo[name], preset, tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize("preset", SCRATCHPADS)
@pytest.mark.parametrize("name", WIDE)
def test_models_gain(name: str, preset: str, zoo: dict[str, ZooModel], tmp_path: Path) -> None:
    _gains(zoo[name], preset, tmp_path)
