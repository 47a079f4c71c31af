"""Is automatic partitioning ever worse than greedy, criteria or the host?  Models x presets.

    python -m benchmarks.partition_choices [--only MODEL ..] [--presets PRESET ..] [--limit CELLS]
                                           [--out benchmarks/PARTITION_CHOICES.md]

Each cell is a whole job (no verification) for each choice, in one process with a cache per job:
simulated latency, CPU seconds.  The host alone is the user's model, as the automatic choice
simulates it.  Finished cells are kept in a ledger beside the page, so that a run goes on where
another ended; --limit stops after so many new cells.
Ends with status 1 where a cell failed or auto is slower than another choice.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks.cells import Row, fill, load_ledger, run_child
from benchmarks.zoo import every_model, materialized

PRESETS = ("xavier", "dpu-zu", "ethos-u65", "stcp920-inferred", "nvdla-large")
"""Five unlike chips: a GPU, two of integers only, an NPU of one core, a server card."""
CHOICES = ("greedy", "criteria", "auto")
_LIMIT_S = 900.0


def cell(name: str, preset: str, scratch: Path) -> Row:
    """Latencies and CPU seconds of every choice; runs inside the child process."""
    from worker.compiler.cache import MemoryCache
    from worker.compiler.options import CompileOptions, PartitionChoice, VerifyMode
    from worker.job.job import run_job
    from worker.job.request import JobRequest, NoProgress

    model = next(m for m in every_model() if m.name == name)
    path = materialized(model, scratch)
    row: Row = {}
    for choice in (CHOICES[0], *CHOICES):  # the first pays for imports, and is done over
        options = CompileOptions(
            verify=VerifyMode.NONE, symbols=model.symbols, partition=PartitionChoice(choice)
        )
        started = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            request = JobRequest(path, name, {"preset": preset}, options, scratch / "build")
            run_job(request, Path(folder), MemoryCache(), NoProgress())
            report = json.loads((Path(folder) / "report.json").read_bytes())
        row[choice] = report["summary"]["latency_cycles"]
        row[f"{choice}_cpu_s"] = round(time.process_time() - started, 1)
    rows = {r["regions_by"]: r["latency_cycles"] for r in report["partition"]["candidates"]}
    chosen = [r["regions_by"] for r in report["partition"]["candidates"] if r["chosen"]]
    return row | {"all-host": rows["all-host"], "kept": chosen}


def page(rows: Mapping[str, Row]) -> str:
    """The table, and what it shows."""
    lines = [
        "# Choices of regions, simulated", "",
        "`python -m benchmarks.partition_choices`: cycles of the whole program, CPU seconds of the"
        " whole compile.", "",
        "| model | preset | greedy | criteria | all-host | auto | kept | auto / best | CPU s greedy"
        " | CPU s auto |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    good = {key: row for key, row in rows.items() if "failure" not in row}
    for key, row in good.items():
        name, preset = key.split(" ")
        lines.append(
            f"| {name} | {preset} | {row['greedy']:,} | {row['criteria']:,} | {row['all-host']:,} |"
            f" {row['auto']:,} | {', '.join(row['kept'])} | {row['auto'] / best(row):.4f} |"
            f" {row['greedy_cpu_s']} | {row['auto_cpu_s']} |"
        )
    worse = [key for key, row in good.items() if row["auto"] > best(row)]
    of_host = sum("all-host" in row["kept"] for row in good.values())
    ratio = sum(r["auto_cpu_s"] for r in good.values()) / max(
        0.1, sum(r["greedy_cpu_s"] for r in good.values())
    )
    lines += [
        "", f"{len(good)} cells, auto is slower than another choice in {len(worse)}; the host alone"
        f" is kept in {of_host}; CPU seconds of auto are {ratio:.2f} of greedy's.", "",
    ]  # fmt: skip
    lines += [f"- {key}: {row['failure']}" for key, row in rows.items() if "failure" in row]
    return "\n".join(lines) + "\n"


def best(row: Row) -> int:
    """Cycles of the best of the other choices."""
    return min(int(row[other]) for other in ("greedy", "criteria", "all-host"))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partition_choices")
    parser.add_argument("--only", nargs="*", default=[], help="models, by file name")
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--limit", type=int, help="most cells that are run now")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/PARTITION_CHOICES.md"))
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="do finished cells over")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.cell:
        sys.stdout.write(json.dumps(cell(args.cell[0], args.cell[1], args.scratch)) + "\n")
        return 0
    ledger = args.out.with_suffix(".json")
    models = [m.name for m in every_model() if not args.only or m.name in args.only]
    keys = [f"{name} {preset}" for name in models for preset in args.presets]
    done = load_ledger(ledger)
    missing = [k for k in keys if args.again or "failure" in done.get(k, {"failure": ""})]
    keys = [k for k in keys if k not in missing[args.limit :]] if args.limit else keys

    def write(rows: Mapping[str, Row]) -> None:
        args.out.write_text(page(rows), encoding="utf-8")

    run = partial(run_child, "benchmarks.partition_choices", scratch=args.scratch, limit_s=_LIMIT_S)
    rows, failed = fill(ledger, keys, run, jobs=args.jobs, again=args.again, after_each=write)
    write(rows)
    sys.stdout.write(page(rows))
    return int(failed or any(r["auto"] > best(r) for r in rows.values() if "failure" not in r))


if __name__ == "__main__":
    raise SystemExit(main())
