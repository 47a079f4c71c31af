"""Every model of the folder on every preset: partition, check, and (with --verify) run.

    python -m benchmarks.partition_matrix [--only MODEL ..] [--presets PRESET ..]
                                          [--out benchmarks/PARTITIONS.md]
    python -m benchmarks.partition_matrix --verify [--only ..] [--cells PRESET[:PRECISION] ..]

Without --verify a model is loaded and simplified once, then converted (calibrated on made-up
inputs where a target asks for integers) and partitioned for each preset; `partition_check` works
out from the graph alone whether the result is sound.  With --verify each cell is a whole job in a
process of its own: compile, simulate, package, and run host and kernels against ONNX Runtime.

Finished rows are kept in the JSON ledger beside the table, so that a run can be resumed (--again:
do them over).  One child process per model or cell, --jobs of them at a time; largest file first,
with --verify smallest first.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.partition_check import faults
from benchmarks.partition_table import page
from benchmarks.zoo import ZooModel, every_model, materialized
from worker.job.request import NoProgress

VERIFIED = ("xavier", "xavier:f16", "dpu-u250", "dpu-zu")
"""Cells that --verify runs for every model."""
EXTRA_CELLS = ("ethos-u65", "nvdla-large", "tpuv1", "a100:i8")
EXTRA_MODELS = (
    "resnet18", "mobilenet_v2", "mobilenet_v1", "tinybert", "mnist_cnn", "espcn_x3", "go1_policy",
    "control_flow", "resnet18_qdq_int8", "ultraface_rfb320",
)  # fmt: skip
"""Models that --verify also runs on EXTRA_CELLS."""


def peak_rss_mb() -> float:
    """Of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def partition_rows(
    model: ZooModel, path: Path, presets: Sequence[str], batches: int
) -> Iterator[dict[str, Any]]:
    """A row per preset; errors of the compiler are rows too."""
    from worker.compiler.control.shapes import settle_shapes
    from worker.compiler.errors import CompilerError
    from worker.compiler.frontend.bind import bind
    from worker.compiler.frontend.limits import Limits
    from worker.compiler.frontend.load import load_model
    from worker.compiler.frontend.simplify import simplify
    from worker.compiler.machine import load_preset
    from worker.compiler.options import CompileOptions
    from worker.compiler.partition.partition import partition
    from worker.compiler.partition.ratios import offload_ratios
    from worker.compiler.pipeline import convert_for
    from worker.verification.inputs import seeded_inputs

    options = CompileOptions(symbols=model.symbols)
    simplified = simplify(bind(load_model(path, Limits(), model.stem), dict(model.symbols)))
    settle_shapes(simplified)
    for preset in presets:
        machine = load_preset(preset)
        row: dict[str, Any] = {"model": model.name, "preset": preset}
        started = time.perf_counter()
        try:
            converted = convert_for(
                simplified, machine, options,
                lambda m: tuple(seeded_inputs(m, options.seed + k) for k in range(batches)),
            )  # fmt: skip
            row["convert_s"] = round(time.perf_counter() - started, 3)
            started = time.perf_counter()
            found = partition(converted.model, machine, {})
            row["partition_s"] = round(time.perf_counter() - started, 3)
        except CompilerError as error:
            row["failure"] = f"{error.code} {error.message}"[:300]
            yield row
            continue
        nodes = list(converted.model.ir.graph)
        ratios = offload_ratios(nodes, found)
        row |= {
            "nodes": ratios.nodes, "inserted": len(nodes) - ratios.nodes,
            "node_pct": ratios.node_pct, "mac_pct": ratios.mac_pct, "regions": len(found.regions),
            "parts": len(found.parts), "composites": sum(len(p.composites) for p in found.parts),
            "converted": sorted(f"{t}: {c.dtype}" for t, c in converted.conversions.items()),
            "faults": list(faults(converted.model, machine, found)),
            "rss_mb": round(peak_rss_mb()),
        }  # fmt: skip
        yield row


def verified_row(model: ZooModel, path: Path, cell: str, build: Path) -> dict[str, Any]:
    """One whole job; runs inside the child process."""
    from worker.compiler.cache import MemoryCache
    from worker.compiler.errors import CompilerError
    from worker.compiler.options import CompileOptions, Precision, VerifyMode
    from worker.job.job import run_job
    from worker.job.request import JobRequest

    preset, _, precision = cell.partition(":")
    options = CompileOptions(
        strategy="naive",
        verify=VerifyMode.SAMPLE,
        symbols=model.symbols,
        precision=Precision(precision or "native"),
    )
    row: dict[str, Any] = {"model": model.name, "cell": cell}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        request = JobRequest(path, model.name, {"preset": preset}, options, build)
        try:
            run_job(request, Path(folder), MemoryCache(), NoProgress())
        except CompilerError as error:
            row["failure"] = f"{error.code} {error.message}"[:300]
        report = Path(folder) / "report.json"
        if report.exists():
            row |= _verified(json.loads(report.read_bytes()))
    return row | {
        "seconds": round(time.perf_counter() - started, 1), "rss_mb": round(peak_rss_mb()),
    }  # fmt: skip


