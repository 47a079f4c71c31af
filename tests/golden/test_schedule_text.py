"""The printed form of the hand-written trees, and of instances in an order, as golden files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from graphturbo_nets import clustered, down_sampled, scheduled
from toy_schedules import TOYS

from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.text import print_schedule
from worker.compiler.strategies.graphturbo.descriptor import Variant

GOLDEN = Path(__file__).parent / "schedule"


def check_golden(name: str, schedule: Schedule, request: pytest.FixtureRequest) -> None:
    text = print_schedule(schedule)
    path = GOLDEN / f"{name}.schedule"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("name", TOYS)
def test_printed_schedule(name: str, request: pytest.FixtureRequest) -> None:
    schedule, _, _ = TOYS[name]()
    check_golden(name, schedule, request)


def test_printed_schedule_of_instances_in_breadth_first_order(
    request: pytest.FixtureRequest,
) -> None:
    """Four, two and one instances; slices that wait for a reader lie in one place."""
    on = clustered(clusters=2, cores=2, gb_bytes=11 << 10, l1_bytes=1 << 11)
    schedule = scheduled(down_sampled(), on, Variant.PAPER, number=3)
    check_golden("paper_breadth_first", replace(schedule, notes=()), request)
