"""BYOC Tables 1-4 beside ours: offload ratios, sub-graph counts, latencies, speedups.

    python -m benchmarks.papers.byoc [--out benchmarks/papers/BYOC.md] [--only resnet18]

The paper measured silicon; ours are simulated on the presets xavier, dpu-u250 and dpu-zu with the
`naive` schedule, so only ratios, counts and orderings are compared, with the criteria printed.
Calibrated on one row only: the hosts' efficiency, on ResNet-18.  Baseline of a speedup: the whole
model on the preset's host.  Node shares count nodes with a number as result: torchvision's detector
has a thousand nodes of index arithmetic (Shape, NonZero, Concat of dimensions) that the paper's
importer folds; the share of all nodes is in the reports.  Every cell is a fresh process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.zoo import ZOO, materialized
from worker.job.request import NoProgress

DETECTOR = "ssdlite320_nms"
CLASSIFIERS = ("resnet18", "resnet50", "googlenet", "mobilenet_v2", "vgg16")
MODELS = (*CLASSIFIERS, DETECTOR)
PAPER_NAME = {
    "resnet18": "ResNet-18", "resnet50": "ResNet-50 v1b", "googlenet": "Inception V3",
    "mobilenet_v2": "MobileNet V2", "vgg16": "VGG19", DETECTOR: "SSD-512 MobileNet",
}  # fmt: skip
"""Ours -> the paper's; GoogLeNet, VGG16 and SSDLite stand for their larger relatives."""

XAVIER = {
    "resnet18": (100, 100, 4.12, 2.14, 1, 1, 4.12),
    "resnet50": (100, 100, 9.66, 4.12, 1, 1, 9.66),
    "googlenet": (100, 100, 16.13, 6.10, 1, 1, 16.13),
    "mobilenet_v2": (100, 100, 3.32, 2.22, 1, 1, 3.32),
    "vgg16": (100, 100, 24.26, 9.78, 1, 1, 24.26),
    DETECTOR: (36, 100, 18.43, 11.06, 6, 1, 48.13),
}
"""Tables 1, 2: node %, MAC %, FP32 ms, FP16 ms, sub-graphs without and with filter, ms without."""
U250 = {
    "resnet18": (96, 99, 2.66, 3.91), "resnet50": (98, 99, 5.59, 4.48),
    "googlenet": (99, 99, 7.51, 4.14), "vgg16": (80, 99, 15.82, 5.52),
}  # fmt: skip
"""Table 3: node %, MAC %, ms, speedup; the paper leaves depthwise models out."""
ZYNQ = {
    "resnet18": (96, 100, 5.83, 34.05), "resnet50": (98, 99, 14.7, 44.51),
    "googlenet": (98, 100, 19.47, 77.34), "mobilenet_v2": (99, 100, 4.72, 19.11),
    "vgg16": (80, 99, 132.78, 10.22), DETECTOR: (28, 100, 352.69, 5.47),
}  # fmt: skip
"""Table 4: node %, MAC %, ms, speedup."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One compilation."""

    model: str
    preset: str
    precision: str
    partition: str

    @property
    def key(self) -> str:
        return f"{self.model} {self.preset} {self.precision} {self.partition}"


def cells() -> tuple[Cell, ...]:
    """Everything the tables need, in order."""
    found: list[Cell] = []
    for model in MODELS:
        found += [
            Cell(model, "xavier", "native", "criteria"), Cell(model, "xavier", "f16", "criteria"),
            Cell(model, "xavier", "native", "greedy"),
        ]  # fmt: skip
        found += [Cell(model, "dpu-u250", "native", "spec")] if model in U250 else []
        found += [Cell(model, "dpu-zu", "native", "spec")] if model in ZYNQ else []
    return tuple(found)


