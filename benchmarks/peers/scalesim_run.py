"""Runs inside SCALE-Sim's environment: simulates every exported kernel, one JSON line.

    python scalesim_run.py FOLDER

By kernel: cycles in all, cycles without stalls, and elements to and from DRAM.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from scalesim.scale_sim import scalesim


def simulated(folder: Path) -> dict[str, Any]:
    """Figures of one kernel, from the reports that SCALE-Sim writes."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        Path(os.devnull).open("w", encoding="utf-8") as quiet,
        contextlib.redirect_stdout(quiet),
        contextlib.redirect_stderr(quiet),
    ):
        run = scalesim(
            save_disk_space=True,
            verbose=False,
            config=str(folder / "scale.cfg"),
            topology=str(folder / "topology.csv"),
            layout=str(folder / "layout.csv"),
            input_type_gemm=False,
        )
        run.run_scale(top_path=scratch)
        reports = {p.name: _row(p) for p in Path(scratch).rglob("*_REPORT.csv")}
    compute, access = reports["COMPUTE_REPORT.csv"], reports["DETAILED_ACCESS_REPORT.csv"]
    total, stall = float(compute["Total Cycles"]), float(compute["Stall Cycles"])
    return {
        "cycles": float(compute["Total Cycles (incl. prefetch)"]),
        "compute_cycles": total - stall,
        "elements": {
            "read": float(access["DRAM IFMAP Reads"]) + float(access["DRAM Filter Reads"]),
            "write": float(access["DRAM OFMAP Writes"]),
        },
    }


def _row(path: Path) -> dict[str, str]:
    with path.open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file, skipinitialspace=True)
    return row


def main() -> None:
    rows = {p.name: simulated(p) for p in sorted(Path(sys.argv[1]).iterdir()) if p.is_dir()}
    sys.stdout.write("\n" + json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
