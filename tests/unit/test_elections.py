"""What the table of elections calls a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.cells import commit, fill, save_ledger
from benchmarks.elections import OBJECTIVES, faults, page

GOOD = {"latency": 10, "energy": 5.0, "offchip": 64, "peak_memory": 32, "won": "naive",
        "verified": "passed"}  # fmt: skip


def cell(**changed: dict[str, Any]) -> dict[str, Any]:
    """Programs of `auto` and of one strategy alone, all alike but for what is changed."""
    programs = {f"{name} {objective}": dict(GOOD)
                for name in ("auto", "naive") for objective in OBJECTIVES}  # fmt: skip
    for key, figures in changed.items():
        programs[key.replace("__", " ")] |= figures
    return {"cell": {"programs": programs}}


def test_equal_programs_are_no_fault() -> None:
    assert faults(cell()) == []
    assert "1 of 34 cells, 0 faults." in page(cell())


def test_a_strategy_that_is_better_alone_is_one() -> None:
    assert faults(cell(naive__energy={"energy": 4.0})) == ["cell: naive alone is better by energy"]
    (found,) = faults(cell(naive__edp={"latency": 9}))
    assert found == "cell: naive alone is better by edp"


def test_a_program_of_auto_that_another_objective_found_is_one() -> None:
    found = faults(cell(auto__peak_memory={"offchip": 32}))
    assert found == ["cell: auto's program for peak_memory is better by offchip than its own"]


def test_what_is_not_verified_or_has_no_program_is_one() -> None:
    assert faults(cell(naive__latency={"verified": "off by 3"})) == [
        "cell: naive latency is off by 3"
    ]
    assert faults({"cell": {"failure": "exit 1"}}) == ["cell: exit 1"]


def test_cells_of_other_commits_run_again_and_say_where(tmp_path: Path) -> None:
    ledger, ran = tmp_path / "cells.json", []
    save_ledger(ledger, {"a b": {"at": "old"}, "c d": {"at": "kept"}, "e f": {}})

    def run(key: str) -> dict[str, Any]:
        ran.append(key)
        return {"programs": {}}

    keys = ["a b", "c d", "e f"]
    rows, failed = fill(ledger, keys, run, keep=("kept",), after_each=lambda _: None)
    assert (sorted(ran), failed) == (["a b", "e f"], False)
    assert rows["c d"] == {"at": "kept"}
    assert rows["a b"]["at"] == rows["e f"]["at"] == commit()
    ran.clear()
    fill(ledger, keys, run, after_each=lambda _: None)
    assert ran == []
    assert "| 1 | 1234abcd |" in page({"cell": {**cell()["cell"], "at": "1234abcd"}})
