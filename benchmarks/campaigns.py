"""Every campaign at full size, one after the other, in one ledger.

    python -m benchmarks.campaigns                     # all that this commit has not passed yet
    python -m benchmarks.campaigns --only hostile tests/e2e/test_kill_real.py

Tests marked `campaign` run a file at a time; property tests run with the profile `nightly`; then
come the commands of this folder that end with exit status 1 on a fault.  A row of the ledger is a
campaign: with which commit it ran, how it ended, how long it took.  A further run skips what passed
at the same commit, and a campaign that was interrupted goes on where it has a ledger of its own.
The whole takes many hours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.cells import Row, load_ledger, save_ledger

REPO = Path(__file__).resolve().parent.parent
_PYTEST = ("pytest", "--no-header", "--numprocesses=0")  # they stop servers, measure memory


@dataclass(frozen=True, slots=True)
class Campaign:
    """Modules run with `python -m`, in order; the first that fails ends it."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    seeds: tuple[str, ...] = ("",)
    """PYTHONHASHSEED of each command in turn; empty: as it is."""


def marked_tests() -> list[Campaign]:
    """A campaign per test file that has tests so marked, and one of all property tests."""
    whole = {"TILEWRIGHT_CAMPAIGN": "full"}
    files = [
        path.relative_to(REPO).as_posix()
        for path in sorted((REPO / "tests").glob("*/test_*.py"))
        if "mark.campaign" in path.read_text(encoding="utf-8")
    ]
    found = [Campaign(name, ((*_PYTEST, "-m", "campaign", name),), whole) for name in files]
    nightly = {"TILEWRIGHT_TEST_EXAMPLES": "nightly"}
    return [*found, Campaign("properties", (("pytest", "--no-header", "tests/property"),), nightly)]


def command_campaigns(folder: Path) -> list[Campaign]:
    """The commands of this folder, with their ledgers and pages below `folder`."""

    def one(name: str, *words: str) -> Campaign:
        return Campaign(name, ((f"benchmarks.{name.split()[0]}", *words),))

    def out(file: str) -> str:
        return str(folder / file)

    first, again = out("digests.json"), out("digests_again.json")
    return [
        one("onnx_coverage", "--check"),
        one("illegal_nodes", "--jobs", "2"),
        one("hostile", "--ledger", out("hostile.jsonl")),
        one("random_nets", "--results", out("random_nets.jsonl")),
        Campaign(
            "digests",
            (("benchmarks.digests", first), ("benchmarks.digests", again, "--against", first)),
            seeds=("1", "7"),
        ),
        one("partition_matrix", "--out", out("partitions.md")),
        one("partition_matrix verified", "--verify", "--out", out("verified.md")),
        one("models", "--out", out("models.md")),
        one("graphturbo_zoo", "--out", out("graphturbo_zoo.md")),
        one("graphturbo_matrix", "--out", out("graphturbo_matrix.md")),
        one("ablation", "--out", out("ablation.md")),
        one("elections", "--out", out("elections.md")),
        one("racing_operators"),
        one("faults"),
        one("validation", "--out", out("validation.md")),
        one("quantisation", "--out", out("quantisation.md")),
        one("searches", "--out", out("searches.md")),
    ]


def commit() -> str:
    """What is checked out; with `+` where files were changed since."""

    def said(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=REPO, capture_output=True, text=True, check=True
        ).stdout.strip()

    changed = said("status", "--porcelain", "--untracked-files=no")
    return said("rev-parse", "HEAD")[:12] + ("+" if changed else "")


def run(campaign: Campaign, log: Path) -> Row:
    """Run one campaign, its output into `log`; what there is to say of it."""
    began, code = time.monotonic(), 0
    with log.open("ab") as file:
        for number, (module, *words) in enumerate(campaign.commands):
            environment = {**os.environ, **campaign.environment}
            if seed := campaign.seeds[number % len(campaign.seeds)]:
                environment["PYTHONHASHSEED"] = seed
            code = subprocess.run(
                [sys.executable, "-m", module, *words],
                cwd=REPO, env=environment, stdout=file, stderr=file, check=False,
            ).returncode  # fmt: skip
            if code:
                break
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    minutes = round((time.monotonic() - began) / 60, 1)
    return {"exit": code, "minutes": minutes, "ended": ended, "log": str(log)}


def has_passed(row: Row | None, at: str) -> bool:
    """Whether a campaign passed with what is checked out."""
    return row is not None and row["exit"] == 0 and row["commit"] == at


def table(rows: Mapping[str, Row], names: Sequence[str]) -> str:
    """A line per campaign: how it ended, with which commit."""
    lines = ["| campaign | commit | ended | minutes | result |", "|---|---|---|---|---|"]
    for name in names:
        row = rows.get(name)
        if row is None:
            lines.append(f"| {name} | - | - | - | not run |")
            continue
        result = "passed" if row["exit"] == 0 else f"FAILED ({row['exit']}), see {row['log']}"
        cells = (name, row["commit"], row["ended"], f"{row['minutes']:g}", result)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Run what is due; 1 when one of the campaigns asked for has not passed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.campaigns", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--folder", type=Path, default=Path("campaigns"), help="ledger and logs")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these alone")
    parser.add_argument("--again", action="store_true", help="also what passed at this commit")
    parser.add_argument("--list", action="store_true", help="show the ledger, run nothing")
    args = parser.parse_args(argv)
    at = commit()
    folder = args.folder.resolve() / at  # results of another commit say nothing of this one
    found = {one.name: one for one in (*marked_tests(), *command_campaigns(folder))}
    names = args.only or list(found)
    if unknown := set(names) - set(found):
        parser.error(f"no such campaign: {', '.join(sorted(unknown))}; there are {list(found)}")
    ledger = args.folder.resolve() / "campaigns.json"
    rows = load_ledger(ledger)
    is_new = args.again or at.endswith("+")  # changed files have no name to find them by
    due = [name for name in names if is_new or not has_passed(rows.get(name), at)]
    if due and not args.list:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        for name in due:
            sys.stderr.write(f"{name}\n")
            log = folder / f"{name.replace('/', '_').replace(' ', '_')}.log"
            rows[name] = {"commit": at, **run(found[name], log)}
            save_ledger(ledger, rows)
    sys.stdout.write(table(rows, names))
    return int(not all(has_passed(rows.get(name), at) for name in names))


if __name__ == "__main__":
    raise SystemExit(main())
