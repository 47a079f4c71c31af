"""No strategy's program beats the tight bound, on any kind of chip; layers sum to the whole's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx_models import conv_net, repeated_layers, saved, with_host_part

from benchmarks.zoo import SYMBOLS, ZooModel, materialized, skeleton_folder
from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.job.job import run_job
from worker.job.ports import open_ports
from worker.job.request import JobRequest, NoProgress
from worker.job.simulation import refuse_violations, simulate_model

NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "conv_net": conv_net, "layers": lambda: repeated_layers(3), "with_host_part": with_host_part,
}  # fmt: skip
PRESETS = ("a100", "nvdla-large", "ethos-u65", "stcp920-inferred", "kapla-edge", "simba")


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("net", NETS)
def test_no_strategys_program_beats_its_bound(net: str, preset: str, tmp_path: Path) -> None:
    path, machine = saved(NETS[net](), tmp_path), load_preset(preset)
    for strategy in ("naive", "graphturbo"):
        options = CompileOptions.from_json({"verify": "none", "strategy": strategy})
        ports = open_ports(machine, options, MemoryCache(), NoProgress())
        compiled = compile_model(path, net, machine, options, ports, Limits())
        sims, whole = simulate_model(compiled, MemoryCache())
        refuse_violations(sims, whole)
        assert 0 < whole.lower_bound_cycles <= whole.cycles
        assert all(0 < sim.lower_bound_cycles <= sim.cycles for sim in sims)
        assert {b.name: b.cycles for b in whole.floor}.get("launch", 0) == whole.launch_cycles


@pytest.mark.parametrize("net", NETS)
def test_layers_sum_to_the_bound_of_the_whole(net: str, tmp_path: Path) -> None:
    options = CompileOptions.from_json({"verify": "none"})
    path, out = saved(NETS[net](), tmp_path), tmp_path / "out"
    request = JobRequest(path, net, {"preset": "a100"}, options, tmp_path / "b")
    run_job(request, out, MemoryCache(), NoProgress())
    report = json.loads((out / "report.json").read_bytes())
    summary = report["summary"]
    least = summary["lower_bound_cycles"]
    assert sum(row["lower_bound_cycles"] for row in report["layers"]) == least
    parts = summary["lower_bound_parts"]
    assert sum(parts.values()) == least
    assert parts[summary["lower_bound_by"]] == max(parts.values())
    assert summary["distance_to_bound"] == summary["latency_cycles"] / least >= 1
    assert all(row["lower_bound_cycles"] <= row["cycles_total"] for row in report["layers"])


VENDORS = {
    # nvdla.org/primer.html: 269 frames/s of ResNet-50, estimated, at 1 GHz.
    ("resnet50_v1_5", "nvdla-large"): 1e9 / 269,
    # Vela 5.2, client-server system, Ethos-U65-512: its own estimate.
    ("mobilenet_v2", "ethos-u65"): 2.00e6,
}


@pytest.mark.campaign
@pytest.mark.parametrize(("stem", "preset"), VENDORS)
def test_vendors_own_figures_are_above_the_bound(stem: str, preset: str, tmp_path: Path) -> None:
    if not skeleton_folder().exists():
        pytest.skip("model skeletons not found (set TILEWRIGHT_TEST_MODELS to their folder)")
    symbols = SYMBOLS.get(stem, ())
    options = CompileOptions.from_json(
        {"verify": "none", "strategy": "naive", "symbols": dict(symbols)}
    )
    machine = load_preset(preset)
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    path = materialized(ZooModel(stem, stem, symbols), tmp_path)
    compiled = compile_model(path, stem, machine, options, ports, Limits())
    _, whole = simulate_model(compiled, MemoryCache())
    assert 0.2 * VENDORS[stem, preset] < whole.lower_bound_cycles < VENDORS[stem, preset]
