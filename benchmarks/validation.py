"""Published figures of silicon and vendors' tools against the simulation: the page of all rows.

    python -m benchmarks.validation [--only a100-resnet50-int8] [--out benchmarks/VALIDATION.md]

As `tilewright validate --models`, with the models of the zoo.  Every network is compiled in a fresh
process; single operators run in this one.  Exit status 1 where a ratio is not where its row says.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cells import Row, run_child
from benchmarks.zoo import ZooModel, materialized, skeleton_folder
from worker.job.request import NoProgress
from worker.validation.figures import Network
from worker.validation.measure import measure_operator, measure_report, network_options
from worker.validation.outcome import Outcome, Validation
from worker.validation.page import document, page
from worker.validation.published import chosen, hardware_of, shipped

if TYPE_CHECKING:
    from worker.validation.figures import Row as Figure

LIMIT_S = 1800.0


def run_cell(name: str, scratch: Path) -> Mapping[str, Any]:
    """Compile the network of one row; gives the summary of its report."""
    from worker.compiler.cache import NullCache
    from worker.job.job import JobRequest, run_job

    (row,) = chosen(shipped().rows, [name])
    assert isinstance(row.work, Network)
    path = materialized(ZooModel(row.work.model, row.work.model), scratch)
    options = network_options(row.work)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        request = JobRequest(path, row.id, hardware_of(row), options, scratch / "build")
        run_job(request, out, NullCache(), NoProgress())
        report: Row = json.loads((out / "report.json").read_bytes())
    return {"summary": report["summary"]}


def measured(row: Figure, scratch: Path) -> Outcome:
    """One row; a network whose skeleton is not there is not run."""
    if not isinstance(row.work, Network):
        return measure_operator(row)
    if not (skeleton_folder() / f"{row.work.model}.skel.onnx.gz").exists():
        return Outcome(row, None, f"there is no skeleton of {row.work.model}")
    found = run_child("benchmarks.validation", row.id, scratch, LIMIT_S)
    if "failure" in found:
        return Outcome(row, None, str(found["failure"]))
    return measure_report(row, found)


def main(argv: list[str] | None = None) -> int:
    """Measure all rows, or some, and print the page; 1 when the gate fails or a row did not run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/VALIDATION.md"))
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW")
    parser.add_argument("--cell", metavar="ROW")
    args = parser.parse_args(argv)
    if args.cell:
        sys.stdout.write(json.dumps(run_cell(args.cell, args.scratch)) + "\n")
        return 0
    published = shipped()
    rows = chosen(published.rows, args.only)
    outcomes: list[Outcome] = []
    for row in rows:
        outcomes.append(measured(row, args.scratch))
        sys.stderr.write(f"{outcomes[-1].sentence()}\n")
    found = Validation(tuple(outcomes), published.mean, len(rows) == len(published.rows))
    args.out.write_text(page(found), encoding="utf-8")
    told = json.dumps(document(found), indent=1, ensure_ascii=False)
    args.out.with_suffix(".json").write_text(told + "\n", encoding="utf-8")
    return int(bool(found.failures) or any(o.ratio is None for o in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
