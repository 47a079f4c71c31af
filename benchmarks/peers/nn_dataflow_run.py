"""Runs inside nn_dataflow's environment: finds a mapping for every exported kernel, one JSON line.

    python nn_dataflow_run.py FOLDER

By kernel: multiply-accumulates, cycles, words to and from DRAM.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

from nn_dataflow.core import MapStrategyEyeriss, NNDataflow, Option
from nn_dataflow.core import MemHierEnum as Levels


def searched(folder: Path) -> dict[str, Any]:
    """The best schedule by energy; the layer of interest is called `layer`."""
    made = runpy.run_path(str(folder / "network.py"))
    flow = NNDataflow(made["NN"], made["BATCH"], made["RESOURCE"], made["COST"], MapStrategyEyeriss)
    bypass = Option(sw_gbuf_bypass=(True, True, True), opt_goal="e", ntops=1, nprocesses=1)
    tops, _ = flow.schedule_search(bypass)
    best = tops[0]["layer"]
    return {
        "macs": best.total_ops,
        "cycles": best.total_time,
        "dram_words": best.total_accesses[Levels.DRAM],
    }


def main() -> None:
    rows = {p.name: searched(p) for p in sorted(Path(sys.argv[1]).iterdir()) if p.is_dir()}
    sys.stdout.write("\n" + json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
