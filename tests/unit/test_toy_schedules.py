"""The five hand-written trees verify, print, interpret, lower, run as C and simulate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernel_runs import check_kernel
from toy_schedules import TOYS

from worker.compiler.ir.evaluate import evaluate
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.text import parse_schedule, print_schedule
from worker.compiler.schedule.verify import verify


@pytest.mark.parametrize("name", TOYS)
def test_toy_means_its_graph(name: str) -> None:
    schedule, machine, inputs = TOYS[name]()
    verify(schedule, machine)
    got = interpret(schedule, inputs, home="DDR")
    want = evaluate(schedule.graph, inputs)
    for output in schedule.graph.outputs:
        np.testing.assert_array_equal(got[output], want[output])


@pytest.mark.parametrize("name", TOYS)
def test_toy_text_round_trips(name: str) -> None:
    schedule, _, _ = TOYS[name]()
    assert parse_schedule(print_schedule(schedule)) == schedule


@pytest.mark.parametrize("name", TOYS)
def test_toy_runs_as_c_and_simulates(name: str, tmp_path: Path) -> None:
    schedule, machine, inputs = TOYS[name]()
    check_kernel(schedule, machine, inputs, tmp_path, inside=True, orders=12)