def run_cell(cell: Cell, scratch: Path) -> dict[str, Any]:
    """Compile and simulate one cell; runs inside the child process."""
    from worker.compiler.cache import MemoryCache
    from worker.compiler.options import CompileOptions
    from worker.job.job import JobRequest, run_job

    model = next(m for m in ZOO if m.name == cell.model)
    path = materialized(model, scratch)
    options = CompileOptions.from_json(
        {
            "verify": "none", "precision": cell.precision, "partition": cell.partition,
            "symbols": dict(model.symbols),
        }
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        request = JobRequest(path, model.name, {"preset": cell.preset}, options, scratch / "build")
        run_job(request, Path(folder), MemoryCache(), NoProgress())
        report = json.loads((Path(folder) / "report.json").read_bytes())
    part, summary = report["partition"], report["summary"]
    clock = report["hardware"]["clock_hz"]
    return {
        "node_pct": part["node_pct"],
        "value_node_pct": part["value_node_pct"],
        "unit_pct": part["unit_pct"],
        "mac_pct": part["mac_pct"],
        "regions": len(part["regions"]), "ms": summary["latency_s"] * 1e3,
        "host_only_ms": report["partition"]["host_only_cycles"] / clock * 1e3,
        "shares_pct": offload_shares(report["invocation"]),
    }  # fmt: skip


def offload_shares(invocation: dict[str, Any]) -> dict[str, float]:
    """Shares of the offloaded work, as in Figures 7 and 8: operators on the host are left out."""
    names = ("launch", "transfer", "execute")
    total = sum(invocation[f"{name}_cycles"] for name in names) or 1
    return {name: 100.0 * invocation[f"{name}_cycles"] / total for name in names}


def run_child(cell: Cell, scratch: Path) -> dict[str, Any]:
    """Run one cell in a process of its own.

    Raises:
        RuntimeError: the cell failed; its last line of output says why.
    """
    command = [
        sys.executable, "-m", "benchmarks.papers.byoc", "--scratch", str(scratch), "--cell",
        cell.model, cell.preset, cell.precision, cell.partition,
    ]  # fmt: skip
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or ["no output"])[-1]
        raise RuntimeError(f"{cell.key}: {last[:300]}")
    found: dict[str, Any] = json.loads(child.stdout.strip().splitlines()[-1])
    return found


def _pair(paper: float | None, ours: float, digits: int = 1) -> str:
    left = "-" if paper is None else f"{paper:g}"
    return f"{left} / {ours:.{digits}f}"


def geomean(values: list[float]) -> float:
    """Geometric mean of positive numbers."""
    return exp(sum(map(log, values)) / len(values))


