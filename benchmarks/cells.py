"""Cells of a large table: a fresh process each, in a ledger that the next run continues."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def load_ledger(path: Path) -> dict[str, Row]:
    """Cells that were run before; empty without a file."""
    rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}
    return rows


def save_ledger(path: Path, rows: Mapping[str, Row]) -> None:
    """Write all cells, whole or not at all."""
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def run_child(module: str, key: str, scratch: Path, limit_s: float) -> Row:
    """Run `python -m module --cell ...`: its last line, or `failure` with its last words."""
    command = [sys.executable, "-m", module, "--scratch", str(scratch), "--cell", *key.split(" ")]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"stopped after {limit_s:g} s"}
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or ["no output"])[-1]
        return {"failure": f"exit {child.returncode}: {last[:300]}"}
    row: Row = json.loads(child.stdout.strip().splitlines()[-1])
    return row


def commit() -> str:
    """What is checked out here, in short; empty where that is not known."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def fill(
    ledger: Path,
    keys: Sequence[str],
    run: Callable[[str], Row],
    *,
    jobs: int = 1,
    again: bool = False,
    keep: Sequence[str] = (),
    after_each: Callable[[Mapping[str, Row]], None],
) -> tuple[dict[str, Row], bool]:
    """Run the cells that the ledger misses (or all, `again`), `jobs` at a time.

    `keep`: commits whose cells stay; those of others run again.  A cell says at which one it ran
    (`at`).
    Returns all rows, and whether a cell that ran now failed.  The ledger keeps the order of `keys`
    and, after them, of what it already had.
    """
    rows = load_ledger(ledger)
    due = [
        key
        for key in keys
        if again
        or "failure" in rows.get(key, {"failure": "missing"})
        or (keep and rows[key].get("at") not in keep)
    ]
    here = commit()
    failed = False
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(run, key): key for key in due}
        for done in as_completed(running):
            key = running[done]
            rows[key] = {**done.result(), "at": here}
            failed |= "failure" in rows[key]
            sys.stderr.write(f"{key}: {json.dumps(rows[key])}\n")
            rows = {k: rows[k] for k in dict.fromkeys((*keys, *rows)) if k in rows}
            save_ledger(ledger, rows)
            after_each(rows)
    return rows, failed
