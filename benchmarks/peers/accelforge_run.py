"""Runs inside AccelForge's environment: evaluates every exported kernel, one JSON line.

    python accelforge_run.py FOLDER

By kernel: cycles in all and by component, and bytes read and written per memory.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import accelforge

_SEPARATOR = "<SEP>"


def evaluated(folder: Path) -> dict[str, Any]:
    """Figures of one kernel."""
    files = [str(folder / f"{name}.yaml") for name in ("arch", "workload", "mapping")]
    with contextlib.redirect_stdout(io.StringIO()):
        row = accelforge.Spec.from_yaml(*files).evaluate_mapping().data.iloc[0]
    moved: Counter[str] = Counter()
    latencies: dict[str, float] = {}
    for column, value in row.items():
        match column.split(_SEPARATOR):
            case [_, "action", memory, _, ("read" | "write") as way]:
                moved[f"{memory}.{way}"] += float(value) / 8
            case [_, "latency", component]:
                latencies[component] = float(value)
            case _:
                pass
    total = float(row[f"Total{_SEPARATOR}latency"])
    return {"cycles": total, "bytes": dict(moved), "latencies": latencies}


def main() -> None:
    rows = {p.name: evaluated(p) for p in sorted(Path(sys.argv[1]).iterdir()) if p.is_dir()}
    sys.stdout.write("\n" + json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
