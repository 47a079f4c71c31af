"""The printed form of the five hand-written trees, as golden files."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_schedules import TOYS

from worker.compiler.schedule.text import print_schedule

GOLDEN = Path(__file__).parent / "schedule"


@pytest.mark.parametrize("name", TOYS)
def test_printed_schedule(name: str, request: pytest.FixtureRequest) -> None:
    schedule, _, _ = TOYS[name]()
    text = print_schedule(schedule)
    path = GOLDEN / f"{name}.schedule"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text
