"""What must not be left after the last fault: leases, folders, processes, files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.books import Books
from benchmarks.faults.site import REPO, Site
from worker.sandbox.held import is_held

SETTLE_S = 30.0
_DAY_S = 86_400.0
_OF_A_STORE = ("leases", "work folders", "files", "spool", "content", "schema", "database")
"""What `doctor` may find in a store."""


def settled(site: Site, books: Books) -> Iterable[str]:
    """Nothing is leased or waits, and nobody keeps a folder or a process of an attempt."""
    deadline = time.monotonic() + SETTLE_S
    while (found := _unsettled(site, books)) and time.monotonic() < deadline:
        time.sleep(0.5)
    yield from found


def _unsettled(site: Site, books: Books) -> list[str]:
    query = ("SELECT id, state FROM work_item WHERE state IN ('leased', 'ready', 'blocked')"
             " OR owner IS NOT NULL OR lease_until IS NOT NULL")  # fmt: skip
    found = [f"{item} is {state}" for item, state in books.rows(query)]
    query = "SELECT id FROM webhook_delivery WHERE lease_until IS NOT NULL"
    found += [f"message {one} is leased" for (one,) in books.rows(query)]
    found += [f"folder {path.name} is left" for path in _folders(site) if not _answers(path)]
    strays = [*site.leftovers(site.data_dir / "work"), *site.strays()]
    return found + [f"process is left: {words}" for words in strays]


def _folders(site: Site) -> list[Path]:
    """Of attempts, and of what the API asks."""
    return [path for name in ("work", "asked") for path in sorted((site.data_dir / name).glob("*"))]


def _answers(folder: Path) -> bool:
    """Whether a payload is there that goes on answering the API."""
    return folder.name.startswith("standing-") and is_held(folder)


def after_the_end(site: Site, stubborn: Iterable[str]) -> list[str]:
    """What must hold when the service was asked to end and has ended."""
    return [
        *(f"{name} did not end when it was asked to" for name in stubborn),
        *(f"process is left: {words}" for words in (*site.leftovers(), *site.strays())),
        *(f"folder {path.name} is left" for path in _folders(site)),
        *(f"temporary {path.name} is left" for path in sorted(site.temporary.glob("*"))),
    ]


@dataclass(frozen=True, slots=True)
class Aged:
    """What is cleared away a day later."""

    mended: tuple[str, ...]
    breaches: tuple[str, ...]


def a_day_later(site: Site) -> Aged:
    """Make all files a day old and let `doctor --fix` clear away what crashes have left there.

    Half-written files and content without a row stay for a day: they may be uploads under way.
    """
    past = time.time() - 2 * _DAY_S
    for path in site.data_dir.rglob("*"):
        os.utime(path, (past, past), follow_symlinks=False)
    first = _doctor(site, "--fix")
    mended = tuple(f"{name}: {detail}" for name, level, detail in first if level == "fixed")
    breaches = [f"doctor --fix: {name}: {detail}" for name, level, detail in first
                if level in ("warning", "error")]  # fmt: skip
    for name, level, detail in _doctor(site):
        # An S3 says when an object came, and nobody can make it older.
        if level in ("warning", "error") and not (name == "files" and site.proxy is not None):
            breaches.append(f"doctor still finds {name}: {detail}")
    spool = (site.data_dir / "spool", site.data_dir / "blobs" / "spool")
    left = [path for folder in spool for path in sorted(folder.rglob("*")) if path.is_file()]
    cas = site.data_dir / "blobs" / "cas"
    left += [path for path in sorted(cas.rglob("*")) if path.is_file() and path.name[0] == "."]
    return Aged(mended, (*breaches, *(f"file {path.name} is left" for path in left)))


def _doctor(site: Site, *words: str) -> list[tuple[str, str, str]]:
    command = (sys.executable, "-m", "service.cli.main", "doctor", "--json", *words)
    done = subprocess.run(
        command, env=site.environment, cwd=REPO, capture_output=True, check=False, text=True
    )
    try:
        checks = json.loads(done.stdout)["checks"]
    except (ValueError, KeyError):
        return [("doctor", "error", f"ended {done.returncode}: {done.stderr[-300:]}")]
    return [(one["name"], one["level"], one["detail"]) for one in checks
            if one["name"] in _OF_A_STORE]  # fmt: skip
