"""A chip that is slow at one thing on purpose: the report blames that thing."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from onnx_models import conv_net, repeated_layers, saved, with_host_part

from worker.compiler.cache import MemoryCache
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress
from worker.report.parts import layer_parts

MODELS = {"conv": conv_net, "layers": repeated_layers, "host": with_host_part}


def report_of(folder: Path, model: str, chip: dict[str, Any], strategy: str) -> dict[str, Any]:
    folder.mkdir()
    hardware = {"schema_version": 1, "name": "slow", "inherits": "kapla-16x16", **chip}
    options = CompileOptions.from_json({"strategy": strategy, "verify": "none"})
    request = JobRequest(saved(MODELS[model](), folder), "model", hardware, options, folder / "b")
    run_job(request, folder / "out", MemoryCache(), NoProgress())
    found: dict[str, Any] = json.loads((folder / "out" / "report.json").read_bytes())
    return found


def engines(matrix: dict[str, Any], vector: float) -> dict[str, Any]:
    """The vector unit is slow enough that nobody multiplies on it."""
    slow = {"name": "VEC", "macs_per_cycle": {"f32": vector}}
    return {"engines": [{"name": "PE", **matrix}, slow]}


def memory(**changes: float) -> dict[str, Any]:
    return {"levels": [{"name": "DRAM", **changes}]}


def moving(name: str, **limits: int) -> dict[str, Any]:
    return {"engines": [{"name": name, **limits}]}


SLOW: dict[str, tuple[str, str, dict[str, Any]]] = {
    "starved reads": ("layers", "port:DRAM.read", memory(read_bytes_per_cycle=0.05)),
    "starved writes": ("layers", "port:DRAM.write", memory(write_bytes_per_cycle=0.001)),
    "long bursts": ("layers", "port:DRAM.read", memory(
        burst_bytes=4096, align_bytes=1, read_bytes_per_cycle=2)),
    "weak engine": ("layers", "engine:PE", engines({"macs_per_cycle": {"f32": 0.05}}, 0.02)),
    "starved array": ("layers", "feed:PE", engines(
        {"dataflow": {"stationary": "weight", "registers": None},
         "feed_bytes_per_cycle": 0.02}, 0.005)),
    "starved rows": ("layers", "feed:PE", engines({"feed_bytes_per_cycle": 0.02}, 0.005)),
    "slow loads": ("layers", "feed:PE", engines(
        {"dataflow": {"stationary": "weight", "registers": None, "double_buffered": True,
                      "load_bytes_per_cycle": 0.005}}, 0.005)),
    "weak vector unit": ("conv", "engine:VEC", engines({}, 0.001)),
    "long pipeline": ("layers", "fill:PE", engines({"startup_cycles": 100_000}, 0.005)),
    "long latency": ("layers", "latency", memory(latency_cycles=100_000)),
    "slow set-up of loads": ("layers", "dma:IN", moving("IN", setup_cycles=100_000)),
    "slow set-up of stores": ("layers", "dma:OUT", moving("OUT", setup_cycles=100_000)),
    "few bytes on their way": ("layers", "dma:IN", moving("IN", outstanding_bytes=1)),
    "slow signals": ("layers", "synchronisation", {"engine_signal_cycles": 100_000}),
    "long launch": ("layers", "launch", {"launch_latency_cycles": 10_000_000}),
    "weak host": ("host", "host", {"host": {"flops_per_s": 1e3}}),
    "slow host link": (
        "host", "host-link", {"host": {"shared_memory": False, "link_bytes_per_s": 1e4}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("strategy", ["naive", "graphturbo"])
@pytest.mark.parametrize("what", SLOW)
def test_what_is_slow_is_blamed(tmp_path: Path, what: str, strategy: str) -> None:
    model, cause, chip = SLOW[what]
    report = report_of(tmp_path / "m", model, chip, strategy)
    summary, rows = report["summary"], report["layers"]
    assert summary["bound_by"] == cause
    assert summary["causes"][0]["cycles"] > 0.75 * summary["latency_cycles"]
    assert sum(c["cycles"] for c in summary["causes"]) == summary["latency_cycles"]
    if what == "long bursts":
        (found,) = (f for f in report["insights"] if f["id"] == "memory-bound")
        assert "% of DRAM's bytes are parts of bursts beside short rows" in found["message"]
        moved = summary["traffic_bytes"]["DRAM"]
        assert summary["unasked_bytes"]["DRAM"] > 0.5 * (moved["read"] + moved["write"])
    told = [finding["id"] for finding in report["insights"]]
    assert ("issue-bound" in told) == cause.startswith("dma:")
    assert ("feed-bound" in told) == cause.startswith("feed:")
    for row in rows:
        assert sum(c["cycles"] for c in row["causes"]) == row["cycles_total"]
        assert row["bound_by"] == row["causes"][0]["cause"]
    checks = {check["name"]: check["passed"] for check in report["sanity"]}
    assert checks["causes-sum-to-total"] is checks["units:causes-sum-to-total"] is True
    written = (tmp_path / "m" / "out" / "layers.csv").read_text()
    parts = layer_parts(rows, summary["latency_cycles"])
    for line, part in zip(csv.DictReader(io.StringIO(written)), parts, strict=True):
        blamed = [f"{c['cause']}={c['cycles']}" for c in part["causes"]]
        assert line["causes"] == "|".join(blamed)
        assert line["cycles_total"] == str(part["cycles_total"])


def test_a_port_that_is_always_busy_is_the_cause_and_not_the_largest_bound(tmp_path: Path) -> None:
    """A tiny buffer makes the weights come again and again: compulsory bytes say that the engine is
    the limit, the run says that it waits for the memory."""
    chip = {"levels": [{"name": "GBUF", "capacity_bytes": 1024}], "num_cores": 1,
            "engines": [{"name": "PE", "macs_per_cycle": {"f32": 2}}],
            "links": [{"name": "NOC", "mesh": None, "multicast": False}]}  # fmt: skip
    chip["levels"][0]["instances"] = 1
    chip["levels"].append({"name": "REGF", "instances": 1})
    chip["levels"].append({"name": "DRAM", "read_bytes_per_cycle": 1})
    report = report_of(tmp_path / "m", "conv", chip, "naive")
    rows = [row for row in report["layers"] if row["macs"]]
    moved = [row for row in rows if row["bound_by"] == "port:DRAM.read"]
    assert moved
    assert report["summary"]["bound_by"] == "port:DRAM.read"


def test_the_nodes_of_a_fused_kernel_share_its_cycles(tmp_path: Path) -> None:
    """Four equal layers in one kernel that waits for the matrix engine: a quarter each."""
    model, _, chip = SLOW["weak engine"]
    report = report_of(tmp_path / "m", model, chip, "graphturbo")
    total = report["summary"]["latency_cycles"]
    parts = layer_parts(report["layers"], total)
    of_node: dict[str, int] = {}
    for part in parts:
        if part["part"] == "nodes":
            name = part["onnx_nodes"][0].split("/")[0]
            of_node[name] = of_node.get(name, 0) + part["cycles_total"]
    assert list(of_node) == [f"layer{k}" for k in range(4)]
    # The first waits for its input, the last for its output; between, tiles of two layers overlap.
    assert max(of_node.values()) < 1.05 * min(of_node.values())
    assert sum(of_node.values()) > 0.95 * total


@pytest.mark.parametrize("strategy", ["naive", "graphturbo"])
@pytest.mark.parametrize("model", MODELS)
def test_parts_sum_to_the_whole(tmp_path: Path, model: str, strategy: str) -> None:
    report = report_of(tmp_path / "m", model, {}, strategy)
    summary = report["summary"]
    parts = layer_parts(report["layers"], summary["latency_cycles"])
    assert sum(p["cycles_total"] for p in parts) == summary["latency_cycles"]
    assert sum(p["energy_pj"] or 0 for p in parts) == pytest.approx(summary["energy_pj"])
    for p in parts:
        assert p["cycles_total"] == sum(c["cycles"] for c in p["causes"]) >= 0
        assert p["part"] != "kernel" or p["macs"] == 0
    for row in report["layers"]:
        named = {name for group in row.get("groups", []) for name in group["onnx_nodes"]}
        assert named in (set(), set(row["onnx_nodes"]))
    fused = any(row.get("groups") for row in report["layers"])
    assert fused == (strategy == "graphturbo" and model != "host")
    accelerated = [p["macs"] for p in parts if p["placement"] == "accelerator"]
    assert sum(accelerated) == summary["macs"]
