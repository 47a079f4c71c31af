"""Feed hostile inputs to the compiler, the command line and the server, and count the faults.

    python -m benchmarks.hostile                       # a night of two cores, resumable
    python -m benchmarks.hostile --models 40 --extremes 9 --specs 20 --bundles 10 --api-minutes 0.5

Case k of a kind depends on the seed and k alone (of `extremes`, which are a list, on k); it is
printed with every fault, and `--only models:17` runs that case again.  Finished cases are kept in
the ledger.  Cases that took too long beside another are run again at the end, alone: the limit is
one of a machine that does nothing else.  Exit 1: a fault.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hostile import child
from worker.sandbox.compiled_loops import ensure_compiled_loops

KINDS = ("models", "extremes", "specs", "bundles")
WANTED = {"models": 10_000, "extremes": 10_000, "specs": 5_000, "bundles": 1_000}
"""Of `extremes` there are fewer: as many as there are."""
API_MINUTES = 20.0


def main(argv: list[str] | None = None) -> int:
    """Run what the ledger lacks, then print every kind's counts and every fault."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=WANTED[kind])
    parser.add_argument("--api-minutes", type=float, default=API_MINUTES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--ledger", type=Path, default=Path("hostile.jsonl"))
    parser.add_argument("--only", help="KIND:NUMBER, one case, shown whole")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if not args.part:
        # A child that is stopped keeps nothing of what it compiled, and neither would the next one:
        # neither beside the sources nor for payloads.
        subprocess.run([sys.executable, "-m", "worker.children.compile_loops"], check=True)
        ensure_compiled_loops()
    if args.only:
        kind, number = args.only.split(":")
        sys.stdout.write(json.dumps(_run(args.seed, kind, int(number)), indent=1) + "\n")
        return 0
    if args.part:
        kind, numbers = args.part.split(":")
        _part(args.seed, kind, [int(k) for k in numbers.split(",")], args.ledger, args.jobs == 1)
        return 0
    sys.stdout.write(f"seed {args.seed}\n")
    if args.extremes:
        from benchmarks.hostile import extremes

        args.extremes = min(args.extremes, len(extremes.cases()))
    for kind in KINDS:
        _fill(kind, getattr(args, kind), args)
    for kind in KINDS:
        _repeat(kind, args)
    rows = [row for row in _rows(args.ledger) if _counts(row, args)]
    failed = _print(rows)
    if args.api_minutes:
        from benchmarks.hostile.api import storm

        failed |= storm(args.api_minutes * 60.0, args.seed)
    return int(failed)


def _counts(row: Mapping[str, Any], args: argparse.Namespace) -> bool:
    return row["seed"] == args.seed and row["number"] < getattr(args, row["kind_of_input"])


def _rows(ledger: Path) -> list[dict[str, Any]]:
    """Of every case how it ended last."""
    if not ledger.exists():
        return []
    lines = ledger.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line]
    return list({(r["seed"], r["kind_of_input"], r["number"]): r for r in rows}.values())


def _fill(kind: str, count: int, args: argparse.Namespace) -> None:
    """Run missing cases, `jobs` parents at a time: each forks its cases one after the other."""
    done = {
        row["number"]
        for row in _rows(args.ledger)
        if (row["seed"], row["kind_of_input"]) == (args.seed, kind)
    }
    due = [number for number in range(count) if number not in done]
    _run_all(kind, due, args, args.jobs)


def _repeat(kind: str, args: argparse.Namespace) -> None:
    """Run what took too long beside other cases again, alone."""
    slow = [
        row["number"]
        for row in _rows(args.ledger)
        if row["kind_of_input"] == kind
        and row["kind"] == "hung"
        and not row.get("alone", False)
        and _counts(row, args)
    ]
    if slow:
        sys.stdout.write(f"{kind}: {len(slow)} cases took too long, run again alone\n")
    _run_all(kind, slow, args, jobs=1)


def _run_all(kind: str, due: list[int], args: argparse.Namespace, jobs: int) -> None:
    for block in _blocks(due, 250 * jobs):
        parents = []
        for share in range(jobs):
            numbers = ",".join(map(str, block[share::jobs]))
            if not numbers:
                continue
            command = [sys.executable, "-m", "benchmarks.hostile", "--seed", str(args.seed)]
            command += ["--ledger", str(args.ledger), "--part", f"{kind}:{numbers}"]
            command += ["--jobs", str(jobs)]
            parents.append(subprocess.Popen(command))
        if any(parent.wait() for parent in parents):
            raise RuntimeError(f"a parent of {kind} cases died")


def _blocks(numbers: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]


def _part(seed: int, kind: str, numbers: list[int], ledger: Path, alone: bool) -> None:
    """One parent: load everything once, then fork a child per case."""
    for number in numbers:
        row = json.dumps({**_run(seed, kind, number), "alone": alone})
        with ledger.open("a", encoding="utf-8") as file:  # one short line a write: never torn
            file.write(row + "\n")


def _run(seed: int, kind: str, number: int) -> dict[str, Any]:
    from benchmarks.hostile import bundles, extremes, models, specs

    makers: Mapping[str, Callable[..., Any]] = {
        "models": models.case, "specs": specs.case, "bundles": bundles.case,
    }  # fmt: skip
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode()), number])
    what, judge = extremes.case(number) if kind == "extremes" else makers[kind](rng)
    verdict = child.run_limited(judge)
    place = {"seed": seed, "kind_of_input": kind, "number": number, "what": what}
    return {**place, **asdict(verdict)}


def _print(rows: list[dict[str, Any]]) -> bool:
    """Counts by kind, the worst times and sizes, and the faults; True when there is one."""
    faults = [row for row in rows if row["kind"] in child.FAULTS]
    for kind in KINDS:
        mine = [row for row in rows if row["kind_of_input"] == kind]
        if not mine:
            continue
        counts = Counter(str(row["kind"]) for row in mine)
        said = ", ".join(f"{counts[name]} {name}" for name in ("accepted", "refused"))
        bad = ", ".join(f"{counts[name]} {name}" for name in child.FAULTS)
        slowest, largest = max(r["seconds"] for r in mine), max(r["rss_mb"] for r in mine)
        sys.stdout.write(f"{kind}: {len(mine)} cases, {said}; faults: {bad};"
                         f" slowest {slowest} s, largest {largest} MB\n")  # fmt: skip
        compared = sum(row["code"] == "compared" for row in mine)
        sys.stdout.write(f"  {compared} compared with ONNX Runtime on fresh inputs\n")
    for row in faults[:200]:
        place = f"{row['kind_of_input']}:{row['number']}"
        sys.stdout.write(f"{row['kind']} {row['code']} --only {place} {row['what'][:120]!r}:"
                         f" {row['detail'][:300]}\n")  # fmt: skip
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
