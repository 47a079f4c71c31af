"""Every model of the folder on every preset by GraphTurbo: compile, simulate, verify.

    python -m benchmarks.graphturbo_matrix [--only MODEL ..] [--presets PRESET ..] [--seconds 420]

Each cell is a whole job in a process of its own, with a limit of CPU time (the machine is shared)
and of address space; its kernels run and are compared with ONNX Runtime on the user's model.
Smallest files first.  Finished cells are kept in the JSON file beside the page, so a run can be
resumed; cells that failed are done again (--again: all of them).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.partition_matrix import peak_rss_mb
from benchmarks.zoo import ZooModel, every_model, materialized

Row = dict[str, Any]
PRESETS = ("stcp920", "stcp920-inferred", "ascend910", "goya", "a100")
COLUMNS = (
    ("cycles", "cycles"), ("x_bound", "x bound"), ("distance", "x roofline"),
    ("kernels", "kernels"),
    ("cpu_s", "CPU s"), ("rss_mb", "peak RSS MB"), ("abs_error", "max abs error"),
    ("error", "error / scale"), ("tolerance", "tolerance"), ("passed", "verified"),
)  # fmt: skip

_WALL = 10
"""Wall seconds of a cell per CPU second at most: a cell that waits for nothing ends too."""


def run_cell(model: ZooModel, preset: str, scratch: Path) -> Row:
    """One whole job; runs inside the child process.  A coded error is a row with its `failure`."""
    from worker.compiler.cache import MemoryCache
    from worker.compiler.descriptors import strategies
    from worker.compiler.errors import CompilerError
    from worker.compiler.options import CompileOptions, VerifyMode
    from worker.job.job import run_job
    from worker.job.request import JobRequest, NoProgress

    chosen = "graphturbo"
    options = CompileOptions(verify=VerifyMode.SAMPLE, symbols=model.symbols, strategy=chosen)
    path = materialized(model, scratch)
    row: Row = {"version": strategies()[chosen].version}
    with tempfile.TemporaryDirectory() as folder:
        request = JobRequest(path, model.name, {"preset": preset}, options, scratch / "build")
        try:
            run_job(request, Path(folder), MemoryCache(), NoProgress())
        except CompilerError as error:
            row["failure"] = f"{error.code} {error.message}"[:300]
        report = Path(folder) / "report.json"
        if report.exists():
            row |= measured(json.loads(report.read_bytes()))
    return row | {"cpu_s": round(time.process_time(), 1), "rss_mb": round(peak_rss_mb())}


def measured(report: Mapping[str, Any]) -> Row:
    """The figures of a finished job's report."""
    summary, check = report["summary"], report["verification"]
    return {
        "cycles": summary["latency_cycles"], "x_bound": summary["distance_to_bound"],
        "distance": summary["distance_to_roofline"],
        "kernels": summary["kernels"], "abs_error": check["max_abs_err"],
        "error": check["max_rel_err"], "tolerance": check["tolerance"],
        "passed": check["passed"], "detail": check["detail"][:300],
    }  # fmt: skip


def run_child(key: str, scratch: Path, seconds: int, gigabytes: int) -> Row:
    """One cell in a process of its own; a failure becomes its last words."""
    command = [sys.executable, "-m", "benchmarks.graphturbo_matrix", "--scratch", str(scratch),
               "--gigabytes", str(gigabytes), "--seconds", str(seconds),
               "--cell", *key.split(" ")]  # fmt: skip
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    try:
        child = subprocess.run(command, capture_output=True, text=True, check=False,
                               env=environment, timeout=_WALL * seconds)  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"failure": f"TIME more than {_WALL * seconds} s on a busy machine"}
    if child.returncode == -signal.SIGXCPU:
        return {"failure": f"TIME more than {seconds} CPU s"}
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or ["no output"])[-1]
        return {"failure": f"EXIT {child.returncode} {last[:300]}"}
    row: Row = json.loads(child.stdout.strip().splitlines()[-1])
    return row


def verdict(row: Row) -> str:
    """`ok`, or why the cell does not count."""
    if "failure" in row:
        return str(row["failure"])
    return "ok" if row["passed"] else f"not verified: {row['detail']}"