def xavier_table(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Tables 1 and 2: paper / ours."""
    lines = [
        "### Tables 1 and 2: xavier (paper / ours)", "",
        "| model | paper's model | node % | MAC % | FP32 ms | FP16 ms | FP32/FP16 |"
        " sub-graphs greedy | with filter | ms greedy | filter gain |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for model, (node, mac, f32, f16, without, with_, slow) in XAVIER.items():
        a = rows[f"{model} xavier native criteria"]
        b = rows[f"{model} xavier f16 criteria"]
        g = rows[f"{model} xavier native greedy"]
        lines.append(
            f"| {model} | {PAPER_NAME[model]} | {_pair(node, a['value_node_pct'])} |"
            f" {_pair(mac, a['mac_pct'])} | {_pair(f32, a['ms'], 2)} | {_pair(f16, b['ms'], 2)} |"
            f" {_pair(round(f32 / f16, 2), a['ms'] / b['ms'], 2)} |"
            f" {without} / {g['regions']} | {with_} / {a['regions']} |"
            f" {_pair(slow, g['ms'], 2)} | {_pair(round(slow / f32, 2), g['ms'] / a['ms'], 2)} |"
        )
    return [*lines, ""]


def dpu_table(
    title: str, preset: str, paper: dict[str, tuple[float, ...]], rows: dict[str, dict[str, Any]]
) -> list[str]:
    """Table 3 or 4: paper / ours."""
    lines = [
        f"### {title}: {preset} (paper / ours)", "",
        "| model | paper's model | node % | MAC % | regions | ms | speedup over the host |"
        " launch % | transfer % | execute % |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for model, (node, mac, ms, gain) in paper.items():
        row = rows[f"{model} {preset} native spec"]
        shares = row["shares_pct"]
        lines.append(
            f"| {model} | {PAPER_NAME[model]} | {_pair(node, row['value_node_pct'])} |"
            f" {_pair(mac, row['mac_pct'])} | {row['regions']} | {_pair(ms, row['ms'], 2)} |"
            f" {_pair(gain, row['host_only_ms'] / row['ms'], 2)} | {shares['launch']:.1f} |"
            f" {shares['transfer']:.1f} | {shares['execute']:.1f} |"
        )
    return [*lines, ""]


def checks(rows: dict[str, dict[str, Any]]) -> list[tuple[str, bool, str]]:
    """The criteria of 4-papers.md 2.2: (criterion, passed, numbers)."""
    found: list[tuple[str, bool, str]] = []
    for preset, paper, kind in (
        ("xavier", XAVIER, "native criteria"), ("dpu-u250", U250, "native spec"),
        ("dpu-zu", ZYNQ, "native spec"),
    ):  # fmt: skip
        for model, figures in paper.items():
            row = rows[f"{model} {preset} {kind}"]
            away, off = row["value_node_pct"] - figures[0], row["mac_pct"] - figures[1]
            found.append(
                (f"{preset} {model}: node % within 10 points", abs(away) <= 10, f"{away:+.1f}")
            )
            found.append((f"{preset} {model}: MAC % within 1 point", abs(off) <= 1, f"{off:+.2f}"))
    for model in CLASSIFIERS:
        counts = [rows[f"{model} xavier native {m}"]["regions"] for m in ("greedy", "criteria")]
        found.append((f"xavier {model}: sub-graphs 1 -> 1", counts == [1, 1], f"{counts}"))
    greedy, kept = (rows[f"{DETECTOR} xavier native {m}"] for m in ("greedy", "criteria"))
    counts = [greedy["regions"], kept["regions"]]
    found.append(("xavier detector: many -> 1", counts[0] > 1 == counts[1], f"{counts}"))
    gain = greedy["ms"] / kept["ms"]
    found.append(("xavier detector: the filter gains >= 1.5x", gain >= 1.5, f"{gain:.2f}x"))
    ratios = {
        m: rows[f"{m} xavier native criteria"]["ms"] / rows[f"{m} xavier f16 criteria"]["ms"]
        for m in MODELS
    }
    for model, ratio in ratios.items():
        found.append(
            (f"xavier {model}: FP16 is 1.3-4.5x faster", 1.3 <= ratio <= 4.5, f"{ratio:.2f}x")
        )
    mean = sum(ratios.values()) / len(ratios)
    found.append(("xavier: mean FP16 gain 2-2.7x", 2 <= mean <= 2.7, f"{mean:.2f}x"))
    worst = max(rows[f"{m} dpu-u250 native spec"]["regions"] for m in U250)
    found.append(("dpu-u250: at most one region", worst <= 1, f"{worst}"))
    execute = min(rows[f"{m} dpu-u250 native spec"]["shares_pct"]["execute"] for m in U250)
    found.append(
        ("dpu-u250: execution >= 60 % of offloaded time", execute >= 60, f"{execute:.1f} %")
    )
    gains: dict[str, float] = {}
    for preset, paper in (("dpu-zu", ZYNQ), ("dpu-u250", U250)):
        used = [rows[f"{model} {preset} native spec"] for model in paper]
        gains[preset] = geomean([row["host_only_ms"] / row["ms"] for row in used])
    found.append(
        ("geomean gain on the edge above that in the cloud", gains["dpu-zu"] > gains["dpu-u250"],
         f"{gains['dpu-zu']:.2f}x, {gains['dpu-u250']:.2f}x")
    )  # fmt: skip
    return found


def document(rows: dict[str, dict[str, Any]]) -> str:
    """The whole page."""
    judged = checks(rows)
    lines = ["# BYOC Tables 1-4", "", "Printed by `python -m benchmarks.papers.byoc`.", ""]
    lines += [(__doc__ or "").split("\n\n")[2].replace("\n", " "), ""]
    lines += xavier_table(rows)
    lines += dpu_table("Table 3", "dpu-u250", U250, rows)
    lines += dpu_table("Table 4", "dpu-zu", ZYNQ, rows)
    passed = sum(ok for _, ok, _ in judged)
    lines += [
        f"### Criteria: {passed} of {len(judged)} pass",
        "",
        "| criterion | ours | |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {ours} | {'pass' if ok else '**fail**'} |" for name, ok, ours in judged]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    parser.add_argument("--only", nargs="*", default=[], help="models; prints rows, no tables")
    parser.add_argument("--cell", nargs=4, metavar=("MODEL", "PRESET", "PRECISION", "PARTITION"))
    args = parser.parse_args(argv)
    if args.cell:
        sys.stdout.write(json.dumps(run_cell(Cell(*args.cell), args.scratch)) + "\n")
        return 0
    rows: dict[str, dict[str, Any]] = {}
    for cell in cells():
        if args.only and cell.model not in args.only:
            continue
        rows[cell.key] = run_child(cell, args.scratch)
        sys.stderr.write(f"{cell.key}: {json.dumps(rows[cell.key])}\n")
    if args.only:
        return 0
    text = document(rows)
    sys.stdout.write(text)
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
