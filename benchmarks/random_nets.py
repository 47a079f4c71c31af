"""Random nets x strategies x presets through the public job, verified in full.

    python -m benchmarks.random_nets --count 3000 --seed 100 --jobs 2 --results random_nets.jsonl

Cell k is net `seed + k // 40` with one of the eight ways and five presets, so that every 40 cells
hold one net in all of them.  A cell fails when the job does, when its verification did not pass or
compared nothing, or when a strategy had to fall back.  What is compared is what `--verify full`
compares: every output, every tensor that kernels hand over through home memory and every tensor
that lives and dies inside one kernel against ONNX Runtime's.  Results are
appended a line per cell; a further run skips what is there and did not fail.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.random_models import random_model
from worker.compiler.cache import MemoryCache
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress

PRESETS = ("stcp920", "stcp920-inferred", "ascend910", "goya", "a100")
WAYS = ("naive", "full", "paper", "v3", "v2", "v1", "astitch", "layerwise", "sample")
"""The strategy naive, variants of graphturbo, and `full` with sampled verification."""
PER_NET = len(WAYS) * len(PRESETS)
_JOBS_OF_A_CHILD = 40
"""After so many a child is replaced: compiled libraries stay loaded in a process."""

Cell = tuple[int, str, str]
Row = dict[str, Any]


def cell_of(number: int, seed: int) -> Cell:
    """(seed of the net, way, preset) of one cell."""
    ways = tuple(product(WAYS, PRESETS))
    return (seed + number // PER_NET, *ways[number % PER_NET])


def run_cell(cell: Cell) -> Row:
    """Compile, run and compare one net; `failure` says what is wrong, if anything."""
    seed, way, preset = cell
    row: Row = {"seed": seed, "way": way, "preset": preset}
    folder = Path(tempfile.mkdtemp(prefix="random_nets_"))
    start = time.process_time()
    try:
        path = folder / "net.onnx"
        path.write_bytes(random_model(seed).SerializeToString())
        options: dict[str, Any] = {"verify": "sample" if way == "sample" else "full"}
        options["strategy"] = "naive" if way == "naive" else "graphturbo"
        if way not in ("naive", "sample"):
            options["strategy_options"] = {"graphturbo": {"variant": way}}
        asked = CompileOptions.from_json(options)
        request = JobRequest(path, "net", {"preset": preset}, asked, folder / "build")
        run_job(request, folder / "out", MemoryCache(), NoProgress())
        report = json.loads((folder / "out" / "report.json").read_bytes())
        row |= judged(report)
    except Exception as error:  # the boundary of a cell: the campaign goes on and counts it
        row["failure"] = f"{type(error).__name__}: {error}"[:500]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return row | {"cpu_s": round(time.process_time() - start, 2)}


def judged(report: Row) -> Row:
    """What a report says of its cell."""
    check = report["verification"]
    fallen = [w["message"] for w in report["warnings"] if w["code"] == "STRATEGY_FALLBACK"]
    row: Row = {"kernels": report["summary"]["kernels"], "error": check["max_rel_err"]}
    if check["passed"] is not True:
        row["failure"] = f"verification: {check['detail']}"[:500]
    elif check["max_rel_err"] is None:
        row["failure"] = "nothing was compared"
    elif fallen:
        row["failure"] = fallen[0]
    return row


def load_rows(path: Path) -> dict[Cell, Row]:
    """Results of earlier runs, the last of each cell."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(row["seed"], row["way"], row["preset"]): row for row in rows}


def campaign(count: int, seed: int, jobs: int, results: Path) -> dict[Cell, Row]:
    """Run the cells that `results` misses; all rows of the campaign."""
    cells = [cell_of(number, seed) for number in range(count)]
    rows = load_rows(results)
    due = [cell for cell in cells if "failure" in rows.get(cell, {"failure": "missing"})]
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(results.open("a"))
        found: Iterable[Row] = map(run_cell, due)
        if jobs > 1:
            # Not forked from here: a thread of ours may hold a lock that a child then waits for.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["worker.job.job"])
            pool = stack.enter_context(context.Pool(jobs, maxtasksperchild=_JOBS_OF_A_CHILD))
            found = pool.imap_unordered(run_cell, due)
        for row in found:
            rows[row["seed"], row["way"], row["preset"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            if "failure" in row:
                sys.stderr.write(json.dumps(row) + "\n")
    return {cell: rows[cell] for cell in cells}


def main(argv: list[str] | None = None) -> int:
    """Run the campaign; 1 when a cell failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.random_nets")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("random_nets.jsonl"))
    given = parser.parse_args(argv)
    rows = campaign(given.count, given.seed, given.jobs, given.results)
    failed = [row for row in rows.values() if "failure" in row]
    ways = Counter(row["way"] for row in rows.values())
    sys.stdout.write(f"{len(rows)} compiles from seed {given.seed}, {len(failed)} failed" + "\n")
    sys.stdout.write(", ".join(f"{way} {ways[way]}" for way in WAYS) + "\n")
    for row in failed:
        sys.stdout.write(
            f"  seed {row['seed']} {row['way']} {row['preset']}: {row['failure'][:200]}" + "\n"
        )
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