def _verified(report: dict[str, Any]) -> dict[str, Any]:
    check, parts = report["verification"], report["partition"]
    noise = [n for n in check["sqnr"] if n["sqnr_db"] is not None]
    ends = [n["sqnr_db"] for n in noise if n["min_db"] is not None]
    rows = report["placement"]
    unexplained = [
        r["node"] for r in rows if not (r["target"] and r["reason_code"] and r["reason"])
    ]
    twice = len(rows) - len({r["node"] for r in rows})
    return {
        "passed": check["passed"], "error": check["max_rel_err"], "tolerance": check["tolerance"],
        "detail": check["detail"][:300], "nodes": len(rows), "unexplained": unexplained[:3],
        "twice": twice, "kernels": report["summary"]["kernels_unique"],
        "regions": len(parts["regions"]), "mac_pct": parts["mac_pct"],
        "node_pct": parts["node_pct"],
        "worst_boundary_db": min((n["sqnr_db"] for n in noise), default=None),
        "worst_output_db": min(ends, default=None),
        "least_db": max((n["min_db"] for n in noise if n["min_db"] is not None), default=None),
        "low": [n["value"] for n in check["sqnr"] if n["passed"] is False],
    }  # fmt: skip


def _child(arguments: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """(rows the child printed, the last line of its error when it failed)."""
    command = [sys.executable, "-m", "benchmarks.partition_matrix", *arguments]
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not done.returncode:
        return rows, ""
    return rows, (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:300]


def _task_rows(
    model: ZooModel, what: str, keys: Sequence[str], rest: Sequence[str]
) -> list[dict[str, Any]]:
    """Rows of one child; a row with its failure for every key it did not reach."""
    rows, failure = _child([what, model.name, *keys, *rest])
    field = "preset" if what == "--partition-child" else "cell"
    missing = [k for k in keys if k not in {row[field] for row in rows}]
    return rows + [{"model": model.name, field: k, "failure": failure} for k in missing]


def main(argv: list[str] | None = None) -> int:
    from worker.compiler.machine import preset_names

    parser = argparse.ArgumentParser(prog="python -m benchmarks.partition_matrix")
    parser.add_argument("--only", nargs="*", default=[], help="models, by file name")
    parser.add_argument("--presets", nargs="*", default=list(preset_names()))
    parser.add_argument("--verify", action="store_true", help="run cells instead of partitioning")
    parser.add_argument("--cells", nargs="*", help="of --verify; default: those of the table")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/PARTITIONS.md"))
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    parser.add_argument("--calibration-batches", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="do finished rows over")
    parser.add_argument("--partition-child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--verify-child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    models = {m.name: m for m in every_model()}
    if args.partition_child or args.verify_child:
        name, *keys = args.partition_child or args.verify_child
        path = materialized(models[name], args.scratch)
        if args.partition_child:
            rows = partition_rows(models[name], path, keys, args.calibration_batches)
        else:
            rows = iter([verified_row(models[name], path, keys[0], args.scratch / "build")])
        for row in rows:
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
        return 0
    ledger = args.out.with_suffix(".json")
    done: dict[str, dict[str, Any]] = json.loads(ledger.read_text()) if ledger.exists() else {}
    chosen = [m for m in models.values() if not args.only or m.name in args.only]
    sizes = {m.name: materialized(m, args.scratch).stat().st_size for m in chosen}
    chosen.sort(key=lambda m: sizes[m.name] if args.verify else -sizes[m.name])
    rest = ["--scratch", str(args.scratch), "--calibration-batches", str(args.calibration_batches)]
    tasks: list[tuple[ZooModel, str, list[str]]] = []
    for model in chosen:
        wanted = _cells(model, args.cells) if args.verify else args.presets
        left = [k for k in wanted if args.again or _key(model.name, k, args.verify) not in done]
        if args.verify:
            tasks += [(model, "--verify-child", [k]) for k in left]
        elif left:
            tasks.append((model, "--partition-child", left))
    with ThreadPoolExecutor(args.jobs) as pool:
        pending = [pool.submit(_task_rows, *task, rest) for task in tasks]
        for future in as_completed(pending):
            for row in future.result():
                key = _key(row["model"], row.get("preset") or row["cell"], args.verify)
                done[key] = row
                sys.stderr.write(f"{key}: {_verdict(row)}\n")
            _store(ledger, args.out, done)
    _store(ledger, args.out, done)
    return int(any(_verdict(row) != "ok" for row in done.values()))


def _cells(model: ZooModel, asked: Sequence[str] | None) -> list[str]:
    if asked is not None:
        return list(asked)
    return [*VERIFIED, *(EXTRA_CELLS if model.name in EXTRA_MODELS else ())]


def _key(model: str, preset: str, verified: bool) -> str:
    return f"{'run' if verified else 'partition'} {model} {preset}"


def _verdict(row: dict[str, Any]) -> str:
    if "failure" in row:
        return str(row["failure"])
    if row.get("faults"):
        return f"{len(row['faults'])} faults, first: {row['faults'][0]}"
    if "passed" in row and (not row["passed"] or row["unexplained"] or row["twice"]):
        return str(row["detail"])
    if row.get("low"):
        return f"{row['worst_output_db']:.1f} dB at an output, the spec asks for {row['least_db']}"
    return "ok"


def _store(ledger: Path, out: Path, done: dict[str, dict[str, Any]]) -> None:
    ordered = {key: done[key] for key in sorted(done)}
    lines = [f"{json.dumps(key)}: {json.dumps(row)}" for key, row in ordered.items()]
    ledger.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    out.write_text(page(tuple(ordered.values())))


if __name__ == "__main__":
    sys.exit(main())
