"""GraphTurbo Tables 1-5 and its ablation beside ours.

    python -m benchmarks.papers.graphturbo [--only A B T] [--presets stcp920-inferred]
                                           [--variants full layerwise] [--out GRAPHTURBO.md]

The paper measured silicon; ours is simulated, so ratios and orderings are compared, with the
criteria printed. Nothing is calibrated. Models are made FP16 (graphturbo_half.py) and given the
paper's batches (rebatch.py); one compilation is one round of n samples on each of four clusters; a
batch of several rounds takes as many times as long. Milliseconds are of kernels and their launches,
without the link to the host and what runs there. TVM stands for variant `layerwise`, at the paper's
own n; n by capacity is computed beside it. STCP920 comes as two presets: L1 as printed (64 KiB),
and as the paper's own Fig. 9 implies (1 MiB), which has the suffix; the page has those that were
asked for. A throughput is batch over latency; Table 1 prints others, which contradict its
latencies, so both are shown. Table 3 counts what operators write, inside kernels too; the paper
seems to count what TVM's kernels exchange, and more for its own.

Every cell is a fresh process; finished cells are kept in the JSON file beside the page.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.cells import Row, fill, run_child
from benchmarks.papers.graphturbo_cells import (
    GPU_PRESET,
    PRESETS,
    Cell,
    cells,
    run_cell,
)
from benchmarks.papers.graphturbo_checks import Judged, checks, gpu_checks
from benchmarks.papers.graphturbo_results import Results
from benchmarks.papers.graphturbo_tables import (
    ablation,
    table,
    table_1,
    table_2,
    table_3,
    table_4,
    table_5,
)

_MARK = {True: "pass", False: "**fail**", None: "not measured"}


def criteria(title: str, judged: Sequence[Judged]) -> list[str]:
    """Criteria with paper value, ours, and the verdict; what was not measured does not pass."""
    passed = sum(each.passed is True for each in judged)
    lines = [(each.criterion, each.paper, each.ours, _MARK[each.passed]) for each in judged]
    return table(
        f"Criteria, {title}: {passed} of {len(judged)} pass", ("criterion", "paper", "ours", ""),
        lines,
    )  # fmt: skip


def document(rows: Mapping[str, Row], presets: Sequence[str]) -> str:
    """The whole page."""
    lines = ["# GraphTurbo Tables 1-5", "", "Printed by `python -m benchmarks.papers.graphturbo`.",
             "", (__doc__ or "").split("\n\n")[2].replace("\n", " "), ""]  # fmt: skip
    for preset in presets:
        results = Results(rows, preset)
        lines += [f"## {preset}", ""]
        for part in (table_1, table_2, table_3, table_4, ablation):
            lines += part(results)
        lines += criteria(preset, checks(results))
    gpu = Results(rows, GPU_PRESET)
    lines += [f"## {GPU_PRESET}", "", *table_5(gpu), *criteria(GPU_PRESET, gpu_checks(gpu))]
    failures = [(key, row["failure"]) for key, row in rows.items() if "failure" in row]
    if failures:
        lines += table("Cells that failed", ("cell", "why"), failures)
    return "\n".join(lines)


def wanted(cell: Cell, args: argparse.Namespace) -> bool:
    """Whether the command line asks for this cell; T is the whole GPU case."""
    only = not args.only or cell.label in args.only or (cell.label[0] == "T" and "T" in args.only)
    return bool(only and (not args.variants or cell.variant in args.variants))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/papers/GRAPHTURBO.md"))
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    parser.add_argument("--only", nargs="*", default=[], help="labels A-J, T for the GPU case")
    parser.add_argument("--variants", nargs="*", default=[])
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--again", action="store_true", help="run finished cells again")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--limit", type=float, default=900, help="seconds of a cell")
    parser.add_argument("--cell", nargs=4, metavar=("LABEL", "PRESET", "VARIANT", "SAMPLES"))
    args = parser.parse_args(argv)
    if args.cell:
        label, preset, variant, samples = args.cell
        cell = Cell(label, preset, variant, int(samples))
        sys.stdout.write(json.dumps(run_cell(cell, args.scratch)) + "\n")
        return 0
    rows, failed = fill(
        args.out.with_suffix(".json"),
        [cell.key for cell in cells(args.presets) if wanted(cell, args)],
        lambda key: run_child("benchmarks.papers.graphturbo", key, args.scratch, args.limit),
        jobs=args.jobs,
        again=args.again,
        after_each=lambda rows: args.out.write_text(document(rows, args.presets), encoding="utf-8"),
    )
    text = document(rows, args.presets)
    args.out.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
