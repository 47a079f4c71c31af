"""Cells of the GraphTurbo tables: one compilation each."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from benchmarks.cells import Row
from benchmarks.compile_time import StageClock
from benchmarks.papers.graphturbo_half import half
from benchmarks.papers.graphturbo_paper import CLUSTERS, GPU, ROWS, PaperRow
from benchmarks.papers.graphturbo_tailor import PAIRS, tailor_model
from benchmarks.papers.rebatch import rebatch
from benchmarks.papers.tvm_samples import tvm_samples
from benchmarks.zoo import ZooModel, materialized
from worker.job.request import NoProgress

if TYPE_CHECKING:
    from worker.compiler.ir.graph import Graph

PRESETS = ("stcp920", "stcp920-inferred")
GPU_PRESET = "a100"
PEAK = "peak"
"""Pseudo variant: live bytes of one sample, without scheduling."""
TAILOR = ("T", *(f"T{k + 1}" for k in range(PAIRS)))
"""ResNet18-Tailor as a whole, and its pairs of layers."""
COMPILING = ("ingest", "simplify", "convert", "partition", "schedule", "codegen")
"""Stages whose CPU seconds are the time of compiling."""
PAPER_ROW = {row.label: row for row in ROWS}


@dataclass(frozen=True, slots=True)
class Cell:
    """One compilation: `samples` per cluster on a DSA, samples in all on the GPU."""

    label: str
    preset: str
    variant: str
    samples: int

    @property
    def key(self) -> str:
        return f"{self.label} {self.preset} {self.variant} {self.samples}"

    @property
    def batch(self) -> int:
        """Samples in one round."""
        return self.samples * (1 if self.preset == GPU_PRESET else CLUSTERS)


def model_cells(row: PaperRow, preset: str) -> tuple[Cell, ...]:
    """What Tables 1 to 4 and the ablation need of one model on one preset."""
    own, tvm = row.samples, row.tvm_samples
    wanted = [("layerwise", tvm), ("layerwise", own), ("astitch", tvm), ("astitch", own)]
    wanted += [(variant, own) for variant in ("v1", "v2", "v3", "full")]
    wanted += [("full", max(1, own // 2))]
    if row.label == "B":
        wanted += [("layerwise", 2), ("full", 2), ("full", 4), ("full", 16)]
    found = [Cell(row.label, preset, *pair) for pair in dict.fromkeys(wanted)]
    return (Cell(row.label, preset, PEAK, 1), *found)


def gpu_cells() -> tuple[Cell, ...]:
    """What Table 5 needs."""
    found: list[Cell] = []
    for batch in GPU:
        found.append(Cell("T", GPU_PRESET, "layerwise", batch))
        found += [Cell(t, GPU_PRESET, v, batch) for v in ("v2", "v3") for t in TAILOR[1:]]
        found.append(Cell("T", GPU_PRESET, "v3", batch))
    return tuple(found)


def cells(presets: Sequence[str] = PRESETS) -> tuple[Cell, ...]:
    """Everything, in order."""
    models = [cell for preset in presets for row in ROWS for cell in model_cells(row, preset)]
    return (*models, *gpu_cells())


def cell_model(cell: Cell, scratch: Path, folder: Path) -> Path:
    """The cell's model in FP16, at its batch."""
    wide = folder / "wide.onnx"
    if cell.label in TAILOR:
        part = None if cell.label == "T" else int(cell.label[1:]) - 1
        wide.write_bytes(tailor_model(cell.batch, part).SerializeToString())
    else:
        stem = PAPER_ROW[cell.label].stem
        batch = 1 if cell.variant == PEAK else cell.batch
        rebatch(materialized(ZooModel(stem, stem), scratch), batch, wide)
    return half(wide, folder / "model.onnx")


