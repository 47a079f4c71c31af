"""The commands of the strategy author's guide run as printed, in the order they are printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from document_commands import commands
from strategy_environment import run_page

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.document
COMMANDS = [command.line for command in commands((ROOT / "docs/strategies.md").read_text())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which they have run."""
    return run_page(tmp_path_factory.mktemp("checkout"), COMMANDS)


def printed(folder: Path, start: str) -> str:
    number = [line.startswith(start) for line in COMMANDS].index(True)
    return (folder / "printed" / str(number)).read_text()


def test_the_strategy_is_installed_and_listed(folder: Path) -> None:
    rows = printed(folder, "tilewright strategies").splitlines()
    assert any(row.startswith("chains\t") for row in rows), rows


def test_it_compiles_alone_verified(folder: Path) -> None:
    report = json.loads((folder / "chains" / "report.json").read_bytes())
    assert report["verification"] == {**report["verification"], "mode": "full", "passed": True}
    assert [row["name"] for row in report["strategies"]] == ["chains"]


def test_it_competes_and_is_told_why_it_won_or_lost(folder: Path) -> None:
    report = json.loads((folder / "best" / "report.json").read_bytes())
    # A program is named by its strategy first, then by what kernels it was put together from.
    rows = {row["name"].partition(",")[0]: row for row in report["strategies"]}
    assert {"chains", "graphturbo", "naive"} <= set(rows)
    assert rows["chains"]["reason"]
    assert rows["chains"]["reason"] in printed(folder, "tilewright report")
