"""What a server carries: reads, submits, streams, uploads, jobs, sweeps, and many workers.

    python -m benchmarks.load                            # all of it; half an hour
    python -m benchmarks.load --only reads submits       # these again, the rest as it was
    python -m benchmarks.load --small --out load.md      # to see that it works; no figures

Real servers with keys, rates, quotas and the audit log on, SQLite and PostgreSQL.  Every figure is
kept in a JSON file beside the page, so that parts can be measured one by one.  Exit status 1 where
something was lost, answered with an error, or is not as wanted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.campaigns import commit
from benchmarks.faults.site import own_folder
from benchmarks.load.helped import measure_help
from benchmarks.load.page import SECTIONS, missed, page, processor
from benchmarks.load.requests import measure_reads, measure_submits
from benchmarks.load.sites import DATABASES, CannotRun, busy_s
from benchmarks.load.streams import measure_streams
from benchmarks.load.work import CHIPS, measure_work
from worker.sandbox.compiled_loops import ensure_compiled_loops

PAGE = Path(__file__).resolve().parent.parent / "LOAD.md"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    read_s: float = 30.0
    queued: int = 500
    clients: int = 50
    each: int = 20
    rounds: int = 5
    followed: int = 2000
    streams: int = 1000
    uploaders: int = 50
    mib: int = 4
    warm: int = 90
    sweeps: int = 5
    kinds: int | None = None
    """Of jobs that a work section asks for, each compiled cold first; None: all there are."""
    chips: int = len(CHIPS)
    idle_s: float = 30.0
    layers: int = 48


SMALL = Size(
    read_s=2.0, queued=20, clients=5, each=4, rounds=1, followed=8, streams=4, uploaders=2, mib=1,
    warm=3, sweeps=1, kinds=3, chips=1, idle_s=1.0,
    layers=2,
)  # fmt: skip


_NAMES = {"work": ("1", "2"), "help": ("off", "on")}
"""What is measured of a section, where it is not one row for each database."""


def _described(measure: Callable[[], Row], at: str) -> Row:
    """A measurement, with when and where it was made."""
    load, began, busy, own = os.getloadavg()[0], time.monotonic(), busy_s(), _own_s()
    row = measure()
    others = (busy_s() - busy) - (_own_s() - own)
    return row | {
        "commit": at, "nice": os.nice(0), "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)), "processor": processor(),
        "linux": platform.release().partition("-")[0], "python": platform.python_version(),
        "load": load, "others": max(0.0, others) / (time.monotonic() - began),
    }  # fmt: skip


def _own_s() -> float:
    """Of this process and all it started that have ended."""
    return sum(os.times()[:4])


def measure(section: str, name: str, folder: Path, size: Size) -> Row:
    """One row of a section: of a database, of a number of workers, or with help or without."""
    if section == "reads":
        return measure_reads(name, folder, seconds=size.read_s, jobs=size.queued)
    if section == "submits":
        folder.mkdir(parents=True)
        return measure_submits(
            name, folder, clients=size.clients, each=size.each, rounds=size.rounds
        )
    if section == "streams":
        return measure_streams(
            name, folder, jobs=size.followed, streams=size.streams, uploaders=size.uploaders,
            mib=size.mib, workers=2,
        )  # fmt: skip
    if section == "help":
        return measure_help(folder, layers=size.layers, help_from_s=None if name == "on" else 0.0)
    return measure_work(
        folder, workers=int(name), jobs=size.warm, rounds=size.sweeps, kinds=size.kinds,
        chips=CHIPS[: size.chips], idle_s=size.idle_s,
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Measure what was asked for; 1 when something is not as wanted."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--only", nargs="+", choices=sorted(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--database", nargs="+", choices=sorted(DATABASES), default=list(DATABASES))
    parser.add_argument("--small", action="store_true", help="to see that it works")
    parser.add_argument(
        "--out", type=Path, default=PAGE, help="the page; its figures lie beside it"
    )
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends
    ensure_compiled_loops()
    figures = args.out.with_suffix(".json")
    ledger: Row = json.loads(figures.read_text()) if figures.exists() else {}
    made_of = commit()  # before the page itself is a change
    folder = own_folder()
    try:
        for section in args.only:
            names = _NAMES.get(section, args.database)
            for name in names:
                sys.stderr.write(f"{section} {name}\n")
                at = folder / f"{section}_{name}"
                try:
                    found = _described(
                        lambda: measure(section, name, at, SMALL if args.small else Size()),  # noqa: B023  # called at once
                        made_of,
                    )
                except CannotRun as error:
                    sys.stderr.write(f"  not measured: {error}\n")
                    continue
                ledger.setdefault(section, {})[name] = found
                figures.write_text(json.dumps(ledger, indent=1, sort_keys=True) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = page(ledger)
    args.out.write_text(text)
    sys.stdout.write(text)
    return int(missed(text))


if __name__ == "__main__":
    raise SystemExit(main())