def run_cell(cell: Cell, scratch: Path) -> Row:
    """Compile and simulate one cell; runs inside the child process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = cell_model(cell, scratch, folder)
        return _peak(cell, model) if cell.variant == PEAK else _job(cell, model, folder)


def _peak(cell: Cell, model: Path) -> Row:
    """Live bytes of one FP16 sample: operators composed, one by one, in place where they may.

    Accumulators count as FP16, as if the operator behind them were part of the same kernel.
    """
    from worker.compiler.cache import MemoryCache
    from worker.compiler.frontend.limits import Limits
    from worker.compiler.options import CompileOptions
    from worker.compiler.pipeline import compile_model
    from worker.compiler.rewrite.compose_region import compose_region
    from worker.compiler.tiling.slices.footprint import peak_bytes
    from worker.job.hardware import resolve_machine
    from worker.job.ports import open_ports

    machine = resolve_machine({"preset": cell.preset})
    options = CompileOptions.from_json({"verify": "none", "strategy": "naive"})
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    compiled = compile_model(model, cell.label, machine, options, ports, Limits())
    shared = [v for v in machine.levels[1:] if 1 < v.instances == CLUSTERS]
    if len(shared) != 1:
        raise ValueError(f"{cell.preset}: {len(shared)} levels with {CLUSTERS} instances")
    peak = 0
    for region in compiled.region_graphs:
        graph = _narrowed(compose_region(region, machine))
        ops = list(graph.ops)
        if len(ops) != len(graph.ops):
            raise ValueError(f"{cell.label}: operators outside the algebra")
        peak = max(peak, peak_bytes(graph, ops, in_place=True))
    return {
        "peak_bytes": peak, "tvm_samples": tvm_samples(peak, shared[0].capacity_bytes),
        "regions": len(compiled.region_graphs),
    }  # fmt: skip


def _narrowed(graph: Graph) -> Graph:
    from worker.compiler.ir.dtype import DType

    tensors = {
        name: replace(tensor, dtype=DType.F16) if tensor.dtype is DType.F32 else tensor
        for name, tensor in graph.tensors.items()
    }
    return replace(graph, tensors=MappingProxyType(tensors))


def _job(cell: Cell, model: Path, folder: Path) -> Row:
    from worker.compiler.cache import MemoryCache
    from worker.compiler.options import CompileOptions
    from worker.job.job import run_job
    from worker.job.request import JobRequest

    options = CompileOptions.from_json(
        {
            "verify": "none",
            "strategy": "graphturbo",
            "strategy_options": {"graphturbo": {"variant": cell.variant}},
        }
    )
    request = JobRequest(model, cell.label, {"preset": cell.preset}, options, folder / "build")
    clock = StageClock(time.process_time)
    run_job(request, folder / "out", MemoryCache(), clock)
    row = figures(json.loads((folder / "out" / "report.json").read_bytes()))
    row["compile_s"] = sum(clock.seconds.get(stage, 0.0) for stage in COMPILING)
    return row


def figures(report: Row) -> Row:
    """What the tables read from a job's report; seconds are not, as other cells run beside it.

    `ms` is the accelerator's own time: kernels and their launches; `whole_ms` also has the host and
    its link (a BERT's mask is made by a GatherND that no preset offers).

    Raises:
        ValueError: the report has no summary of `graphturbo`, so another strategy made it.
    """
    section = report["summaries"].get("graphturbo")
    if section is None:
        raise ValueError("the report has no summary of graphturbo")
    summary, invocation = report["summary"], report["invocation"]
    home = next(iter(summary["traffic_bytes"].values()))
    busy = invocation["launch_cycles"] + invocation["execute_cycles"]
    picked: dict[str, int] = {}
    for unit in section["units"]:
        name = f"{unit['samples_per_cluster']}x{unit['iterations']}"
        picked[name] = picked.get(name, 0) + unit["calls"] * unit["operators"]
    return {
        "ms": busy / report["hardware"]["clock_hz"] * 1e3,
        "whole_ms": summary["latency_s"] * 1e3,
        "kernels": summary["kernels"],
        "offchip_mb": (home["read"] + home["write"]) / 1e6,
        "mac_pct": summary["accelerator_mac_pct"],
        "distance": summary["distance_to_roofline"],
        "x_bound": summary["distance_to_bound"],
        "scopes": [section["total"]["tensors_by_scope"][s] for s in ("home", "gb", "lb")],
        "spilled_bytes": section["total"]["spilled_bytes"],
        "picked": max(picked, key=lambda name: (picked[name], name)),
    }
