"""Real models against ONNX Runtime and against the committed ledger of exact figures.

A campaign: minutes, and needs the model skeletons.  The default suite has small models instead.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.models import PRESETS, run_cell
from benchmarks.zoo import ZOO, materialized
from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress

pytestmark = pytest.mark.campaign
LEDGER = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "MODELS.json"
MODELS = {m.name: m for m in ZOO}
EXACT = ("nodes", "offloaded", "kernels", "unique", "cycles", "offchip_mb", "energy_mj")
FAST = ("resnet18", "mobilenet_v2", "dlrm", "nerf", "lstm", "resnet18_qdq_int8", "ssdlite320_nms")


@pytest.fixture(scope="session")
def scratch(shared_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    del shared_models
    return tmp_path_factory.mktemp("zoo")


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", FAST)
def test_model_verifies_and_matches_the_ledger(name: str, preset: str, scratch: Path) -> None:
    row = run_cell(MODELS[name], preset, scratch, "full")
    assert row["passed"] is True
    assert row["error"] <= row["tolerance"]
    assert row["same_bundle"] is True
    ledger = json.loads(LEDGER.read_text())[f"{name} {preset}"]
    assert {k: row[k] for k in EXACT} == {k: ledger[k] for k in EXACT}


def test_bert_layers_are_one_set_of_units(scratch: Path) -> None:
    model = MODELS["bert_base_s128"]
    cache = MemoryCache()
    path = materialized(model, scratch)
    machine = load_preset("a100")
    options = CompileOptions(strategy="naive", symbols=model.symbols)

    def compiled_once() -> CompiledModel:
        ports = open_ports(machine, options, cache, NoProgress())
        return compile_model(path, "bert", machine, options, ports, Limits())

    first = compiled_once()
    sequence = [c.unit if isinstance(c, UnitCall) else -1 for c in first.linked.program.calls]
    # the first layer also makes the attention mask; the other eleven are the same calls again
    period, _ = _layer(sequence, 11)
    assert period >= 20
    one_layer_and_the_rest = len(sequence) - 11 * period
    assert len(first.units) <= one_layer_and_the_rest
    second = compiled_once()
    assert {event.outcome for event in second.cache_events} == {"hit"}
    assert len(second.units) == len(first.units)


def _layer(sequence: list[int], layers: int) -> tuple[int, int]:
    """(length, first position) of a block that stands `layers` times in a row."""
    for period in range(4, len(sequence) // layers + 1):
        for start in range(len(sequence) - layers * period + 1):
            block = sequence[start : start + period]
            if sequence[start : start + layers * period] == block * layers:
                return period, start
    raise AssertionError("no repeated block found")