def page(rows: Mapping[str, Row], presets: Sequence[str], missing: int = 0) -> str:
    """Markdown: how many cells are good, a table per preset, and the cells that failed.

    `missing` cells have not been run.
    """
    good = sum(verdict(row) == "ok" for row in rows.values())
    lines = ["# GraphTurbo on every model and preset", "",
             "Printed by `python -m benchmarks.graphturbo_matrix`.", "", *_NOTES, "",
             f"{good} of {len(rows)} cells verified, {len(rows) - good} failed,"
             f" {missing} not run.", ""]  # fmt: skip
    for preset in presets:
        cells = {key: row for key, row in rows.items() if key.split(" ")[1] == preset}
        fine = sum(verdict(row) == "ok" for row in cells.values())
        lines += [f"### {preset}: {fine} of {len(cells)} cells", "",
                  "| model | " + " | ".join(title for _, title in COLUMNS) + " |",
                  "|" + "---|" * (len(COLUMNS) + 1)]  # fmt: skip
        for key, row in cells.items():
            if "passed" in row:
                figures = " | ".join(_cell(row.get(name)) for name, _ in COLUMNS)
                lines.append(f"| {key.split(' ')[0]} | {figures} |")
        lines.append("")
    bad = [f"| {k} | {why} |" for k, row in rows.items() if (why := verdict(row)) != "ok"]
    if bad:
        lines += ["### Cells that failed", "", "| cell | why |", "|---|---|", *bad, ""]
    return "\n".join(lines)


def in_third(key: str) -> bool:
    """Whether a cell is in the third of all that nobody chose: by the digest of its name."""
    return int(sha256(key.encode()).hexdigest(), 16) % 3 == 0


def comparison(rows: Mapping[str, Row], before: Mapping[str, Row]) -> str:
    """Cycles now over cycles before, of the cells that both ledgers have."""
    ratios = {
        key: row["cycles"] / before[key]["cycles"]
        for key, row in rows.items()
        if "cycles" in row and "cycles" in before.get(key, {})
    }
    if not ratios:
        return "no cell is in both ledgers\n"
    geomean = exp(sum(map(log, ratios.values())) / len(ratios))
    lines = [f"{len(ratios)} cells in both: cycles now over before, geomean {geomean:.5f},"
             f" {sum(r == 1 for r in ratios.values())} equal"]  # fmt: skip
    lines += [f"{key}: {r:.5f}" for key, r in sorted(ratios.items(), key=lambda x: -x[1]) if r != 1]
    return "\n".join(lines) + "\n"


_NOTES = (
    "A cell is a whole job: compile, simulate, package, run the kernels against ONNX Runtime on",
    "the original model (mode `sample`). `x bound` is simulated cycles over what every schedule of",
    "the same kernels takes at least (`-`: a cell of before there was this), `x roofline` over the",
    "loose bound of any kernels; CPU seconds and peak RSS are of the cell's process, imports and",
    "verification included;",
    "`error / scale` is judged against the tolerance; the first word of a failure is its code.",
)


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "NO", None: "-"}[value]
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 100 else f"{value:,.0f}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/GRAPHTURBO_MATRIX.md"))
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--seconds", type=int, default=420, help="CPU limit of a cell")
    parser.add_argument("--gigabytes", type=int, default=14, help="address space of a cell")
    parser.add_argument("--again", action="store_true", help="run finished cells again")
    parser.add_argument("--third", action="store_true", help="a third of the cells, by digest")
    parser.add_argument("--against", type=Path, help="an older ledger that cycles are held against")
    parser.add_argument("--cell", nargs=2, metavar=("MODEL", "PRESET"))
    args = parser.parse_args(argv)
    models = {m.name: m for m in every_model()}
    if args.cell:
        resource.setrlimit(resource.RLIMIT_AS, (args.gigabytes << 30, args.gigabytes << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (args.seconds, args.seconds + 5))
        row = run_cell(models[args.cell[0]], args.cell[1], args.scratch)
        sys.stdout.write(json.dumps(row) + "\n")
        return 0
    ledger = args.out.with_suffix(".json")
    rows: dict[str, Row] = json.loads(ledger.read_text()) if ledger.exists() else {}
    chosen = [n for n in models if n not in args.without and (not args.only or n in args.only)]
    sizes = {n: materialized(models[n], args.scratch).stat().st_size for n in chosen}
    for key in (f"{n} {p}" for n in sorted(chosen, key=sizes.__getitem__) for p in args.presets):
        if key in rows and verdict(rows[key]) == "ok" and not args.again:
            continue
        if args.third and not in_third(key):
            continue
        rows[key] = run_child(key, args.scratch, args.seconds, args.gigabytes)
        sys.stderr.write(f"{key}: {verdict(rows[key])} {rows[key].get('cpu_s', '')}\n")
        rows = {key: rows[key] for key in sorted(rows)}
        entries = (f"{json.dumps(k)}: {json.dumps(row)}" for k, row in rows.items())
        ledger.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")
        args.out.write_text(
            page(rows, PRESETS, len(models) * len(PRESETS) - len(rows)), encoding="utf-8"
        )
    if args.against:
        sys.stdout.write(comparison(rows, json.loads(args.against.read_text())))
    return int(any(verdict(row) != "ok" for row in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main())
