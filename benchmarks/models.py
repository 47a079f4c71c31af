"""Model x preset table: every model of the zoo on several presets by `naive`, simulated, verified.

    python -m benchmarks.models --out benchmarks/MODELS.md [--only resnet18] [--presets a100]

Every cell is a fresh process (so peak RSS is its own), cold first, then warm from the same cache.
Rows already in the JSON ledger beside the table are kept, so a run can be resumed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.zoo import ZOO, ZooModel, materialized
from worker.job.request import NoProgress

PRESETS = ("stcp920-inferred", "a100", "kapla-16x16")
COLUMNS = (
    ("model", "model"), ("preset", "preset"), ("nodes", "nodes"),
    ("offloaded", "nodes offloaded"), ("kernels", "kernels"), ("unique", "unique units"),
    ("cycles", "cycles"), ("x_bound", "x bound"), ("distance", "x roofline"),
    ("offchip_mb", "off-chip MB"), ("energy_mj", "energy mJ"),
    ("cold_s", "cold CPU s"), ("warm_s", "warm CPU s"),
    ("verify_s", "verify s"), ("rss_mb", "peak RSS MB"), ("error", "error / scale"),
    ("tolerance", "tolerance"), ("passed", "verified"),
)  # fmt: skip


def run_cell(model: ZooModel, preset: str, scratch: Path, verify: str) -> dict[str, Any]:
    """Compile one model on one preset, cold and warm; runs inside the child process."""
    from worker.compiler.cache import MemoryCache
    from worker.compiler.options import CompileOptions, VerifyMode
    from worker.job.job import JobRequest, run_job

    path = materialized(model, scratch)
    cache = MemoryCache()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)

        def compile_once(mode: VerifyMode, name: str) -> tuple[float, dict[str, Any], str]:
            options = CompileOptions(strategy="naive", verify=mode, symbols=model.symbols)
            request = JobRequest(path, model.name, {"preset": preset}, options, scratch / "build")
            start = time.process_time()
            outcome = run_job(request, out / name, cache, NoProgress())
            seconds = time.process_time() - start
            report = json.loads((out / name / "report.json").read_bytes())
            return seconds, report, outcome.bundle_digest

        cold, _, first = compile_once(VerifyMode.NONE, "cold")
        warm, _, second = compile_once(VerifyMode.NONE, "warm")
        _, report, _ = compile_once(VerifyMode(verify), "verified")
        timings = json.loads((out / "verified" / "run.json").read_bytes())["timings"]
        rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    summary, check = report["summary"], report["verification"]
    home = next(iter(summary["traffic_bytes"].values()))
    return {
        "model": model.name, "preset": preset, "nodes": report["model"]["nodes"],
        "offloaded": summary["accelerator_ops"], "kernels": summary["kernels"],
        "unique": summary["kernels_unique"], "cycles": summary["latency_cycles"],
        "x_bound": summary["distance_to_bound"], "distance": summary["distance_to_roofline"],
        "offchip_mb": (home["read"] + home["write"]) / 1e6,
        "energy_mj": summary["energy_pj"] * 1e-9, "cold_s": cold, "warm_s": warm,
        "verify_s": timings["verify"], "rss_mb": rss_mb, "error": check["max_rel_err"],
        "tolerance": check["tolerance"], "passed": check["passed"],
        "same_bundle": first == second,
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown table of finished cells."""
    lines = ["| " + " | ".join(title for _, title in COLUMNS) + " |",
             "|" + "---|" * len(COLUMNS)]  # fmt: skip
    for row in rows:
        if "failure" in row:
            lines.append(f"| {row['model']} | {row['preset']} | {row['failure']} |")
            continue
        lines.append("| " + " | ".join(_cell(row.get(key)) for key, _ in COLUMNS) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "NO", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/MODELS.md"))
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--verify", default="full", choices=["none", "sample", "full"])
    parser.add_argument("--again", action="store_true", help="run finished cells again")
    parser.add_argument("--cell", nargs=2, metavar=("MODEL", "PRESET"))
    args = parser.parse_args(argv)
    models = {m.name: m for m in ZOO}
    if args.cell:
        row = run_cell(models[args.cell[0]], args.cell[1], args.scratch, args.verify)
        sys.stdout.write(json.dumps(row) + "\n")
        return 0
    ledger = args.out.with_suffix(".json")
    done: dict[str, dict[str, Any]] = json.loads(ledger.read_text()) if ledger.exists() else {}
    failed = False
    for model in ZOO:
        for preset in args.presets:
            key = f"{model.name} {preset}"
            skip = (args.only and model.name not in args.only) or (
                key in done and "failure" not in done[key] and not args.again
            )
            if skip:
                continue
            command = [sys.executable, "-m", "benchmarks.models", "--cell", model.name, preset,
                       "--scratch", str(args.scratch), "--verify", args.verify]  # fmt: skip
            child = subprocess.run(command, capture_output=True, text=True, check=False)
            if child.returncode == 0:
                done[key] = json.loads(child.stdout.strip().splitlines()[-1])
            else:
                failed = True
                last = (child.stderr.strip().splitlines() or ["no output"])[-1]
                done[key] = {"model": model.name, "preset": preset, "failure": last[:200]}
            sys.stderr.write(f"{key}: {done[key].get('failure', 'ok')}\n")
            _keep(args.out, done)
    _keep(args.out, done)
    return int(failed)


def _keep(page: Path, done: dict[str, dict[str, Any]]) -> None:
    """Write page and ledger: all finished cells, whichever were asked for now."""
    order = [f"{m.name} {p}" for m in ZOO for p in PRESETS]
    rows = {key: done[key] for key in order if key in done}
    page.with_suffix(".json").write_text(json.dumps(rows, indent=1))
    page.write_text(HEADER + table(list(rows.values())))


HEADER = """# Models x presets

Generated by `python -m benchmarks.models`; do not edit. Simulated figures (cycles, traffic, energy,
kernels) are exact and repeatable; seconds and RSS are of the machine it ran on (2 shared cores).
CPU seconds are of whole jobs without verification: compile, simulate, package, report.
`x bound` is simulated cycles over what every schedule of the same kernels takes at least (`-`: a
cell of before there was this), `x roofline` over the loose bound of any kernels; `error / scale` is
the largest absolute error of a tensor over that tensor's largest magnitude, against ONNX Runtime on
the original model, of the tensor that is nearest to its tolerance.

"""

if __name__ == "__main__":
    sys.exit(main())
