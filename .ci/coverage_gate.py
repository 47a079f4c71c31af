"""Fail when branch coverage falls below the gates: the whole, and the compiler core."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

GATES = (("all", "", 90.0), ("compiler core", "worker/compiler/", 92.0))


def main() -> int:
    report = Path("coverage-gate.json")
    subprocess.run(["coverage", "json", "-q", "-o", str(report)], check=True)
    files = json.loads(report.read_text())["files"]
    report.unlink()
    failed = False
    for label, needle, gate in GATES:
        rows = [f["summary"] for name, f in files.items() if needle in name.replace("\\", "/")]
        covered = sum(r["covered_lines"] + r["covered_branches"] for r in rows)
        total = sum(r["num_statements"] + r["num_branches"] for r in rows)
        percent = 100.0 * covered / max(total, 1)
        sys.stdout.write(f"coverage {label}: {percent:.1f} % (gate {gate} %)\n")
        failed = failed or percent < gate
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
